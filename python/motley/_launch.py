"""Starts the ranks of a script on this machine, if asked at emulated speeds, or writes what Slurm starts them by.

A speed is relative: 1 for the fastest worker, 0.25 for one that takes four times as long. A rank is slowed down from outside, by being
stopped whenever it has used more CPU time than its share of a processor, whatever it computes; so a script with plain
DistributedDataParallel and one with Motley are slowed down alike. Shares are such that all ranks together use half of the
processors at most: then none waits for another's processor, which a device of its own would not do either. Importing PyTorch is
not slowed down, nor are the worker processes of data loaders.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import logging
import numbers
import os
import pickle
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import _motley, _start
from ._arguments import CommandParser, log_level
from ._run_directory import STARVED
from ._start import Process

_STARTED = 120.0  # seconds until every rank has imported PyTorch
_GRACE = 10.0  # seconds that ranks have to end once one has failed
_PATIENCE = 2.0  # and, once interrupted, before they are told again, and then ended
_log = logging.getLogger("motley")


class LaunchError(RuntimeError):
    """Ranks did not do what they were started for.

    Attributes:
        code: the exit code that says so.
        rank: the one that failed first; None where it was no rank.
    """

    def __init__(self, message: str, code: int = 1, rank: int | None = None) -> None:
        super().__init__(message)
        self.code, self.rank = code, rank


def main(words: Sequence[str], *, fork: bool = False) -> int:
    """``motley launch``: the exit code. ``fork`` is that of ``run``."""
    parser = CommandParser(
        "launch", "Start a script on several ranks of this machine, if asked at emulated speeds, or print a batch script that starts them "
        "on heterogeneous nodes of Slurm.",
        """examples:
  motley launch --emulated-speeds 1,1,0.5,0.25 train.py --epochs 3
  motley launch --sbatch='--partition=a100 --nodes=1 --ntasks-per-node=4 --gpus-per-node=4' \\
                --sbatch='--partition=cpu --ntasks=8 --cpus-per-task=16' train.py | sbatch""")
    parser.add_argument("--workers", metavar="INT", type=int, help="how many ranks; default: as many as there are speeds")
    parser.add_argument("--emulated-speeds", metavar="NUMBER,...", help="relative speed of each rank, such as 1,1,0.5,0.25")
    parser.add_argument("--strict", action="store_true", help="with --emulated-speeds: fail where a rank could not have its speed, as this "
                        "machine was busy otherwise; else that is a warning")
    parser.add_argument("--sbatch", metavar="TEXT", action="append", help="print a batch script instead, in which these are the options "
                        "of sbatch, a task a rank; once for each kind of nodes")
    parser.add_argument("--certificates", action="store_true", help="with --sbatch: make a CA and a certificate for the job, by which its "
                        "ranks know each other besides the secret (needs openssl 3)")
    given = read_words(parser, words)
    if given.certificates and not given.sbatch:
        parser.error("--certificates is for --sbatch; on one machine nobody else reaches the ranks")
    if given.sbatch:
        if given.workers is not None or given.emulated_speeds is not None:
            parser.error("--sbatch says how many ranks there are; --workers and --emulated-speeds are for this machine")
        try:
            sys.stdout.write(make_batch_script(given.sbatch, [given.script, *given.arguments], given.certificates))
        except ValueError as problem:
            parser.error(str(problem))
        return 0
    speeds = None
    if given.emulated_speeds is not None:
        try:
            speeds = [float(word) for word in given.emulated_speeds.split(",")]
        except ValueError:
            parser.error(f"--emulated-speeds is '{given.emulated_speeds}'; numbers with commas between them are accepted")
    workers = given.workers if given.workers is not None else len(speeds or [])
    if given.workers is None and speeds is None:
        parser.error("say --workers, --emulated-speeds or --sbatch")
    if workers < 1:
        parser.error(f"--workers is {workers}; a number from 1 on is accepted")
    logging.basicConfig(format="motley: %(message)s", level=log_level(given))
    try:
        starved = run([given.script, *given.arguments], workers, speeds, fork=fork)
        if starved and given.strict:
            raise LaunchError(starved)
        if starved:
            _log.warning("warning: %s. What was computed is right, its times are not", starved)
    except ValueError as problem:
        parser.error(str(problem))
    except LaunchError as problem:
        _log.error("error: %s", problem)
        return problem.code
    except KeyboardInterrupt:
        return 130
    return 0


def read_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """The flags of a command that starts a script, and at the end ``script``, a file that is there, and its ``arguments``."""
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    given = parser.parse_args(words)
    if not os.path.isfile(given.script):
        parser.error(f"there is no script '{given.script}'")
    return given


# The script runs on the first node of the first component, where rank 0 is, too. A task finds its place among all of them by Slurm's
# variables; the port is below those that systems hand out by themselves, and another for each of the jobs that a node may have.
_BATCH_SCRIPT = """\
#!/bin/bash
{options}
set -euo pipefail
export MASTER_ADDR="$(hostname)" MASTER_PORT="$((15000 + SLURM_JOB_ID % 15000))"
own="$SLURM_SUBMIT_DIR/.motley-job-$SLURM_JOB_ID"  # what only this job has, and its ranks on all hosts read
trap 'rm -rf "$own"' EXIT
(umask 077 && mkdir "$own")
if [ -z "${{MOTLEY_SECRET_FILE:-}}" ]; then  # by which ranks of several hosts know each other
  export MOTLEY_SECRET_FILE="$own/secret"
  (umask 077 && head -c 32 /dev/urandom | base64 >"$MOTLEY_SECRET_FILE")
