"""A rank's connection to the launcher of an elastic job, ``motley run --elastic``, which knows who is there.

A line of JSON at a time: the rank says that it has left its process group, and is told the next one, or that a replacement waits. A rank
that goes for good says that instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import select
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import FakeProcessGroup, Store, TCPStore

VARIABLE = "MOTLEY_ELASTIC"  # the launcher's process, the connection's descriptor, the rank's place, and how it came in
REPLACEMENT = "replacement"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Announcement:
    """Of the next process group.

    Attributes:
        epoch: its number.
        places: of its ranks, in their order: the number that each keeps as long as it is there.
        known: how many places there are.
        is_enough: whether the ranks are as many as the user wants at least.
    """

    epoch: int
    places: list[int]
    known: int
    is_enough: bool


class Launcher:
    """The rank's end."""

    def __init__(self, descriptor: int, place: int, kind: str) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lines = self._socket.makefile("rb", buffering=0)  # what has come and was not read is seen in the socket
        self.place, self.is_replacement = place, kind == REPLACEMENT

    def connect_store(self) -> Store:
        """The launcher's, which no lost rank takes with it."""
        return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)

    def has_replacement(self) -> bool:
        """Whether one waits to be let in."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def has_ended(self, *, wait: bool = False) -> bool:
        """Whether the launcher has; waits for that if wanted."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(None if wait else 0))

    def outlive(self) -> None:
        """From now on the launcher's end is not that of this process."""
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)

    def leave(self, checkpoint: str | None) -> None:
        """Says that this rank ends, as it was asked to."""
        with contextlib.suppress(OSError):  # the launcher has ended
            self._socket.sendall(json.dumps({"leaves": True, "checkpoint": checkpoint}).encode() + b"\n")

    def regroup(self, *, at_step: bool, has_state: bool, timeout: timedelta, checkpoint: str | None) -> Announcement:
        """Says that this rank has left its process group, between two steps or at the end of one, and whether it has the weights that are
        trained; waits for the next.

        Raises:
            RuntimeError: there will be none.
        """
        report = {"at_step": at_step, "has_state": has_state, "timeout": timeout.total_seconds(), "checkpoint": checkpoint}
        self._socket.sendall(json.dumps(report).encode() + b"\n")
        while line := self._lines.readline():
            if words := json.loads(line):
                self.is_replacement = False
                return Announcement(**words)
        raise RuntimeError("motley run has ended")


@functools.cache
def find_launcher() -> Launcher | None:
    """None where ``motley run --elastic`` has not started this process; one that a rank has started is none of the job's."""
    if VARIABLE not in os.environ:
        return None
    launcher, descriptor, place, kind = os.environ[VARIABLE].split()
    if int(launcher) != os.getppid():
        return None
    return Launcher(int(descriptor), int(place), kind)


def make_group_until_let_in(options: Any) -> Any:
    """For a replacement before ``motley.make_elastic``: a process group that answers at once, with what it gave."""
    group = FakeProcessGroup._create_internal(options.group_rank, options.group_size)
    group.options._timeout = options.timeout
    return group
