"""motley launch: ranks, their ends, and speeds that are emulated from outside."""
import importlib.util
import inspect
import json
import operator
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
import warnings

import slurm_cluster

import motley
from motley import _launch, _start
from ranks import refuse, wait_until

TIMES = """
import json, os, pathlib, sys, time
rank = int(os.environ["RANK"])
folder = pathlib.Path(sys.argv[1])
(folder / f"{rank}.ready").touch()
while len(list(folder.glob("*.ready"))) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.001)
began, cpu = time.monotonic(), time.process_time()
while time.process_time() - cpu < 0.5:
    pass
(folder / f"{rank}.json").write_text(json.dumps([time.monotonic() - began, time.process_time() - cpu]))
"""

FACTS = """
import atexit, json, logging, multiprocessing, os, pathlib, random, signal, sys, threading, time
import numpy, torch
rank = os.environ["RANK"]
folder = pathlib.Path(sys.argv[1])
handlers = {number.name: str(signal.getsignal(number)) for number in signal.valid_signals() if isinstance(number, signal.Signals)}
files = [os.readlink(f"/proc/self/fd/{number}").split(":")[0] for number in range(3, 64) if os.path.exists(f"/proc/self/fd/{number}")]
facts = {"handlers": {name: text.split(" at ")[0] for name, text in handlers.items()}, "files": files, "threads": threading.active_count(),
         "torch": [torch.get_num_threads(), torch.get_num_interop_threads()], "path": sys.path[0],
         "name": __name__, "file": __file__, "argv": sys.argv, "process": multiprocessing.current_process().name,
         "variables": sorted(os.environ), "logging": [logging.root.level, len(logging.root.handlers)],
         "random": [random.random(), numpy.random.random(), torch.initial_seed()], "parent": os.getppid()}
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent once the other rank has ended: each comes to its own end
(folder / f"facts-{rank}").write_text(json.dumps(facts))
while len(list(folder.glob("facts-*"))) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.01)
def write_later():
    time.sleep(0.2)
    (folder / f"thread-{rank}").touch()
threading.Thread(target=write_later).start()
atexit.register(lambda: (folder / f"exit-{rank}").touch())
left_open = open(folder / f"open-{rank}", "w")
left_open.write("written")
if len(sys.argv) > 2:
    sys.exit(sys.argv[2])
"""