fi
{certificates}rank=(bash -c '
  export RANK="$SLURM_PROCID" WORLD_SIZE="$SLURM_STEP_NUM_TASKS" LOCAL_RANK="$SLURM_LOCALID" OMP_NUM_THREADS="${{OMP_NUM_THREADS:-$1}}"
  exec "${{@:2}}"' bash)
command=({command})
srun {steps}
"""


# The CA's key is gone once it has signed.
_CERTIFICATES = """\
export MOTLEY_TLS_CERTIFICATE="$own/job.pem" MOTLEY_TLS_KEY="$own/job.key" MOTLEY_TLS_CA="$own/ca.pem"
make=(openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365)
"${make[@]}" -subj "/CN=CA of job $SLURM_JOB_ID" -keyout "$own/ca.key" -out "$MOTLEY_TLS_CA"
"${make[@]}" -subj "/CN=job $SLURM_JOB_ID" -keyout "$MOTLEY_TLS_KEY" -out "$MOTLEY_TLS_CERTIFICATE" \\
  -CA "$MOTLEY_TLS_CA" -CAkey "$own/ca.key" -addext subjectAltName=URI:motley:tenant/local -addext basicConstraints=critical,CA:FALSE
rm "$own/ca.key"
"""


def make_batch_script(components: Sequence[str], command: Sequence[str], certificates: bool = False) -> str:
    """What ``sbatch`` takes to start a script with its arguments on nodes of several kinds: a heterogeneous job, a task a rank.

    Args:
        components: for each kind of nodes the options of ``sbatch``, such as ``"--partition=cpu --nodes=2 --ntasks-per-node=8"``. The first
            has rank 0, and the options that are of the whole job.
        command: the script and its arguments. Nodes have them, and this Python, under the same path.
        certificates: whether the job has a CA and a certificate of its own.

    Raises:
        ValueError: options that cannot stand in a batch script.
    """
    lines: list[str] = []
    steps = []
    for number, options in enumerate(components):
        if not options.startswith("-") or not options.isprintable() or "#" in options:
            raise ValueError(f"--sbatch is {options!r}; options of sbatch in one line are accepted, such as "
                             "--sbatch='--partition=cpu --ntasks=8'")
        lines += ["#SBATCH hetjob"] if lines else [f"#SBATCH --job-name={shlex.quote(Path(command[0]).stem)}"]
        lines.append(f"#SBATCH {options}")
        step = [f"--het-group={number}"] if len(components) > 1 else []
        processors = re.search(r"(?:^|\s)(?:--cpus-per-task[=\s]|-c\s*)(\d+)(?:\s|$)", options)
        if processors:
            step.append(f"--cpus-per-task={processors[1]}")  # which srun does not take from the job
        threads = processors[1] if processors else "1"
        steps.append(" ".join([*step, "--kill-on-bad-exit=1", '"${rank[@]}"', threads, '"${command[@]}"']))
    return _BATCH_SCRIPT.format(options="\n".join(lines), steps=" : ".join(steps), command=shlex.join([sys.executable, *command]),
                                certificates=_CERTIFICATES if certificates else "")


def launch(function: Callable[..., Any], args: Sequence[Any] = (), *, workers: int | None = None,
           emulated_speeds: Sequence[float] | None = None) -> list[Any]:
    """Calls a function on several ranks of this machine, each a process of its own, and returns what each rank returned, in rank order.

    ``torch.distributed.init_process_group("gloo")`` within the function makes the ranks a process group. What ranks print goes to
    standard output. A function, or a result, that is defined in a notebook or in the script itself needs the package cloudpickle.

    Args:
        function: called with ``args`` on each rank.
        workers: how many ranks; by default as many as there are speeds.
        emulated_speeds: relative speed of each rank, such as ``[1, 1, 0.5, 0.25]``; all run at this machine's where there are none.

    Raises:
        ValueError: speeds that are not positive, or not one a rank; a function that cannot be sent to other processes.
        LaunchError: a rank failed, with its traceback, or was killed; the others were ended.

    A RuntimeWarning says where a rank could not have its speed, as the machine was busy otherwise.
    """
    if not callable(function):
        raise ValueError(f"launch: {function!r} is no function; accepted: a function (a script is started by motley launch SCRIPT)")
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise ValueError(f"launch: args is {args!r}; accepted: a tuple of the function's arguments")
    if emulated_speeds is not None and not (isinstance(emulated_speeds, Sequence) and all(
            isinstance(speed, numbers.Real) for speed in emulated_speeds)):
        raise ValueError(f"launch: emulated_speeds is {emulated_speeds!r}; accepted: a number above 0 for each rank")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int)):
        raise ValueError(f"launch: workers is {workers!r}; accepted: an integer of at least 1")
    count = workers if workers is not None else len(emulated_speeds or [])
    if count < 1:
        raise ValueError(f"launch: {count} workers; accepted: workers from 1 on, or emulated_speeds")
    with tempfile.TemporaryDirectory(prefix="motley-launch-") as folder:
        Path(folder, "call").write_bytes(pickle.dumps((sys.path, _pickled(function, args))))
        try:
            if starved := run([str(Path(__file__).with_name("_call.py")), folder], count, emulated_speeds):
                warnings.warn(starved, RuntimeWarning, stacklevel=2)
        except LaunchError as problem:
            trace = Path(folder, f"{problem.rank}.error")
            if not trace.exists():
                raise
            raise LaunchError(f"{problem}\n\n{trace.read_text()}", problem.code, problem.rank) from None
        for rank in range(count):
            if not Path(folder, f"{rank}.result").exists():
                raise LaunchError(f"rank {rank} ended by sys.exit before its function returned; accepted: one that returns", 1, rank)
        return [pickle.loads(Path(folder, f"{rank}.result").read_bytes()) for rank in range(count)]


def _pickled(function: Callable[..., Any], args: Sequence[Any]) -> bytes:
    pickler = find_pickler()
    if pickler is pickle and getattr(function, "__module__", None) == "__main__":
        raise ValueError(f"launch: '{getattr(function, '__qualname__', function)}' is of a notebook or script; accepted: a function of a "
                         "module that can be imported, or any after pip install cloudpickle")
    try:
        pickled: bytes = pickler.dumps((function, tuple(args)))
    except (pickle.PicklingError, TypeError, AttributeError) as problem:
        raise ValueError(f"launch: function or args cannot be sent to processes ({problem}); accepted: what pickle takes") from problem
    return pickled


def find_pickler() -> Any:
    """The module cloudpickle, which also takes what a notebook defines, or pickle."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return pickle


def run(command: Sequence[str], workers: int, emulated_speeds: Sequence[float] | None = None, *, fork: bool = False) -> str:
    """Runs a script with its arguments on so many ranks until all have ended. What it returns says which rank could not have its speed;
    it is empty where all had theirs.

    Args:
        fork: whether ranks may be forked from this process, which has no other threads and uses no device.

    Raises:
        ValueError: speeds that are not positive, or not one a rank.
        LaunchError: a rank failed.
        KeyboardInterrupt: Ctrl-C, after the ranks have ended.
    """
    rates = _rates(workers, emulated_speeds) if emulated_speeds is not None else None
    _log.info("starting %s%s", "1 rank" if workers == 1 else f"{workers} ranks", "" if rates is None else
              f"; at emulated speeds they have {', '.join(f'{rate:.2g}' for rate in rates)} of a processor")
    port = _free_port()
    ready, say_ready = _open_pipe()  # a byte of each rank that has imported PyTorch
    wait, go = _open_pipe()  # closed when they may begin
    ranks: list[Process] = []
    try:
        for rank in range(workers):
            variables = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": str(workers),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            if emulated_speeds is not None:
                variables["MOTLEY_EMULATED_SPEED"] = f"{emulated_speeds[rank]:g}"  # for the run directory
            ranks.append(_start.start(command, variables, [], (say_ready.fileno(), wait.fileno()), fork=fork))
        _wait_until_ready(ready, ranks)
        pacer = _motley.ProcessPacer([(rank.pid, rate) for rank, rate in zip(ranks, rates)]) if rates is not None else None
        go.close()
        return _watch(ranks, pacer)
    except KeyboardInterrupt:
        interrupt(ranks)
        raise
    finally:
        for process in ranks:
            if process.returncode is None:
                process.kill()
                process.wait()
        for end in (ready, say_ready, wait, go):
            end.close()


def _open_pipe() -> tuple[io.FileIO, io.FileIO]:
    """The end to read from and that to write to. Each knows whether it is closed, so that an interrupt may come at any time."""
    reading, writing = os.pipe()
    return io.FileIO(reading, "r"), io.FileIO(writing, "w")


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
    """For the ranks' store, which listens there once they have begun: below the ports that the system hands out by itself, so that nobody
    has it by then."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port := random.SystemRandom().randrange(15000, 30000)))
            return port


def _wait_until_ready(ready: io.FileIO, ranks: list[Process]) -> None:
    """Until each rank has imported PyTorch and is about to run the script."""
    os.set_blocking(ready.fileno(), False)
    deadline, count = time.monotonic() + _STARTED, 0
    while count < len(ranks):
        count += len(ready.read(len(ranks)) or b"")
        if any(_peek(rank) is not None for rank in ranks):
            _end(ranks)
            raise LaunchError("a rank ended before it began")
        if time.monotonic() > deadline:
            raise LaunchError(f"{len(ranks) - count} of {len(ranks)} ranks did not start within {_STARTED:.0f} s")
        time.sleep(0.01)


def _watch(ranks: list[Process], pacer: Any) -> str:
    """Until all have ended, or one has failed. Returns what ``run`` does."""
    began = time.monotonic()
    starved = [_motley.seconds_without_processor(rank.pid) for rank in ranks]
    waited = [0.0] * len(ranks)
    try:
        while None in (codes := [_peek(rank) for rank in ranks]) and not any(codes):
            if pacer is not None:
                for index, rank in enumerate(ranks):
                    waited[index] = max(waited[index], _motley.seconds_without_processor(rank.pid) - starved[index])
            time.sleep(0.05)
    finally:
        if pacer is not None:
            pacer.stop()
    _end(ranks)
    elapsed = time.monotonic() - began
    for number, seconds in enumerate(waited):
        if elapsed > 1 and seconds > STARVED * elapsed:
            share = f"{100 * seconds / elapsed:.1f} % of the time (at most {100 * STARVED:.0f} % is accepted)"
            return (f"rank {number} wanted a processor and had none for {share}: this machine was busy otherwise, and the speeds were "
                    "not those asked for")
    return ""


def _peek(rank: Process) -> int | None:
    """How a rank has ended, 0 where it did well; None while it runs. It keeps its number, so that no other process is paced."""
    ended = os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if ended is None else ended.si_status


def interrupt(ranks: list[Process]) -> None:
    """Ends them as Ctrl-C does, which in a terminal has reached them, too."""
    _wait_for_all(ranks, _PATIENCE)
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(signal.SIGINT)
    _wait_for_all(ranks, _PATIENCE)
    stop(ranks)


def stop(ranks: list[Process]) -> None:
    """Ends those that still run."""
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    _wait_for_all(ranks, _GRACE)
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
            rank.wait()


def _wait_for_all(ranks: list[Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for rank in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.wait(max(0.0, deadline - time.monotonic()))


def _end(ranks: list[Process]) -> None:
    """Ends those that still run. Raises LaunchError about the first that failed, by itself if there is one."""
    failed = next((index for index, rank in enumerate(ranks) if rank.poll()), None)
    stop(ranks)
    if failed is None:
        failed = next((index for index, rank in enumerate(ranks) if rank.returncode), None)
    code = 0 if failed is None else ranks[failed].wait()
    if code == 0:
        return
    how = f"ended with {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
    raise LaunchError(f"rank {failed} {how}; the other ranks were ended", code if code > 0 else 128 - code, failed)
