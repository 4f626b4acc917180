"""Processes that are the ranks of one process group, for tests: they start once a test class and run functions together, or, for
what ends them, each runs a script of its own."""
import atexit
import contextlib
import ctypes
import functools
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest

START = 180  # seconds in which a rank has started
CALL = 120  # and a call is answered
LATE = "it did not end"
AFTER_FAILURE = 30  # by the others once one has failed
PR_SET_PDEATHSIG = 1


def serve(rank, count, folder, pipe, backend):
    """A rank: runs what it is sent, and sends back what that gave, or how it failed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    multiprocessing.set_start_method("fork", force=True)  # for what it starts, as in a script
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if backend == "motley":
        import motley  # noqa: F401
    dist.init_process_group(backend, init_method=f"file://{folder}/rendezvous", rank=rank, world_size=count)
    pipe.send((True, None))
    while (call := pipe.recv()) is not None:
        function, arguments = call
        try:
            pipe.send((True, function(*arguments)))
        except BaseException as problem:  # it is the test that judges it
            pipe.send((False, (type(problem).__name__, str(problem), traceback.format_exc())))
    dist.destroy_process_group()


def refuse(main, *words):
    """One of the package's commands, called in this process: its exit code, and what it wrote to its output and to its errors."""
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            code = main(list(map(str, words)))
        except SystemExit as end:
            code = end.code
    return code, output.getvalue(), errors.getvalue()


class Failed(Exception):
    """What went wrong on a rank, as (rank, type's name, message, traceback)."""

    def __init__(self, failures):
        super().__init__("\n".join(f"rank {rank}: {trace}" for rank, _, _, trace in failures))
        self.failures = failures


class RanksTest(unittest.TestCase):
    """A test class whose tests run functions of their module on `count` ranks."""

    count, backend = 2, "gloo"
    is_first = True

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        import torch._dynamo  # which an optimizer imports otherwise, in each rank

        # The first class forks its ranks from this process, which has computed nothing yet; devices do not survive that.
        has_devices = bool(torch.version.cuda) or "MOTLEY_EMULATED" in os.environ
        is_first, RanksTest.is_first = RanksTest.is_first and not has_devices, False
        context = multiprocessing.get_context("fork" if is_first else "forkserver")
        if not is_first:
            context.set_forkserver_preload(["torch", "motley"])
        cls.ranks = []
        for rank in range(cls.count):
            mine, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, cls.count, cls.folder.name, theirs, cls.backend))
            process.start()
            theirs.close()
            cls.ranks.append((process, mine))
        cls.addClassCleanup(cls.stop)
        for _, pipe in cls.ranks:
            if not pipe.poll(START) or not pipe.recv()[0]:
                raise RuntimeError("a rank did not start")

    @classmethod
    def stop(cls):
        for process, pipe in cls.ranks:
            if process.is_alive():
                pipe.send(None)
        for process, _ in cls.ranks:
            process.join(AFTER_FAILURE)
            process.kill()
            process.join()

    def on_ranks(self, function, *arguments):
        """What function(*arguments) gave on each rank; Failed where it failed on some."""
        for _, pipe in self.ranks:
            pipe.send((function, arguments))
        pipes = {pipe: rank for rank, (_, pipe) in enumerate(self.ranks)}
        answers, failures, deadline = {}, [], time.monotonic() + CALL
        while len(answers) < self.count:
            came = multiprocessing.connection.wait(set(pipes) - set(answers), max(0, deadline - time.monotonic()))
            for pipe in came:
                is_good, answers[pipe] = pipe.recv()
                if not is_good:
                    failures.append((pipes[pipe], *answers[pipe]))
                    deadline = min(deadline, time.monotonic() + AFTER_FAILURE)
            if not came:
                silent = [(rank, "Silence", "no answer", "no answer") for pipe, rank in pipes.items() if pipe not in answers]
                raise Failed(sorted(failures + silent))
        if failures:
            raise Failed(sorted(failures))
        return [answers[pipe] for _, pipe in self.ranks]

    def refused_on_ranks(self, function, *arguments):
        """The message with which it failed on every rank, alike."""
        with self.assertRaises(Failed) as caught:
            self.on_ranks(function, *arguments)
        failures = caught.exception.failures
        self.assertEqual(len(failures), self.count, caught.exception)
        return [message for _, _, message, _ in failures]


