"""motley simulate as a user meets it: the help's example as typed, what it prints and writes, and refusals."""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from harness import BINARY

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/pipeline"


class Simulate(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="motley-scenario-"))
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.plan = self.folder / "plan.json"
        shutil.copy(EXAMPLE / "plan.json", self.plan)

    def simulate(self, *flags, expect=0):
        command = [BINARY, "simulate", self.plan, "--profile", EXAMPLE / "profile.json"]
        command += ["--cluster", EXAMPLE / "cluster.yaml", *flags]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout if expect == 0 else done.stderr.strip().splitlines()[-1]

    def throughput(self, *flags):
        return float(re.search(r"throughput +([\d.,]+) samples/s", self.simulate(*flags)).group(1).replace(",", ""))

    def test_the_helps_example_works_as_typed(self):
        text = subprocess.run([BINARY, "simulate", "--help"], capture_output=True, text=True, check=True).stdout
        example = text[text.index("Example:") :].split("\n", 1)[1].replace("\\\n", " ").split()
        self.assertEqual(example[:2], ["motley", "simulate"])
        words = [str(ROOT / word) if word.startswith("examples/") else word for word in example[1:]]
        done = subprocess.run([BINARY, *words], capture_output=True, text=True, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("One step as predicted", (self.folder / "step.html").read_text())

    def test_prints_time_and_idleness_and_writes_the_trace(self):
        trace = self.folder / "trace.json"
        text = self.simulate("--timeline", trace)
        for words in ("vgg16: 256 samples in 16 micro-batches", "step ", "the plan predicts", "throughput", "critical path"):
            self.assertIn(words, text)
        self.assertRegex(text, r"stage 0 +large 0 to 1 +computes .* bubble [\d.]+ %")
        events = json.loads(trace.read_text())["traceEvents"]
        computed = [event for event in events if event["ph"] == "X" and event["cat"] == "compute"]
        self.assertEqual(len(computed), 2 * 16 * 4)

    def test_a_straggler_and_more_samples_show(self):
        as_planned = self.throughput()
        self.assertLess(self.throughput("--straggler", "0:1:2"), as_planned)
        self.assertNotEqual(self.throughput("--jitter", 0.3), as_planned)
        self.assertEqual(self.throughput("--jitter", 0.3, "--seed", 4), self.throughput("--jitter", 0.3, "--seed", 4))
        self.assertGreater(self.throughput("--global-batch-size", 512, "--micro-batches", 32), as_planned)

    def test_refusals_name_file_field_and_value(self):
        for flags, words in (
            (("--straggler", "0:1"), "--straggler: '0:1' is not accepted; accepted: STAGE:REPLICA:SLOWDOWN"),
            (("--straggler", "0:1:0.5"), "stragglers[0].slowdown is 0.5"),
            (("--straggler", "7:0:2"), "stragglers[0].stage is 7; the plan has stages 0 to 1"),
            (("--jitter", "-1"), "--jitter: '-1' is not accepted"),
            (("--micro-batches", 256), "stages[0] has 2 replicas, but a micro-batch has 1 sample ("),
            (("--global-batch-size", 4), "micro_batches"),
        ):
            self.assertIn(words, self.simulate(*flags, expect=2))
        self.simulate("--global-batch-size", 0, expect=2)
        plan = json.loads(self.plan.read_text())
        plan["stages"][1]["replicas"][0]["type"] = "abacus"
        self.plan.write_text(json.dumps(plan))
        message = self.simulate(expect=2)
        for words in (str(self.plan), "stages[1].replicas[0].type is 'abacus'", "'large', 'small'"):
            self.assertIn(words, message)
        self.plan.write_text("{")
        self.assertIn(str(self.plan), self.simulate(expect=2))


if __name__ == "__main__":
    unittest.main()
