"""How ranks of ``motley launch`` and ``motley run`` are started.

Ranks of the commands are forked from the launcher, which has imported PyTorch: they start in a moment, and what was imported is in memory
once. Those of ``motley.launch``, whose caller may have threads and devices that a fork would break, are new processes of Python, which
``_rank.py`` begins.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterable, Mapping, Sequence

PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


class ForkedProcess:
    """A process that was forked from this one, with what ``subprocess.Popen`` has of one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or minus the number of the signal that ended it; None while it runs."""
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end. Raises subprocess.TimeoutExpired."""
        if timeout is not None and self.poll() is None:
            ended = os.pidfd_open(self.pid)
            try:
                if not select.select([ended], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(sys.argv, timeout)
            finally:
                os.close(ended)
        code = self._reap(0)
        assert code is not None
        return code

    def _reap(self, flags: int) -> int | None:
        if self.returncode is None:
            with contextlib.suppress(ChildProcessError):  # a signal's handler has come first
                pid, status = os.waitpid(self.pid, flags)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = ForkedProcess | subprocess.Popen[bytes]


def start(command: Sequence[str], variables: Mapping[str, str], keep: Sequence[int], pipes: tuple[int, int] | None, *,
          fork: bool) -> Process:
    """A rank that runs a script with its arguments.

    Args:
        variables: of its environment, besides this process's. One thread computes where neither says ``OMP_NUM_THREADS``.
        keep: descriptors that it has, too.
        pipes: it writes a byte to the first one, and waits until nobody has the other end of the second one; None: it begins at once.
        fork: from this process, which has no other threads and uses no device.
    """
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), **variables}
    if fork:
        import torch._dynamo  # an optimizer's first step imports it otherwise, in each rank

        def begin() -> None:
            if "OMP_NUM_THREADS" not in os.environ:  # which was read when PyTorch was imported
                torch.set_num_threads(1)
            os.environ.update(variables)
            torch.default_generator.seed()
            if pipes is not None:
                wait_for_the_others(*pipes)
            run_script(command)

        return fork_process(begin, f"motley rank {variables['RANK']}", [*keep, *(pipes or ())])
    assert pipes is not None
    return subprocess.Popen([sys.executable, "-m", "motley._rank", *map(str, pipes), *command], env=os.environ | variables,
                            pass_fds=[*keep, *pipes])


def fork_process(begin: Callable[[], None], name: str, keep: Iterable[int]) -> ForkedProcess:
    """A process in which ``begin`` is all that happens. It ends with this one, has of its descriptors those of standard input and
    output and those to keep, and shows its first 15 characters as its name."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _leave_launcher(parent, name, {0, 1, 2, *keep})
            code = _call(begin)
        except BaseException:  # of what happens around a script: nothing of it may go on as the launcher
            traceback.print_exc()
        finally:
            os._exit(code)
    return ForkedProcess(pid)


def _leave_launcher(parent: int, name: str, keep: set[int]) -> None:
    """Of a process that was just forked: nothing is left of what the launcher has made for itself."""
    library = ctypes.CDLL(None)
    library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)
    library.prctl(_PR_SET_NAME, name.encode())
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in keep:
            with contextlib.suppress(OSError):  # that which the list was read from
                os.close(descriptor)
    for descriptor in keep:
        os.set_inheritable(descriptor, True)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) and number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
    for handler in logging.root.handlers[:]:
        logging.root.removeHandler(handler)
    logging.root.setLevel(logging.WARNING)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # as a new process has one of its own; Python's generator sees to that itself


def _call(begin: Callable[[], None]) -> int:
    """Does what an interpreter does from a script's first line to its end; the exit code."""
    code = 0
    try:
        try:
            begin()
        except BaseException:
            time.sleep(0)  # a call of Python, in which an interrupt is raised that came while the script's last one was in C++
            raise
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        code = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
    except BaseException as error:  # whatever the script raised
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        _call_whatever_comes(sys.excepthook, type(error), error, error.__traceback__)
    _call_whatever_comes(threading._shutdown)  # type: ignore[attr-defined]  # waits for threads that are no daemons
    _call_whatever_comes(atexit._run_exitfuncs)
    sys.last_type = sys.last_value = sys.last_traceback = None
    vars(sys.modules["__main__"]).clear()  # which closes files that the script left open
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code & 0xFF


def _call_whatever_comes(function: Callable[..., object], *arguments: object) -> None:
    """What it raises is shown, an interrupt, too: what an interpreter does at its end it does in any case."""
    try:
        function(*arguments)
    except BaseException:
        traceback.print_exc()


def wait_for_the_others(ready: int, wait: int) -> None:
    """Says that this rank is ready, and waits until the launcher lets all begin."""
    os.write(ready, b".")
    os.read(wait, 1)  # ends when the launcher closes it
    os.close(ready)
    os.close(wait)


def run_script(command: Sequence[str]) -> None:
    """Runs a script with its arguments in this process, as its module ``__main__``. Raises what it raises."""
    sys.argv = list(command)
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    main = types.ModuleType("__main__")
    main.__file__ = os.path.abspath(sys.argv[0])
    sys.modules["__main__"] = main
    with io.open_code(main.__file__) as file:
        text = file.read()
    exec(compile(text, sys.argv[0], "exec", dont_inherit=True), vars(main))  # of the script's own __future__
