"""What tools/demo prints of its runs, and whether what it says of the devices that it emulates is so."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TOOL = REPOSITORY / "tools/demo_rows.py"


def row(case, metric, value, better="less", target=None):
    return {"case": case, "metric": metric, "value": value, "unit": "", "better": better, "target": target, "limit": None, "peer": None}


class MixedRun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.summary, self.run_directory = self.folder / "summary.json", self.folder / "mixed"
        self.run_directory.mkdir()
        self.summary.write_text(json.dumps([row("shares", "test_accuracy", 0.9, "more", 0.88)]))
        (self.run_directory / "run.json").write_text(json.dumps({"global_batch_size": 600}))

    def judge(self, step):
        """What is printed of a run of such steps on two CPUs of 5 ms and two accelerators of 1 ms a sample, which take 250 ms at best."""
        (self.run_directory / "summary.json").write_text(json.dumps(
            [row("mixed", "step_seconds", step), row("mixed", "step_speedup_over_equal", 2.9, "more", 2.4)]))
        return subprocess.run([sys.executable, TOOL, "mixed", self.summary, self.run_directory, "0.005", "0.005", "0.001", "0.001"],
                              check=True, capture_output=True, text=True).stdout

    def rows(self, file):
        return [(one["case"], one["metric"], round(one["value"], 9)) for one in json.loads(file.read_text())]

    def test_a_step_is_held_against_the_speeds_together(self):
        text = self.judge(0.26)
        self.assertRegex(text, r"a step takes longer than at the sum of the workers' speeds +4\.0 % +≤ 5\.0 % +met +0\.0 %")
        self.assertIn("demo: all 3 targets met", text)
        own = [("mixed", "step_seconds", 0.26), ("mixed", "step_speedup_over_equal", 2.9), ("mixed", "gap_to_optimum", 0.04)]
        self.assertEqual(self.rows(self.run_directory / "summary.json"), own)
        self.assertEqual(self.rows(self.summary), [("shares", "test_accuracy", 0.9), *own])

    def test_a_second_run_takes_the_place_of_the_first_and_may_miss(self):
        self.judge(0.26)
        text = self.judge(0.275)
        self.assertRegex(text, r"demo: 1 of 3 targets missed: a step takes longer than at the sum of the workers' speeds")
        self.assertEqual([one for one in self.rows(self.summary) if one[1] == "gap_to_optimum"], [("mixed", "gap_to_optimum", 0.1)])


class EmulatedDevices(unittest.TestCase):
    def test_the_speeds_that_the_demo_names_are_those_that_it_emulates(self):
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        demo = (REPOSITORY / "tools/demo").read_text()
        sizes = re.search(r"hidden_sizes: \[(.*)\]", (REPOSITORY / "examples/demo/mixed-job.yaml").read_text())[1]
        sizes = [28 * 28, *map(int, sizes.split(",")), 10]
        layers = [layer for one, next_ in zip(sizes, sizes[1:]) for layer in (torch.nn.Linear(one, next_), torch.nn.ReLU())][:-1]
        with FlopCounterMode(display=False) as counter:
            torch.nn.Sequential(*layers)(torch.ones(1, sizes[0])).sum().backward()
        flops = float(re.search(r"flops=([\d.e]+)", demo)[1])
        paces = re.findall(r"seconds_per_sample: ([\d.]+) ms", (REPOSITORY / "examples/demo/mixed.yaml").read_text())
        named = re.search(r"demo_rows.py mixed \S+ \S+ (.*)", demo)[1].split()
        self.assertEqual(list(map(float, named[:2])), [float(pace) / 1000 for pace in paces])
        for seconds in map(float, named[2:]):
            self.assertAlmostEqual(counter.get_total_flops() / flops, seconds, delta=1e-9)


if __name__ == "__main__":
    unittest.main()
