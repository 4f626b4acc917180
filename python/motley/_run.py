"""``motley run --elastic``: starts the ranks of a script on this machine, and goes on where some of them are killed.

This process alone knows who is there, as it started all of them and sees each one's end. It decides who makes the next process group:
all ranks that are there, once each of them has said that it left the one before, and those that wait to be let in, if all others are
between two steps. A rank that was asked to leave (SIGTERM) says so and is taken out; nobody takes its place. A rank keeps its place, a
number; its rank in a process group is the place's among those that are taken.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch._C._distributed_c10d import TCPStore

from . import _launch, _start
from ._arguments import CommandParser, log_level, read_duration
from ._control import REPLACEMENT, VARIABLE
from ._launch import LaunchError
from ._start import Process

_TICK = 0.1  # seconds between two looks at whether a rank is stopped
_STOPPED = 10  # looks after which a rank that is stopped (SIGSTOP) counts as lost


def main(words: Sequence[str]) -> int:
    """``motley run``: the exit code."""
    parser = CommandParser(
        "run", "Start a script on several ranks of this machine, and go on where ranks are killed. The script calls motley.make_elastic "
        "before its loop and motley.run_step in it.", "example:\n  motley run --elastic 2:4 train.py --epochs 3")
    parser.add_argument("--elastic", metavar="MIN:MAX", required=True, help="go on as long as MIN ranks are left; at most MAX at a time")
    parser.add_argument("--workers", metavar="INT", type=int, help="how many ranks to start; default: MAX")
    parser.add_argument("--replacements", metavar="INT", type=int, default=3, help="how many ranks are started in all in place of those "
                        "that were killed")
    parser.add_argument("--join-timeout", metavar="DURATION", default="60s", help="how long fewer than MIN ranks wait for others that are "
                        "being started")
    given = _launch.read_words(parser, words)
    try:
        least, most = map(int, given.elastic.split(":"))
    except ValueError:
        parser.error(f"--elastic is '{given.elastic}'; MIN:MAX is accepted, such as 2:4")
    if not 1 <= least <= most:
        parser.error(f"--elastic is '{given.elastic}'; MIN from 1 on and MAX of at least MIN are accepted")
    workers = most if given.workers is None else given.workers
    if not least <= workers <= most:
        parser.error(f"--workers is {workers}; with --elastic {given.elastic} a number from {least} to {most} is accepted")
    if given.replacements < 0:
        parser.error(f"--replacements is {given.replacements}; a number from 0 on is accepted")
    try:
        patience = read_duration("--join-timeout", given.join_timeout)
    except ValueError as problem:
        parser.error(str(problem))
    logging.basicConfig(format="motley: %(message)s", level=log_level(given))
    try:
        _Job([given.script, *given.arguments], least, workers, given.replacements, patience).run()
    except LaunchError as problem:
        _log.error("error: %s", problem)
        return problem.code
    except KeyboardInterrupt:
        return 130
    return 0


_log = logging.getLogger("motley")


@dataclass(eq=False)
class _Rank:
    """A process that is, was or wants to be a rank."""

    place: int
    process: Process
    control: socket.socket
    ended: int  # a pidfd
    unread: bytes = b""
    report: dict[str, Any] | None = None  # what it said when it left its process group
    said_at: float = 0.0
    stopped: int = 0  # looks at which it was found so, one after the other

    def close(self) -> None:
        self.control.close()
        os.close(self.ended)


@dataclass
class _Job:
    command: Sequence[str]
    least: int
    workers: int
    replacements: int
    patience: float
    epoch: int = 0
    members: list[_Rank] = field(default_factory=list)  # of the process group, by place
    newcomers: list[_Rank] = field(default_factory=list)
    leaving: list[_Rank] = field(default_factory=list)  # as they were asked to: their processes end
    finished: int = 0  # ranks that have ended in order
    is_enough: bool = True  # ranks in the process group
    deadline: float = math.inf  # for newcomers, where they are too few
    checkpoint: str | None = None
    failure: LaunchError | None = None  # a rank was killed when others had ended
    looked_at: float = 0.0
    store: Process | None = None  # of the ranks' process groups
    port: int = 0  # of it
    is_asked: bool = False  # to end

    def run(self) -> None:
        """Raises LaunchError where a rank failed or too few are left."""
        self.selector = selectors.DefaultSelector()
        before = signal.signal(signal.SIGTERM, lambda *_: self._ask_all_to_leave())
        try:
            self._start_all()
            while self.members or self.leaving:
                self._look()
            if self.failure is not None:
                raise self.failure
            if not self.finished:
                raise self._has_left()
        except KeyboardInterrupt:
            _launch.interrupt([rank.process for rank in self._all()])
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
            for rank in self._all():  # which take SIGTERM for something else
                rank.process.kill()
                rank.process.wait()
                rank.close()
            self._stop_store()
            self.selector.close()

    def _all(self) -> list[_Rank]:
        return self.members + self.newcomers + self.leaving

    def _has_left(self) -> LaunchError:
        return LaunchError(f"all ranks have left, as they were asked to; {self._describe_state()}", 130)

    def _ask_all_to_leave(self) -> None:
        self.is_asked, self.replacements = True, 0
        for rank in self.newcomers:
            rank.process.kill()
        for rank in self.members:
            rank.process.terminate()

    def _start_all(self) -> None:
        """With a store in which nobody has left anything."""
        self._stop_store()
        self.store, self.port = _start_store()
        for place in range(self.workers):
            self.members.append(self._start(place, "first"))
        if self.is_asked:  # while they were being started
            raise self._has_left()

    def _stop_store(self) -> None:
        if self.store is not None:
            self.store.kill()
            self.store.wait()

    def _start(self, place: int, kind: str) -> _Rank:
        mine, theirs = socket.socketpair()
        try:
            variables = {
                "RANK": str(place), "LOCAL_RANK": str(place), "WORLD_SIZE": str(self.workers), "LOCAL_WORLD_SIZE": str(self.workers),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
                VARIABLE: f"{os.getpid()} {theirs.fileno()} {place} {kind}"}
            process = _start.start(self.command, variables, [theirs.fileno()], None, fork=True)
        finally:
            theirs.close()
        rank = _Rank(place, process, mine, os.pidfd_open(process.pid))
        self.selector.register(mine, selectors.EVENT_READ, rank)
        self.selector.register(rank.ended, selectors.EVENT_READ, rank)
        return rank

    def _look(self) -> None:
        """Waits a moment for what ranks say and for their ends, and does what follows."""
        for key, _ in self.selector.select(_TICK):
            rank: _Rank = key.data
            if rank not in self._all():
                continue
            if key.fileobj == rank.ended:
                self._take_out(rank)
            elif not self._read(rank):
                self.selector.unregister(rank.control)
        self._kill_the_stopped()
        if self.members and all(rank.report is not None for rank in self.members):
            self._announce()

    def _read(self, rank: _Rank) -> bool:
        """False where its end has been closed."""
        try:
            came = rank.control.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            came = b""
        *lines, rank.unread = (rank.unread + came).split(b"\n")
        for line in lines:
            report = json.loads(line)
            self.checkpoint = report["checkpoint"] or self.checkpoint
            if "leaves" in report:
                self.members.remove(rank)
                self.leaving.append(rank)
                _log.warning("rank %d (process %d) has left, as it was asked to; %s", rank.place, rank.process.pid, self._describe_left())
                continue
            rank.report = report
            rank.said_at = time.monotonic()
            if rank in self.newcomers:
                self._tell_of_newcomers()
        return bool(came)

    def _take_out(self, rank: _Rank) -> None:
        """A rank whose process has ended. Raises LaunchError where that ends the job."""
        self._read(rank)  # what it said last
        code, was_member, has_left = rank.process.wait(), rank in self.members, rank in self.leaving
        self._forget(rank)
        if has_left:
            return None
        if code < 0:
            return self._lose(rank, signal.Signals(-code).name)
        if code > 0 and was_member:
            if self.epoch == 0 and (killed := next((other for other in self.members if (other.process.poll() or 0) < 0), None)):
                return self._take_out(killed)  # of which this one is the consequence
            raise LaunchError(f"rank {rank.place} ended with {code}; the other ranks were ended", code, rank.place)
        if code != 0:
            _log.warning("a replacement for rank %d ended with %d before it was let in", rank.place, code)
        self.finished += was_member
        return None

    def _describe_left(self) -> str:
        return "1 rank is left" if len(self.members) == 1 else f"{len(self.members)} ranks are left"

    def _lose(self, rank: _Rank, how: str) -> None:
        _log.warning("rank %d (process %d) was killed by %s; %s", rank.place, rank.process.pid, how, self._describe_left())
        words = f"rank {rank.place} was killed by {how}"
        if self.finished:
            self.failure = LaunchError(f"{words} when others had ended: what it does after its last step may be missing", 137, rank.place)
            return
        if not self.members:
            raise LaunchError(f"{words}, and no rank is left", 137, rank.place)
        has_another = self.replacements > 0
        self.replacements -= has_another
        if self.epoch == 0:
            if not has_another:
                raise LaunchError(f"{words} before all ranks had called motley.make_elastic, and no replacement is left", 137, rank.place)
            _log.warning("all begin again, as not all ranks had called motley.make_elastic")
            for other in self._all():
                other.process.kill()
                other.process.wait()
                self._forget(other)
            self._start_all()
        elif has_another:
            self.newcomers.append(self._start(rank.place, REPLACEMENT))

    def _forget(self, rank: _Rank) -> None:
        next(group for group in (self.members, self.newcomers, self.leaving) if rank in group).remove(rank)
        self.selector.unregister(rank.ended)
        with contextlib.suppress(KeyError):  # where its end of the connection was closed before
            self.selector.unregister(rank.control)
        rank.close()

    def _tell_of_newcomers(self) -> None:
        for rank in self.members:
            self._tell(rank, None)

    def _tell(self, rank: _Rank, words: Any) -> None:
        with contextlib.suppress(OSError):  # it has ended, of which its pidfd tells
            rank.control.sendall(json.dumps(words).encode() + b"\n")

    def _announce(self) -> None:
        """The next process group, to all members, who have left the one before. Raises LaunchError where too few waited long enough."""
        if not any(rank.report["has_state"] for rank in self.members if rank.report):
            raise LaunchError(f"no rank is left that had the weights: the last ones were killed while replacements were let in; "
                              f"{self._describe_state()}", 137)
        are_at_step = all(rank.report["at_step"] for rank in self.members if rank.report)
        let_in = [rank for rank in self.newcomers if rank.report is not None] if are_at_step else []
        count = len(self.members) + len(let_in) + self.finished
        if count < self.least and not self.is_enough:
            if not self.newcomers or time.monotonic() > self.deadline:
                raise LaunchError(self._describe_end())
            return
        if count < self.least:
            self.deadline = time.monotonic() + self.patience
        self.is_enough = count >= self.least
        self.members = sorted(self.members + let_in, key=lambda rank: rank.place)
        self.newcomers = [rank for rank in self.newcomers if rank not in let_in]
        self.epoch += 1
        for rank in self.members:
            rank.report = None
            self._tell(rank, {"epoch": self.epoch, "places": [member.place for member in self.members], "known": self.workers,
                              "is_enough": self.is_enough})
        if any(rank.report is not None for rank in self.newcomers):
            self._tell_of_newcomers()

    def _describe_end(self) -> str:
        waited = f"no replacement came within {self.patience:g} s" if self.newcomers else "no replacement is left"
        return f"ranks left: {len(self.members)}, at least {self.least} are wanted, and {waited}; {self._describe_state()}"

    def _describe_state(self) -> str:
        return (f"their state is in '{self.checkpoint}', from which the same command goes on" if self.checkpoint else
                "their state is lost, as the script gave motley.make_elastic no checkpoint that could be written")

    def _kill_the_stopped(self) -> None:
        """Ranks that others wait for in vain: stopped, or silent since one of the others left the process group."""
        now = time.monotonic()
        if now - self.looked_at < _TICK:
            return
        self.looked_at = now
        said = [(rank.said_at, rank.report["timeout"]) for rank in self.members if rank.report is not None]
        is_late = bool(said) and now > max(at + timeout for at, timeout in said)
        for rank in self.members:
            rank.stopped = rank.stopped + 1 if _is_stopped(rank.process.pid) else 0
            if rank.stopped >= _STOPPED or (is_late and rank.report is None):
                _log.warning("rank %d (process %d) does not answer and is killed", rank.place, rank.process.pid)
                rank.process.kill()
                rank.stopped = 0


def _start_store() -> tuple[Process, int]:
    """The store of the job's process groups and its port. It is a process of its own: its threads would make forks from this one unsafe."""
    port, say_port = os.pipe()

    def serve() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):  # which the launcher may be sent with all its processes; it ends this one
            signal.signal(number, signal.SIG_IGN)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(say_port, f"{store.port}\n".encode())
        while True:
            signal.pause()

    process = _start.fork_process(serve, "motley store", [say_port])
    os.close(say_port)
    with open(port, encoding="ascii") as said:
        line = said.readline()
    if not line:
        raise LaunchError(f"the process that has the ranks' store ended with {process.wait()}")
    return process, int(line)


def _is_stopped(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False
