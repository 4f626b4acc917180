"""Processes that are the ranks of one process group, for tests: they start once a test class and run functions together, or, for
what ends them, each runs a script of its own."""
import ctypes
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest

START = 60  # seconds in which a rank has started
CALL = 120  # and a call is answered
AFTER_FAILURE = 5  # by the others once one has failed
PR_SET_PDEATHSIG = 1


def serve(rank, count, folder, pipe, backend):
    """A rank: runs what it is sent, and sends back what that gave, or how it failed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
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


class Failed(Exception):
    """What went wrong on a rank, as (rank, type's name, message, traceback)."""

    def __init__(self, failures):
        super().__init__("\n".join(f"rank {rank}: {trace}" for rank, _, _, trace in failures))
        self.failures = failures


class RanksTest(unittest.TestCase):
    """A test class whose tests run functions of their module on `count` ranks."""

    count, backend = 2, "gloo"

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        context = multiprocessing.get_context("spawn")
        cls.ranks = []
        for rank in range(cls.count):
            mine, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, cls.count, cls.folder.name, theirs, cls.backend))
            process.start()
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


def run_scripts(script, count, timeout=CALL, prefixes=None, **variables):
    """The exit codes, and what they wrote, of processes that run the same Python text as ranks of a group of their own.

    It finds RANK, WORLD_SIZE and INIT (for init_method) in its environment, and these variables. `prefixes` are words before each command.
    """
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(count):
            named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "INIT": f"file://{folder}/rendezvous", "OMP_NUM_THREADS": 1}
            file = pathlib.Path(folder, str(rank)).open("w+")
            environment = os.environ | {name: str(value) for name, value in (named | variables).items()}
            command = [*(prefixes[rank] if prefixes else ()), sys.executable, "-c", script]
            started.append((subprocess.Popen(command, env=environment, stdout=file, stderr=file), file))
        deadline = time.monotonic() + timeout
        ends = []
        for process, file in started:
            try:
                code = process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = "it did not end"
            file.seek(0)
            ends.append((code, file.read()))
            file.close()
        return ends