class Launching(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def launch(self, script, *flags, arguments=()):
        file = self.folder / "script.py"
        file.write_text(script)
        return subprocess.run([sys.executable, "-m", "motley", "launch", *flags, file, *map(str, arguments)], cwd=self.folder,
                              capture_output=True, text=True, timeout=120, check=False)

    def test_ranks_find_each_other(self):
        done = self.launch("import sys, torch, torch.distributed as dist\n"
                           "dist.init_process_group('gloo')\n"
                           "total = torch.tensor([dist.get_rank() + 1])\n"
                           "dist.all_reduce(total)\n"
                           "sys.stdout.write(f'{sys.argv[1]} {total.item()}\\n')\n"
                           "dist.destroy_process_group()\n", "--workers", "2", arguments=["a b"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines(), ["a b 3"] * 2)

    def test_a_forked_rank_is_like_a_new_process(self):
        """One of the command, which forks, and one of a launcher in a process that may have threads, which does not."""
        facts = []
        for name in ("forked", "new"):
            folder = self.folder / name
            folder.mkdir()
            (self.folder / "script.py").write_text(FACTS)
            if name == "forked":
                done = self.launch(FACTS, "--workers", "2", arguments=[folder, "ended by itself"])
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("ended by itself\n", done.stderr)
            else:
                with self.assertRaisesRegex(motley.LaunchError, "ended with 1"):
                    _launch.run([str(self.folder / "script.py"), str(folder), "ended by itself"], 2)
            for rank in "01":
                self.assertEqual(sorted(path.name for path in folder.glob(f"*-{rank}")),
                                 [f"{what}-{rank}" for what in ("exit", "facts", "open", "thread")])
                self.assertEqual((folder / f"open-{rank}").read_text(), "written")
                told = json.loads((folder / f"facts-{rank}").read_text())
                facts.append(told | {"argv": told["argv"][2:]})
        for drawn in zip(*(told.pop("random") for told in facts)):
            self.assertEqual(len(set(drawn)), 4)
        parents = [told.pop("parent") for told in facts]
        self.assertEqual(parents[0], parents[1])
        for told in facts[1:]:
            self.assertEqual(told, facts[0])

    def test_one_that_fails_ends_the_others(self):
        done = self.launch("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(300)\n", "--workers", "3")
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertIn("rank 1 ended with 7; the other ranks were ended", done.stderr)

    def test_a_killed_rank_is_named(self):
        done = self.launch("import os, signal, time\nif os.environ['RANK'] == '0': os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(300)\n",
                           "--workers", "2")
        self.assertEqual(done.returncode, 128 + 9, done.stderr)
        self.assertIn("rank 0 was ended by SIGKILL", done.stderr)

    def test_emulated_speeds_slow_a_rank_down(self):
        """Lower bounds only: a busy machine is slower still."""
        done = self.launch(TIMES, "--emulated-speeds", "1,0.1", arguments=[self.folder])
        self.assertEqual(done.returncode, 0, done.stderr)
        rates = [speed / max(1, 2 * 1.1 / len(os.sched_getaffinity(0))) for speed in (1, 0.1)]
        for rank, rate in enumerate(rates):
            seconds, cpu = json.loads((self.folder / f"{rank}.json").read_text())
            self.assertGreater(seconds, 0.8 * (cpu - 0.1) / rate)

    def test_a_rank_that_could_not_have_its_speed(self):
        """A warning, or an error where that is wanted."""
        script = self.folder / "script.py"
        script.write_text("import time\ntime.sleep(1.5)\n")
        words = ["--emulated-speeds", "1,0.5", str(script)]
        with unittest.mock.patch.object(_launch, "STARVED", -1):
            with self.assertLogs("motley", "WARNING") as said:
                self.assertEqual(_launch.main(words), 0)
            self.assertRegex(said.output[0], "warning: rank 0 wanted a processor .* busy otherwise.* What was computed is right")
            starved = unittest.mock.patch.object(_launch, "run", return_value="rank 0 wanted a processor")
            with starved, self.assertLogs("motley", "ERROR") as said:
                self.assertEqual(_launch.main(["--strict", *words]), 1)
            self.assertIn("error: rank 0 wanted a processor", said.output[0])

    def test_wrong_flags(self):
        for flags, words in ((["--emulated-speeds", "1,fast"], "numbers with commas"), (["--emulated-speeds", "1,0"], "numbers above 0"),
                             (["--workers", "3", "--emulated-speeds", "1,1"], "2 emulated speeds for 3 ranks"), ([], "say --workers"),
                             (["--workers", "0"], "--workers is 0; a number from 1 on")):
            with self.subTest(flags):
                code, _, said = refuse(_launch.main, *flags, __file__)
                self.assertEqual(code, 2)
                self.assertIn(words, said)

    def test_an_interrupt_ends_the_ranks(self):
        script = self.folder / "script.py"
        script.write_text("import pathlib, os, time\npathlib.Path(os.environ['RANK']).touch()\ntime.sleep(300)\n")
        process = subprocess.Popen([sys.executable, "-m", "motley", "launch", "--workers", "2", script], cwd=self.folder,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        wait_until(lambda: all((self.folder / rank).exists() for rank in "01"))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 130, errors)

    def test_an_interrupt_may_come_at_any_line(self):
        """Whatever the launcher is at: its ranks are ended, its pipes are closed, and nothing else is raised."""
        started = []

        def start(command, variables, keep, pipes, *, fork):
            ready, wait = pipes
            started.append(subprocess.Popen(["bash", "-c", f"echo -n . >&{ready}; exec {ready}>&-; read <&{wait}; exec sleep 300"],
                                            pass_fds=pipes))
            return started[-1]

        def trace(frame, event, _):
            if frame.f_code is not _launch.run.__code__:
                return None
            if event == "line" and frame.f_lineno == line:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        first = _launch.run.__code__.co_firstlineno
        source = inspect.getsource(_launch.run).splitlines()
        begin, end = (next(number for number, text in enumerate(source, first) if text == word) for word in ("    try:", "    finally:"))
        lines = {line for _, _, line in _launch.run.__code__.co_lines() if line and begin < line < end}
        lines -= set(range(first + source.index("    except KeyboardInterrupt:"), end))  # the answer to an interrupt
        self.assertGreater(len(lines), 8)
        with unittest.mock.patch.object(_start, "start", start), unittest.mock.patch.object(_launch, "_PATIENCE", 0.01):
            for line in sorted(lines):
                with self.subTest(source[line - first].strip()):
                    before = set(os.listdir("/proc/self/fd"))
                    with self.assertRaises(KeyboardInterrupt):
                        sys.settrace(trace)
                        try:
                            _launch.run(["script.py"], 2, [1, 1], fork=False)
                        finally:
                            sys.settrace(None)
                    self.assertEqual(set(os.listdir("/proc/self/fd")), before)
                    self.assertTrue(all(process.poll() is not None for process in started))

    def test_a_script_is_as_python_runs_it(self):
        """By a relative name, from another folder later, and with annotations that are no texts."""
        (self.folder / "script.py").write_text("import os\nos.chdir('/')\ndef half(of: int): return of\n"
                                               "print(__file__, half.__annotations__, flush=True)\n")
        for words in ([], ["-m", "motley", "launch", "--workers", "1"]):
            done = subprocess.run([sys.executable, *words, "script.py"], cwd=self.folder, capture_output=True, text=True, timeout=240,
                                  check=False)
            self.assertEqual(done.stdout, f"{self.folder}/script.py {{'of': <class 'int'>}}\n", done.stderr)

    def test_a_function_that_ends_its_process(self):
        with self.assertRaisesRegex(motley.LaunchError, "rank 0 ended by sys.exit before its function returned"):
            motley.launch(sys.exit, (0,), workers=1)

    def test_a_signals_handler_may_reap_the_rank_that_is_waited_for(self):
        pid, wait = os.fork(), os.waitpid
        if pid == 0:
            os._exit(0)
        process = _start.ForkedProcess(pid)

        def interrupted(pid, flags):
            with unittest.mock.patch.object(os, "waitpid", wait):
                process.wait()
            return wait(pid, flags)

        with unittest.mock.patch.object(os, "waitpid", interrupted):
            self.assertEqual(process.wait(), 0)

    def test_no_script(self):
        done = subprocess.run([sys.executable, "-m", "motley", "launch", "--workers", "1", "nowhere.py"], cwd=self.folder,
                              capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no script 'nowhere.py'", done.stderr)


NOTEBOOK = """
import os, signal, sys, motley

FACTOR = 10

def cell(what):
    rank = int(os.environ["RANK"])
    if what == "sum":
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.tensor([rank + 1])
        dist.all_reduce(total)
        dist.destroy_process_group()
        return rank, FACTOR * total
    if what == "raise" and rank == 1:
        raise KeyError("the data set")
    if what == "die" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()

try:
    print(motley.launch(cell, [sys.argv[1]], workers=2))
except motley.LaunchError as problem:
    print(problem, problem.code, problem.rank, sep="\\n")
"""


class LaunchingAFunction(unittest.TestCase):
    def notebook(self, *words):
        """The code as a notebook runs it: in __main__, and of no file."""
        done = subprocess.run([sys.executable, "-", *words], input=NOTEBOOK, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    @unittest.skipUnless(importlib.util.find_spec("cloudpickle"), "cloudpickle is not installed")
    def test_results_of_a_notebooks_function(self):
        self.assertEqual(self.notebook("sum"), "[(0, tensor([30])), (1, tensor([30]))]\n")

    @unittest.skipUnless(importlib.util.find_spec("cloudpickle"), "cloudpickle is not installed")
    def test_the_traceback_of_a_rank(self):
        text = self.notebook("raise")
        self.assertTrue(text.startswith("rank 1 ended with 1; the other ranks were ended\n\nTraceback"), text)
        self.assertTrue(text.endswith("KeyError: 'the data set'\n\n1\n1\n"), text)

    @unittest.skipUnless(importlib.util.find_spec("cloudpickle"), "cloudpickle is not installed")
    def test_a_killed_rank(self):
        self.assertEqual(self.notebook("die"), "rank 1 was ended by SIGKILL; the other ranks were ended\n137\n1\n")

    def test_a_function_of_a_module_at_emulated_speeds(self):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*busy otherwise", RuntimeWarning)
            pids = motley.launch(os.getpid, emulated_speeds=[1, 0.5])
        self.assertEqual(len({*pids, os.getpid()}), 3)

    def test_without_cloudpickle(self):
        with unittest.mock.patch.dict("sys.modules", {"cloudpickle": None}):
            self.assertEqual(motley.launch(operator.add, (1, 2), workers=1), [3])
            function = lambda: None  # noqa: E731
            function.__module__ = "__main__"
            with self.assertRaisesRegex(ValueError, "lambda>' is of a notebook or script; accepted: .*pip install cloudpickle"):
                motley.launch(function, workers=1)

    def test_wrong_arguments(self):
        for options, words in (({}, "0 workers"), ({"workers": "x"}, "workers is 'x'; accepted: an integer"),
                               ({"workers": 1.5}, "workers is 1.5; accepted: an integer"),
                               ({"emulated_speeds": "x"}, "emulated_speeds is 'x'; accepted: a number"),
                               ({"emulated_speeds": ["a"]}, r"emulated_speeds is \['a'\]; accepted: a number above 0 for each rank"),
                               ({"workers": 2, "emulated_speeds": [1]}, "1 emulated speeds for 2 ranks"),
                               ({"workers": 1, "args": [threading.Lock()]}, "cannot be sent to processes")):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                motley.launch(os.getpid, **options)


ON_SLURM = """
import json, os, pathlib, signal, sys, torch, torch.distributed as dist, motley
dist.init_process_group("motley")
torch.manual_seed(dist.get_rank())
net = torch.nn.Linear(5, 1).double()
inputs = torch.randn(203, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
loader = motley.DataLoader(torch.utils.data.TensorDataset(torch.arange(203), inputs), 24, batch_split=[3, 3, 1, 1])
model = motley.weight_gradients(torch.nn.parallel.DistributedDataParallel(net), loader)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
used = []
for numbers, values in loader:
    if sys.argv[2] == "die" and dist.get_rank() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model(values).square().mean().backward()
    optimizer.step()
    used += numbers.tolist() if loader.samples else []
pathlib.Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps({
    "node": os.environ["SLURMD_NODENAME"], "local": os.environ["LOCAL_RANK"], "threads": os.environ["OMP_NUM_THREADS"], "used": used,
    "certificates": sorted(os.listdir(pathlib.Path(os.environ["MOTLEY_TLS_CA"]).parent)) if "MOTLEY_TLS_CA" in os.environ else [],
    "weight": net.weight.tolist()}))
"""


@unittest.skipIf(slurm_cluster.why_not(), slurm_cluster.why_not())
class LaunchingOnSlurm(unittest.TestCase):
    """A job on two kinds of nodes: one with two ranks of a processor each, and two with a rank of two processors each."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = slurm_cluster.SlurmCluster(nodes=3, cpus=2)
        cls.addClassCleanup(cls.cluster.stop)

    def run_job(self, what, *flags):
        folder = self.cluster.folder / what
        folder.mkdir()
        (folder / "train.py").write_text(ON_SLURM)
        written = subprocess.run([sys.executable, "-m", "motley", "launch", *flags, "--sbatch=--nodelist=n0 --ntasks=2",
                                  "--sbatch=--nodelist=n1,n2 --ntasks-per-node=1 --cpus-per-task=2", "train.py", folder, what], cwd=folder,
                                 capture_output=True, text=True, timeout=240, check=True).stdout
        done = subprocess.run(["sbatch", "--wait", "--output=output"], input=written, cwd=folder, env=self.cluster.environment,
                              capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual([file.name for file in folder.glob(".motley-*")], [])
        ranks = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
        return done.returncode, ranks, (folder / "output").read_text()

    def test_ranks_on_nodes_of_two_kinds(self):
        code, ranks, output = self.run_job("train")
        self.assertEqual(code, 0, output)
        self.assertEqual([(rank["node"], rank["local"], rank["threads"]) for rank in ranks],
                         [("n0", "0", "1"), ("n0", "1", "1"), ("n1", "0", "2"), ("n2", "0", "2")])
        self.assertEqual(sorted(number for rank in ranks for number in rank["used"]), list(range(203)))
        self.assertGreater(len(ranks[0]["used"]), 2 * len(ranks[3]["used"]))
        self.assertEqual([rank["weight"] for rank in ranks], 4 * [ranks[0]["weight"]])

    def test_ranks_know_each_other_by_certificates_of_the_job(self):
        code, ranks, output = self.run_job("certificates", "--certificates")
        self.assertEqual(code, 0, output)
        self.assertEqual([rank["certificates"] for rank in ranks], 4 * [["ca.pem", "job.key", "job.pem", "secret"]])
        self.assertEqual([rank["weight"] for rank in ranks], 4 * [ranks[0]["weight"]])

    def test_a_killed_rank_ends_the_job(self):
        code, ranks, output = self.run_job("die")
        self.assertNotEqual(code, 0)
        self.assertEqual(ranks, [])
        self.assertRegex(output, r"n2: task \d: Killed")

    def test_options_that_are_refused(self):
        for flags, words in ((["--sbatch=cpu"], "options of sbatch in one line"), (["--sbatch=--ntasks=2\n#SBATCH"], "in one line"),
                             (["--sbatch=--ntasks=2", "--workers=2"], "--sbatch says how many ranks there are"),
                             (["--workers=2", "--certificates"], "--certificates is for --sbatch")):
            code, output, said = refuse(_launch.main, *flags, __file__)
            self.assertEqual((code, output), (2, ""))
            self.assertIn(words, said)


if __name__ == "__main__":
    unittest.main()
