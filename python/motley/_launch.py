"""Starts the ranks of a script on this machine, if asked at emulated speeds.

A speed is relative: 1 for the fastest worker, 0.25 for one that takes four times as long. A rank is slowed down from outside, by being
stopped whenever it has used more CPU time than its share of a processor, whatever it computes; so a script with plain
DistributedDataParallel and one with Motley are slowed down alike. Shares are such that all ranks together use half of the
processors at most: then none waits for another's processor, which a device of its own would not do either. Importing PyTorch is
not slowed down, nor are the worker processes of data loaders.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from . import _motley

_STARTED = 120.0  # seconds until every rank has imported PyTorch
_STARVED = 0.2  # of a rank's time, in which it wanted a processor and had none: more is no emulation (moments are made up for)
_GRACE = 10.0  # seconds that ranks have to end once one has failed


def main(words: Sequence[str]) -> int:
    """``motley launch``: the exit code."""
    parser = argparse.ArgumentParser(
        prog="motley launch", description="Start a script on several ranks of this machine, if asked at emulated speeds.",
        epilog="Example: motley launch --emulated-speeds 1,1,0.5,0.25 train.py --epochs 3",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, help="how many ranks; by default as many as there are speeds")
    parser.add_argument("--emulated-speeds", metavar="S,S,...", help="relative speed of each rank, such as 1,1,0.5,0.25")
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    given = parser.parse_args(words)
    speeds = None
    if given.emulated_speeds is not None:
        try:
            speeds = [float(word) for word in given.emulated_speeds.split(",")]
        except ValueError:
            parser.error(f"--emulated-speeds is '{given.emulated_speeds}'; numbers with commas between them are accepted")
    workers = given.workers if given.workers is not None else len(speeds or [])
    if workers < 1:
        parser.error("say --workers or --emulated-speeds")
    if not os.path.isfile(given.script):
        parser.error(f"there is no script '{given.script}'")
    try:
        return run([given.script, *given.arguments], workers, speeds)
    except ValueError as problem:
        parser.error(str(problem))


def run(command: Sequence[str], workers: int, emulated_speeds: Sequence[float] | None = None) -> int:
    """Runs a script with its arguments on so many ranks until all have ended; 0, or the code of the first that failed.

    Raises:
        ValueError: speeds that are not positive, or not one a rank.
    """
    rates = _rates(workers, emulated_speeds) if emulated_speeds is not None else None
    port = _free_port()
    ready, say_ready = os.pipe()  # a byte of each rank that has imported PyTorch
    wait, go = os.pipe()  # closed when they may begin
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(workers):
            environment = os.environ | {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": str(workers),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            environment.setdefault("OMP_NUM_THREADS", "1")
            ranks.append(subprocess.Popen([sys.executable, "-m", "motley._launch", str(say_ready), str(wait), *command],
                                          env=environment, pass_fds=[say_ready, wait]))
        if not _wait_until_ready(ready, ranks):
            return _end(ranks) or 1
        pacer = _motley.ProcessPacer([(rank.pid, rate) for rank, rate in zip(ranks, rates)]) if rates is not None else None
        os.close(go)
        go = -1
        return _watch(ranks, pacer)
    finally:
        for process in ranks:
            if process.returncode is None:
                process.kill()
                process.wait()
        for pipe in (ready, say_ready, wait, go):
            if pipe >= 0:
                os.close(pipe)


def _rates(workers: int, speeds: Sequence[float]) -> list[float]:
    """The processors that each rank may use: in proportion to the speeds, half of all together, one each at most."""
    if len(speeds) != workers:
        raise ValueError(f"{len(speeds)} emulated speeds for {workers} ranks; one a rank is accepted")
    if not all(0 < speed < float("inf") for speed in speeds):
        raise ValueError(f"emulated speeds {list(speeds)}; numbers above 0 are accepted")
    processors = len(os.sched_getaffinity(0))
    slower = max(2 * sum(speeds) / processors, max(speeds))
    return [speed / slower for speed in speeds]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(ready: int, ranks: list[subprocess.Popen[bytes]]) -> bool:
    """Whether each rank has imported PyTorch and is about to run the script."""
    os.set_blocking(ready, False)
    deadline, count = time.monotonic() + _STARTED, 0
    while count < len(ranks):
        try:
            count += len(os.read(ready, len(ranks)))
        except BlockingIOError:
            pass
        if any(_peek(rank) is not None for rank in ranks):
            return False
        if time.monotonic() > deadline:
            print(f"motley: error: {len(ranks) - count} of {len(ranks)} ranks did not start within {_STARTED:.0f} s", file=sys.stderr)
            return False
        time.sleep(0.01)
    return True


def _watch(ranks: list[subprocess.Popen[bytes]], pacer: Any) -> int:
    """Until all have ended, or one has failed."""
    began = time.monotonic()
    starved = [_motley.seconds_without_processor(rank.pid) for rank in ranks]
    waited, interrupted = [0.0] * len(ranks), False
    try:
        while None in (codes := [_peek(rank) for rank in ranks]) and not any(codes):
            if pacer is not None:
                for index, rank in enumerate(ranks):
                    waited[index] = max(waited[index], _motley.seconds_without_processor(rank.pid) - starved[index])
            time.sleep(0.05)
    except KeyboardInterrupt:
        interrupted = True  # and so are the ranks
    finally:
        if pacer is not None:
            pacer.stop()
    code = _end(ranks, interrupted)
    elapsed = time.monotonic() - began
    for number, seconds in enumerate(waited):
        if not code and elapsed > 1 and seconds > _STARVED * elapsed:
            print(f"motley: error: rank {number} wanted a processor and had none for {100 * seconds / elapsed:.0f} % of the time: this "
                  f"machine was busy otherwise, and the speeds were not those that were asked for ({100 * _STARVED:.0f} % is accepted)",
                  file=sys.stderr)
            code = 1
    return code


def _peek(rank: subprocess.Popen[bytes]) -> int | None:
    """How a rank has ended, 0 where it did well; None while it runs. It keeps its number, so that no other process is paced."""
    ended = os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if ended is None else ended.si_status


def _end(ranks: list[subprocess.Popen[bytes]], interrupted: bool = False) -> int:
    """Ends those that still run; the code of the first that failed by itself, or that of an interrupted command."""
    failed = next(((index, rank.returncode) for index, rank in enumerate(ranks) if rank.poll()), None)
    deadline = time.monotonic() + _GRACE
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    for index, rank in enumerate(ranks):
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()
        if failed is None and rank.returncode:
            failed = (index, rank.returncode)
    if interrupted:
        return 130
    if failed is None:
        return 0
    index, code = failed
    how = f"ended with {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
    print(f"motley: error: rank {index} {how}; the other ranks were ended", file=sys.stderr)
    return code if code > 0 else 128 - code


def _follow() -> None:
    """Of a rank: ends with its launcher, which alone could let it go on where it is stopped."""
    import ctypes

    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":  # a rank: two pipes, the script and its arguments
    _follow()
    import torch._dynamo  # noqa: F401  (an optimizer's first step imports it otherwise)

    _ready, _wait = int(sys.argv[1]), int(sys.argv[2])
    os.write(_ready, b".")
    os.read(_wait, 1)  # ends when the launcher closes it
    os.close(_ready)
    os.close(_wait)
    sys.argv = sys.argv[3:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
