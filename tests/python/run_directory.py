"""The run directory of a script: what it holds at the end, after a failure, and of a run that goes on."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

from ranks import run_scripts, wait_until

SCRIPT = """
import os, resource, sys, time, torch, torch.distributed as dist, motley
from torch.nn.parallel import DistributedDataParallel as DDP
folder, steps, first, last_words = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
dist.init_process_group("gloo", init_method=os.environ.get("INIT", "env://"), rank=int(os.environ["RANK"]), world_size=2)
data = torch.utils.data.TensorDataset(torch.arange(120.0).unsqueeze(1))
loader = motley.DataLoader(data, 24, batch_split=[3, 1], run_directory=folder)
net = torch.nn.Linear(1, 1)
model = motley.weight_gradients(DDP(net), loader)
if first:
    loader.load_state_dict({"version": 1, "seed": 0, "shuffle": True, "size": 120, "epoch": first // 5, "cursor": first % 5 * 24,
                            "step": first, "batch_split": None})
if last_words == ["small disk"]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500))
number = first
while number < first + steps:
    for inputs, in loader:
        loss = model(inputs).square().mean()
        loss.backward()
        loader.record(inputs.mean() + 0 * loss)  # so that the test knows what comes
        time.sleep(float(os.environ.get("OPTIMIZER_SECONDS", 0)) * dist.get_rank())
        number += 1
        if number == first + steps:
            break
if last_words and last_words != ["small disk"] and dist.get_rank() == 0:
    raise ValueError(last_words[0])
dist.barrier()
del model
dist.destroy_process_group()
"""

ALONE = """
import sys, torch, motley
loader = motley.DataLoader(torch.arange(120.0), 24, run_directory=sys.argv[1])
for batch in loader:
    loader.record(batch.mean())
"""

INTERRUPTED = """
import ctypes, functools, sys, torch, torch.distributed as dist, motley
dist.init_process_group("gloo")
loader = motley.DataLoader(torch.utils.data.TensorDataset(torch.arange(120.0).unsqueeze(1)), 24, run_directory=sys.argv[1])
interrupt = ctypes.pythonapi.PyErr_SetInterrupt
interrupt.restype = functools.partial(int, "no number")  # which raises, before Python looks whether there was an interrupt
for inputs, in loader:
    interrupt()