def wait_until(condition, seconds=240):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.02)


def run_scripts(script, count, timeout=CALL, prefixes=None, fresh=False, arguments=(), **variables):
    """The exit codes, and what they wrote, of processes that run the same Python text as ranks of a group of their own.

    It finds RANK, WORLD_SIZE and INIT (for init_method) in its environment, and these variables. Each rank is forked from a process
    that has imported PyTorch and Motley, as importing takes most of the time, and ends as any Python does. With `fresh`, or `prefixes`,
    which are words before each command, it is a command of its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        named = {"WORLD_SIZE": count, "INIT": f"file://{folder}/rendezvous", "OMP_NUM_THREADS": 1} | variables
        environments = [{name: str(value) for name, value in ({"RANK": rank, "LOCAL_RANK": rank} | named).items()} for rank in range(count)]
        files = [str(pathlib.Path(folder, str(rank))) for rank in range(count)]
        words = list(map(str, arguments))
        if fresh or prefixes:
            codes = _run_commands(script, words, environments, files, prefixes or [()] * count, timeout)
        else:
            codes = _starter().run(script, words, environments, files, timeout)
        return [(code, pathlib.Path(file).read_text()) for code, file in zip(codes, files)]


def _run_commands(script, words, environments, files, prefixes, timeout):
    processes = []
    for prefix, environment, file in zip(prefixes, environments, files):
        with open(file, "w") as output:
            processes.append(subprocess.Popen([*prefix, sys.executable, "-c", script, *words], env=os.environ | environment, stdout=output,
                                              stderr=output))
    deadline, codes = time.monotonic() + timeout, []
    for process in processes:
        try:
            codes.append(process.wait(max(0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            codes.append(LATE)
    return codes


@functools.cache
def _starter():
    return Starter()


class Starter:
    """The process from which ranks are forked; it ends with this one."""

    def __init__(self):
        self._process = subprocess.Popen([sys.executable, "-c", "import ranks; ranks.start_ranks()"], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        atexit.register(self._process.communicate)

    def run(self, *call):
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def start_ranks():
    """The starter: a line of JSON in for each call, and a line with the exit codes out. In a rank it returns, or raises what that did."""
    import torch  # noqa: F401

    import motley  # noqa: F401
    for line in sys.stdin:
        script, words, environments, files, timeout = json.loads(line)
        if "DistributedDataParallel" in script or "optim" in script:
            import torch._dynamo  # noqa: F401  (which each rank would import)
        ranks = []
        for environment, file in zip(environments, files):
            rank = os.fork()
            if rank == 0:
                return _be_rank(script, words, environment, file)
            ranks.append(rank)
        print(json.dumps(_wait_for(ranks, timeout)), flush=True)


def _be_rank(script, words, environment, file):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update(environment)
    for number, opened in ((0, os.open(os.devnull, os.O_RDONLY)), (1, os.open(file, os.O_WRONLY | os.O_CREAT)), (2, 1)):
        os.dup2(opened, number)
    sys.argv = ["-c", *words]
    exec(compile(script, "<string>", "exec"), {"__name__": "__main__"})


def _wait_for(ranks, timeout):
    deadline, codes = time.monotonic() + timeout, []
    for rank in ranks:
        ended = os.pidfd_open(rank)
        if is_late := not select.select([ended], [], [], max(0, deadline - time.monotonic()))[0]:
            os.kill(rank, signal.SIGKILL)
        os.close(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
        codes.append(LATE if is_late else code)
    return codes
