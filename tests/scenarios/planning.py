"""motley plan as a user meets it: plans that read back, impossible targets told apart from failures, wrong input named."""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from harness import BINARY, computed_seconds, handles

ROOT = pathlib.Path(__file__).resolve().parents[2]
RENT = ROOT / "examples/rent/cluster.yaml"
PIPELINE = ROOT / "examples/pipeline"


class Planning(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="motley-planning-"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def plan(self, *arguments, expect=0):
        done = subprocess.run([BINARY, "plan", "--overwrite", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=120, cwd=self.folder)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout if expect == 0 else done.stderr.strip().splitlines()[-1]

    def ctrdnn(self, *arguments, expect=0):
        return self.plan("--model", "ctrdnn-16", "--cluster", RENT, "--cost-model", "heterps", "--global-batch-size", 4096,
                         *arguments, expect=expect)

    def test_a_plan_is_written_whole_and_proved(self):
        text = self.ctrdnn("--min-throughput", 1000000, "--html", "plan.html")
        self.assertIn("proved optimal", text)
        plan = json.loads((self.folder / "plan.json").read_text())
        self.assertGreaterEqual(plan["predicted"]["throughput"], 1000000 * (1 - 1e-9))
        self.assertEqual(len(plan["layers"]), 16)
        self.assertIn("<svg", (self.folder / "plan.html").read_text())

    def test_an_open_number_of_micro_batches_is_the_best_of_them(self):
        arguments = ["--profile", PIPELINE / "profile.json", "--cluster", PIPELINE / "cluster.yaml", "--global-batch-size", 24,
                     "--time-limit", "20s"]

        def throughput(*more):
            self.plan(*arguments, *more)
            plan = json.loads((self.folder / "plan.json").read_text())
            return plan["predicted"]["throughput"], plan["micro_batches"]

        each = {count: throughput("--micro-batches", count)[0] for count in (1, 2, 4, 8, 16)}
        best, count = throughput()
        self.assertAlmostEqual(best, max(each.values()), delta=1e-3 * best)
        self.assertAlmostEqual(best, each[count], delta=1e-3 * best)
        self.assertGreater(best, 1.05 * min(each.values()))

    def test_a_plan_is_simulated_as_it_was_written(self):
        arguments = ["--profile", PIPELINE / "profile.json", "--cluster", PIPELINE / "cluster.yaml"]
        self.plan(*arguments, "--global-batch-size", 64, "--time-limit", "10s")
        done = subprocess.run([BINARY, "simulate", "plan.json", *map(str, arguments)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, cwd=self.folder, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_an_impossible_target_says_what_is_possible(self):
        message = self.ctrdnn("--min-throughput", 1e12, expect=2)
        self.assertRegex(message, r"no plan reaches 1,000,000,000,000 samples/s: the best is [\d,]+ with .*; layer \S+ is the bottleneck")
        best = float(re.search(r"the best is ([\d,]+)", message)[1].replace(",", ""))
        self.ctrdnn("--min-throughput", 0.999 * best)
        self.assertFalse((self.folder / "none.json").exists())

    def test_every_method_is_compared(self):
        text = self.ctrdnn("--min-throughput", 100000, "--compare", "--time-limit", "2s")
        for method in ("exact", "brute-force", "cpu-only", "gpu-only", "heuristic", "greedy", "random", "genetic",
                       "bayesian", "pipedream", "rl-lstm", "rl-rnn", "rl-attention"):
            self.assertRegex(text, rf"(?m)^  {method} ")

    def test_methods_other_than_exact_keep_their_own_answer(self):
        """All layers on CPU cores, to which the same on GPUs is a neighbour and far faster."""
        cpu, gpu = (json.loads(self.plan("--model", "vgg16", "--cluster", RENT, "--cost-model", "heterps", "--time-limit", "2s",
                                         "--method", method, "--json")) for method in ("cpu-only", "gpu-only"))
        self.assertGreater(gpu["plan"]["predicted"]["throughput"], 2 * cpu["plan"]["predicted"]["throughput"])
        self.assertEqual({replicas["type"] for stage in cpu["plan"]["stages"] for replicas in stage["replicas"]}, {"cpu-core"})
        self.assertEqual([one for one in cpu["alternatives"] if one["worse"] < 0], [])

    def test_what_if_finds_where_the_answer_changes(self):
        text = self.ctrdnn("--min-throughput", 1000000, "--what-if", "v100.price=0.01..100")
        block = text[text.index("what if v100.price"):]
        self.assertGreater(len(block.splitlines()), 3, block)

    def test_wrong_input_is_named(self):
        self.assertIn("--profile, --model: neither is given", self.plan(expect=2))
        self.assertIn("accepted: TYPE.QUANTITY=VALUE", self.ctrdnn("--what-if", "gpu.price=1", expect=2))
        self.assertIn("--min-throughput: 'nan' is not accepted", self.ctrdnn("--min-throughput", "nan", expect=2))
        self.assertIn("--micro-batches: 99 is more", self.plan("--model", "nce", "--cluster", RENT, "--global-batch-size", 8, "--micro-batches", 99, expect=2))
        cluster = self.folder / "cluster.yaml"
        cluster.write_text(RENT.read_text().replace("price_per_hour: 2.42", "price_per_hour: -2.42"))
        self.assertRegex(self.plan("--model", "nce", "--cluster", cluster, expect=2), r"cluster.yaml:\d+: .*price_per_hour")
        cluster.write_text("version: 2\ndevice_types:\n  - {name: cpu, kind: cpu}\n")
        self.assertIn("'cpu' has no speed", self.plan("--model", "nce", "--cluster", cluster, expect=2))
        profile = json.loads((PIPELINE / "profile.json").read_text())
        profile["devices"] = profile["devices"][:1]
        profile["links"] = []
        (self.folder / "half.json").write_text(json.dumps(profile))
        self.assertIn("small", self.plan("--profile", "half.json", "--cluster", PIPELINE / "cluster.yaml", expect=2))
        self.assertFalse((self.folder / "plan.json").exists())

    def test_what_is_printed_is_what_is_written(self):
        text = self.plan("--model", "vgg16", "--cluster", ROOT / "examples/heterogeneous/cluster.yaml", "--global-batch-size", 128,
                         "--heterogeneous-stages", "--max-layers", 12, "--html", "plan.html")
        plan = json.loads((self.folder / "plan.json").read_text())
        page = (self.folder / "plan.html").read_text()
        drawing = next(line for line in text.splitlines() if line.startswith("  ["))
        self.assertEqual(drawing.count("["), len(plan["stages"]), drawing)
        for stage in plan["stages"]:
            for replicas in stage["replicas"]:
                self.assertIn(f"{replicas.get('count', 1)} × {replicas['type']}", drawing)
            self.assertIn(str(stage["first_layer"]), drawing)
        seconds = plan["predicted"]["step_seconds"]
        self.assertIn(f"takes {seconds:.3g} s" if seconds >= 1 else f"takes {1e3 * seconds:.3g} ms", text)
        self.assertGreater(max(len(stage["replicas"]) for stage in plan["stages"]), 1, "a stage mixes types")
        self.assertIn("the best with stages of one type each", text)
        self.assertIn(plan["bottleneck"], text)
        self.assertIn(drawing.strip(), page.replace("&amp;", "&"))

    def test_a_plan_says_what_it_was_chosen_over(self):
        text = self.ctrdnn("--min-throughput", 1000000)
        plan = json.loads((self.folder / "plan.json").read_text())
        self.assertIn("is the bottleneck", plan["bottleneck"])
        self.assertIn("alternatives:", text)
        self.assertRegex(text, r"it is as fast, and its devices cost [\d.]+ % more an hour")
        self.assertIn("how far that may be off is not known", text, "the times are computed")
        table = text[text.index("with one more"):].split("\n\n")[0]
        *rows, remark = table.splitlines()[1:]
        self.assertIn("each is planned anew, and may be on other types", remark)
        used = {}
        for stage in plan["stages"]:
            for replicas in stage["replicas"]:
                used[replicas["type"]] = used.get(replicas["type"], 0) + replicas.get("count", 1)
        self.assertEqual({row.split()[0]: int(row.split()[1]) for row in rows}, used)
        self.assertNotIn("the same  the same", text)

    def start_search(self, *flags):
        process = subprocess.Popen([BINARY, "plan", "--model", "resnet101", "--cluster", str(RENT), "--time-limit", "100s", *flags],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 60
        while not (handles(process.pid, signal.SIGINT) and computed_seconds(process.pid) > 1):
            self.assertIsNone(process.poll(), "it ended before it was interrupted")
            self.assertLess(time.monotonic(), deadline, "the search did not begin")
            time.sleep(0.05)
        return process

    def test_an_interrupted_comparison_writes_nothing(self):
        process = self.start_search("--compare")
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, out + error)
        self.assertIn("nothing was written", error)
        self.assertNotIn("none found", out)
        self.assertFalse((self.folder / "plan.json").exists())

    def test_an_interrupt_keeps_the_best_so_far(self):
        process = self.start_search()
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, error)
        self.assertIn("resnet101: highest throughput, by exact", out)
        self.assertIn("interrupted: this is the best plan so far", out)
        self.assertTrue((self.folder / "plan.json").exists())


if __name__ == "__main__":
    unittest.main()