"""


class RunDirectory(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train(self, *words, **variables):
        """The exit code of the first rank that failed, or 0, and what both wrote."""
        codes, texts = zip(*run_scripts(SCRIPT, 2, arguments=[self.folder / "run", *words], **variables))
        return next(filter(None, codes), 0), "".join(texts)

    def run_file(self):
        return json.loads((self.folder / "run/run.json").read_text())

    def lines(self):
        return [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()]

    def test_a_folder_of_something_else(self):
        (self.folder / "run").mkdir()
        (self.folder / "run/thesis.tex").write_text("text")
        code, text = self.train(1, 0)
        self.assertEqual(code, 1)
        for rank in range(2):
            self.assertRegex(text, rf"\[rank{rank}\]: ValueError: rank 0: run_directory is '.*run', which holds 'thesis\.tex', of no run")
        self.assertEqual([file.name for file in (self.folder / "run").iterdir()], ["thesis.tex"])

    def test_what_it_holds(self):
        code, text = self.train(10, 0)
        self.assertEqual(code, 0, text)
        self.assertNotIn("Warning", text)
        run = self.run_file()
        self.assertEqual((run["finished"], run["exit"], run["global_batch_size"], run["training_samples"], run["gradient_sync"]),
                         (True, "done", 24, 120, "gloo"))
        self.assertEqual([(worker["kind"], worker["emulated"]) for worker in run["workers"]], [("cpu", None)] * 2)
        lines = self.lines()
        # What a step took is known when the next but one begins; this loop is left at once after the last.
        self.assertEqual([line["step"] for line in lines], list(range(8)))
        for line in lines:
            self.assertEqual(line["batch_split"], [18, 6])
            for phase in ("compute_seconds", "load_seconds", "gradient_sync_seconds", "wait_seconds"):
                self.assertTrue(all(seconds >= 0 for seconds in line[phase]), line)
            parts = [sum(line[phase][rank] for phase in ("compute_seconds", "load_seconds", "gradient_sync_seconds", "wait_seconds"))
                     for rank in range(2)]
            self.assertAlmostEqual(max(parts), line["step_seconds"], places=9)
        # What was told of each step is the mean over its samples, whatever the split.
        self.assertAlmostEqual(sum(line["loss"] for line in lines[:5]) / 5, 119 / 2, places=4)
        self.assertIn("As Motley split it", (self.folder / "run/report.html").read_text())

    def test_of_one_rank(self):
        (code, text), = run_scripts(ALONE, 1, arguments=[self.folder / "run"])
        self.assertEqual(code, 0, text)
        lines = self.lines()
        self.assertEqual([(line["step"], line["batch_split"], line["wait_seconds"]) for line in lines],
                         [(step, [24], [0]) for step in range(5)])
        self.assertAlmostEqual(sum(line["loss"] for line in lines) / 5, 119 / 2, places=4)
        self.assertTrue((self.folder / "run/report.html").exists(), text)

    def test_a_slow_optimizer_is_its_ranks_own(self):
        code, text = self.train(6, 0, OPTIMIZER_SECONDS=0.05)
        self.assertEqual(code, 0, text)
        for line in self.lines():
            self.assertGreater(line["compute_seconds"][1], 0.05)
            self.assertGreater(line["step_seconds"], line["compute_seconds"][1])

    def test_emulated_speeds_are_said(self):
        script = self.folder / "train.py"
        script.write_text(SCRIPT)
        words = [sys.executable, "-m", "motley", "launch", "--emulated-speeds", "1,0.5", script, self.folder / "run", "6", "0"]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
        self.assertTrue((self.folder / "run/run.json").exists(), done.stdout)
        told = [worker["emulated"].split("; in ")[0] for worker in self.run_file()["workers"]]  # without that this machine was busy
        self.assertEqual(told, ["relative speed 1", "relative speed 0.5"])

    def test_an_interrupt_leaves_the_page(self):
        script = self.folder / "train.py"
        script.write_text(SCRIPT)
        words = [sys.executable, "-m", "motley", "launch", "--workers", "2", script, self.folder / "run", "1000000", "0"]
        launcher = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        self.addCleanup(launcher.kill)
        metrics = self.folder / "run/metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") > 3)
        os.killpg(launcher.pid, signal.SIGINT)  # as a terminal does
        output, _ = launcher.communicate(timeout=60)
        self.assertEqual(launcher.returncode, 130, output)
        self.assertEqual((self.run_file()["finished"], self.run_file()["exit"]), (True, "interrupted"), output)
        self.assertIn("As Motley split it", (self.folder / "run/report.html").read_text())

    def test_an_interrupt_that_comes_while_an_error_is_raised(self):
        """As where the other rank has ended of it already, on which this one waits in C++."""
        script = self.folder / "train.py"
        script.write_text(INTERRUPTED)
        alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        for name, words, more in (("forked", ["-m", "motley", "launch", "--workers", "1"], {}), ("alone", [], alone)):
            with self.subTest(name):
                done = subprocess.run([sys.executable, *words, script, self.folder / name], env=os.environ | more, timeout=300, check=False,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                self.assertNotEqual(done.returncode, 0)
                run = json.loads((self.folder / name / "run.json").read_text())
                self.assertEqual((run["finished"], run["exit"]), (True, "interrupted"), done.stdout)

    def test_errors_of_an_interactive_session(self):
        """Those before and after a pass are not the run's, one within it is."""
        begin = "1 / 0\nimport motley, torch\nloader = motley.DataLoader(torch.arange(120.0), 24, run_directory='NAME')\n"
        for name, loop, exit in (("done", "for batch in loader: pass\n\n1 / 0\n", "done"),
                                 ("failed", "for batch in loader: 1 / 0\n\n", "failed")):
            with self.subTest(name):
                lines = begin.replace("NAME", name) + loop
                done = subprocess.run([sys.executable, "-i", "-c", ""], input=lines, cwd=self.folder, text=True, capture_output=True,
                                      timeout=120, check=False)
                self.assertEqual(done.stderr.count("ZeroDivisionError"), 2, done.stderr)
                self.assertEqual(json.loads((self.folder / name / "run.json").read_text())["exit"], exit)

    def test_a_failure_and_a_folder_that_is_taken(self):
        code, text = self.train(6, 0, "the disk is full")
        self.assertEqual(code, 1, text)
        run = self.run_file()
        self.assertEqual((run["finished"], run["exit"], run["error"]), (True, "failed", "ValueError: the disk is full"))
        before = (self.folder / "run/metrics.jsonl").read_text()
        code, text = self.train(6, 0)
        self.assertNotEqual(code, 0)
        self.assertIn("which holds a run", text)
        self.assertEqual((self.folder / "run/metrics.jsonl").read_text(), before)

    def test_a_folder_that_cannot_be_made(self):
        (self.folder / "run").write_text("a file")
        code, text = self.train(6, 0)
        self.assertEqual(code, 1)
        for rank in range(2):  # also on the rank that writes nothing
            self.assertIn(f"[rank{rank}]: ValueError: rank 0: run_directory is '{self.folder}/run'", text)
        self.assertIn("a folder that can be made and written is accepted", text)

    def test_training_goes_on_where_the_disk_is_full(self):
        code, text = self.train(30, 0, "small disk")
        self.assertEqual(code, 0, text)
        self.assertEqual(text.count("UserWarning: nothing is recorded any more"), 1, text)
        lines = self.lines()  # each whole
        self.assertEqual([line["step"] for line in lines], list(range(len(lines))))
        self.assertLess(len(lines), 28)

    def test_a_run_that_goes_on_after_it_was_killed(self):
        self.assertEqual(self.train(10, 0)[0], 0)
        file = self.folder / "run/metrics.jsonl"
        file.write_text(file.read_text() + '{"step":8,"epo')  # as a killed process leaves it
        self.assertEqual(self.train(6, 7)[0], 0)
        lines = self.lines()
        self.assertEqual([line["step"] for line in lines], [*range(8), 7, *range(7, 11)])
        self.assertEqual(lines[8]["event"], "resumed")
        self.assertEqual(lines[9]["epoch"], 1)
        times = [line["time"] for line in lines]
        self.assertEqual(times, sorted(times), "the second attempt's times go on after the first's")
        first, second = self.run_file()["attempts"]
        self.assertEqual((first["first_step"], first["exit"], second["first_step"], second["exit"]), (0, "done", 7, "done"))
        self.assertEqual(self.run_file()["started"], first["started"])
        self.assertLess(first["started"], second["started"])
        self.assertEqual(second["after_seconds"], times[7])


if __name__ == "__main__":
    unittest.main()
