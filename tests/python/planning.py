"""motley.plan, simulate, schedule and estimate: the same answers as the program's, and one clear exception for what is refused."""
import csv
import dataclasses
import importlib.util
import inspect
import io
import json
import os
import pickle
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest
import unittest.mock
from pathlib import Path

import numpy
from harness import BINARY, computed_seconds

import motley

together = "importing takes longer than most tests"

ROOT = Path(__file__).resolve().parents[2]
PROFILE, PLAN, CLUSTER = (ROOT / "examples/pipeline" / name for name in ("profile.json", "plan.json", "cluster.yaml"))
RENT, TRACE = ROOT / "examples/rent/cluster.yaml", ROOT / "examples/schedule/trace.csv"

# The two device types of CLUSTER, as a dict.
TWO_TYPES = {
    "version": 2,
    "device_types": [{"name": "fast", "kind": "cuda", "count": 2, "price_per_hour": 2.0, "memory": "16 GB",
                      "speed": {"flops_per_second": 8e12, "memory_bandwidth": "700 GB/s"}},
                     {"name": "slow", "kind": "cuda", "count": 2, "price_per_hour": 0.5, "memory": "8 GB",
                      "speed": {"flops_per_second": 2e12, "memory_bandwidth": "250 GB/s"}}],
    "nodes": [{"name": "a", "devices": [{"type": "fast", "count": 2}]}, {"name": "b", "devices": [{"type": "slow", "count": 2}]}],
    "links": [{"from": "a", "to": "a", "bandwidth": "10 GB/s", "latency": "10 us"},
              {"from": "b", "to": "b", "bandwidth": "10 GB/s", "latency": "10 us"},
              {"from": "a", "to": "b", "bandwidth": "1 GB/s", "latency": "50 us"}]}


class FolderTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def program(self, *words):
        """What the program wrote, by flag."""
        done = subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, timeout=120, cwd=self.folder, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def read(self, name):
        return (self.folder / name).read_text()


class SameAsTheProgram(FolderTest):
    def test_plan(self):
        self.program("plan", "--profile", PROFILE, "--cluster", CLUSTER, "--global-batch-size", 64, "--what-if", "small.price=0.1",
                     "--html", "page.html")
        plan = motley.plan(PROFILE, CLUSTER, global_batch_size=64, what_if="small.price=0.1")
        self.assertEqual(plan.json, self.read("plan.json"))
        self.assertEqual(plan.page, self.read("page.html"))

    def test_plan_of_a_model_with_a_limit(self):
        words = ["--model", "ctrdnn-16", "--cluster", RENT, "--cost-model", "heterps", "--global-batch-size", 4096,
                 "--min-throughput", 1000000]
        self.program("plan", *words)
        plan = motley.plan(model="ctrdnn-16", cluster=RENT, cost_model="heterps", global_batch_size=4096, min_throughput=1000000)
        self.assertEqual(plan.json, self.read("plan.json"))
        self.assertGreaterEqual(plan.throughput, 1000000 * (1 - 1e-9))

    def test_plan_of_a_method_that_searches(self):
        self.program("plan", "--profile", PROFILE, "--cluster", CLUSTER, "--method", "genetic", "--seed", 5, "--micro-batches", 4,
                     "--time-limit", "300s")
        plan = motley.plan(PROFILE, CLUSTER, method="genetic", seed=5, micro_batches=4, time_limit=300)
        self.assertEqual(plan.json, self.read("plan.json"))

    def test_estimate(self):
        self.program("profile", "--model", "vgg16", "--cluster", CLUSTER, "--global-batch-size", 128, "--output", "profile.json")
        self.assertEqual(motley.estimate("vgg16", CLUSTER, global_batch_size=128).json, self.read("profile.json"))

    def test_simulate(self):
        words = ["simulate", PLAN, "--profile", PROFILE, "--cluster", CLUSTER, "--straggler", "1:0:1.5", "--jitter", 0.1, "--seed", 3]
        text = self.program(*words, "--timeline", "timeline.json", "--html", "page.html")
        step = motley.simulate(PLAN, PROFILE, CLUSTER, straggler="1:0:1.5", jitter=0.1, seed=3)
        self.assertEqual(step.json, self.program(*words, "--json"))
        self.assertEqual(step.timeline, self.read("timeline.json"))
        self.assertEqual(step.page, self.read("page.html"))
        self.assertTrue(text.startswith(step.text), text)

    def test_schedule(self):
        figures = self.program("schedule", "simulate", TRACE, "--cluster", "4x8", "--policy", "fifo", "--policy", "las", "--mtbf", "100h",
                               "--seed", 2, "--json", "--csv", "jobs.csv")
        schedule = motley.schedule(TRACE, "4x8", policy=["fifo", "las"], mtbf="100h", seed=2)
        self.assertEqual(schedule.json, figures)
        self.assertEqual(schedule.csv, self.read("jobs.csv"))

    def test_keywords_and_defaults_are_those_of_the_flags(self):
        outputs = {"help", "version", "quiet", "verbose", "no_color", "overwrite", "output", "html", "json", "csv", "timeline",
                   "save_trace", "repetitions"}
        for function, words in ((motley.plan, ["plan"]), (motley.simulate, ["simulate"]), (motley.schedule, ["schedule", "simulate"])):
            lines = re.findall(r"(?m)^  (?:-h, )?--([a-z-]+)((?:.|\n   )*)", self.program(*words, "--help"))
            said = {name.replace("-", "_"): " ".join(text.split()) for name, text in lines}
            flags = {name: (re.findall(r"\[default: ([^\]]+)\]", text) or [""])[0] for name, text in said.items()}
            parameters = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()
                          if name not in ("plan", "trace") or function is motley.plan}
            self.assertEqual(set(parameters), set(flags) - outputs, words)
            for name, default in parameters.items():
                if default in (None, (), False):
                    continue
                expected = flags[name]
                if not isinstance(default, str):
                    number, unit = re.fullmatch(r"(.*?)(s|min|h)?", expected).groups()
                    expected = float(number) * {None: 1, "s": 1, "min": 60, "h": 3600}[unit]
                self.assertEqual(default, expected, f"{words} {name}")


class Arguments(FolderTest):
    def test_a_file_a_dict_a_dataclass_and_a_result_are_the_same(self):
        @dataclasses.dataclass
        class Cluster:
            version: int
            device_types: list
            nodes: list
            links: list

        file = self.folder / "cluster.yaml"
        file.write_text(json.dumps(TWO_TYPES))
        profile = motley.estimate("vgg16", TWO_TYPES)
        plans = [motley.plan(profile, TWO_TYPES), motley.plan(profile, file), motley.plan(profile, Cluster(**TWO_TYPES)),
                 motley.plan(json.loads(profile.json), str(file))]
        self.assertEqual({plan.json for plan in plans}, {plans[0].json})
        steps = [motley.simulate(plan, profile, TWO_TYPES) for plan in (plans[0], plans[0].data)]
        self.assertEqual(steps[0], steps[1])

    def test_a_trace_of_dicts(self):
        rows = list(csv.DictReader(TRACE.read_text().splitlines()))
        self.assertEqual(motley.schedule(rows, "4x8", policy="fifo").csv, motley.schedule(TRACE, "4x8", policy="fifo").csv)

    def test_a_schedule_on_a_dict(self):
        schedule = motley.schedule([{"job": "a", "arrival_seconds": 0, "duration_seconds": 10, "workers": 2},
                                    {"job": "b", "arrival_seconds": 1, "duration_seconds": 5, "workers": 4}], TWO_TYPES, policy="fifo")
        finished = {job["job"]: job["finished_seconds"] for job in schedule.jobs()}
        self.assertEqual(finished, {"a": 10, "b": 15})  # b needs all four devices

    def test_durations_of_numpy(self):
        for kind in (numpy.float64, numpy.float32, numpy.int64):
            with self.subTest(kind):
                one, other = (motley.schedule(TRACE, "4x8", slot_duration=slot) for slot in (600, kind(600)))
                self.assertEqual(one.rows(), other.rows())

    def test_wrong_input_is_one_exception_that_says_what_is_accepted(self):
        profile = json.loads(PROFILE.read_text())
        profile["devices"][0]["layers"][0]["forward"]["fixed"] = -1
        for call, words in (
                (lambda: motley.plan(profile, CLUSTER), r"^profile: field 'devices\[0\]\.layers\[0\]\.forward\.fixed' is -1; accepted"),
                (lambda: motley.plan(PROFILE, {"version": 2, "device_typs": []}), r"(?s)^cluster: .*device_typs is an unknown key"),
                (lambda: motley.plan(self.folder / "none.json"), r"none\.json"),
                (lambda: motley.plan(), r"^profile, model: neither is given; accepted: one of them"),
                (lambda: motley.plan(PROFILE, CLUSTER, global_batch_size=0), r"global_batch_size.*0.*accepted: an integer from 1"),
                (lambda: motley.plan(PROFILE, CLUSTER, method="best"), r"method.*best.*accepted: .*exact"),
                (lambda: motley.plan(PROFILE, CLUSTER, time_limit="5"), r"time_limit.*5.*accepted: a duration"),
                (lambda: motley.plan(PROFILE, CLUSTER, min_throughput=1e12), r"^no plan reaches 1,000,000,000,000 samples/s: the best is"),
                (lambda: motley.plan(PROFILE, 7), r"^cluster: an int; accepted: a path"),
                (lambda: motley.plan(PROFILE, {"version": 2, "x": {1}}), r"^cluster: .*set.*accepted"),
                (lambda: motley.plan(PROFILE, CLUSTER, heterogeneous_stages=True, micro_batches=4), r"^heterogeneous_stages: given with "),
                (lambda: motley.plan(PROFILE, CLUSTER, what_if=5), r"^what_if: 5; accepted: a text or a list of texts"),
                (lambda: motley.plan(PROFILE, CLUSTER, global_batch_size=[1]), r"^global_batch_size: '\[1\]' is not accepted; accepted"),
                (lambda: motley.simulate(PLAN, PROFILE, CLUSTER, straggler=[1]), r"^straggler: \[1\]; accepted: a text or a list of texts"),
                (lambda: motley.schedule(TRACE, "4x8", policy=[5]), r"^policy: \[5\]; accepted: a text or a list of texts"),
                (lambda: motley.simulate(None, PROFILE, CLUSTER), r"^plan: None"),
                (lambda: motley.simulate(PLAN, PROFILE, CLUSTER, straggler="9"), r"^straggler: '9'.*accepted: STAGE:REPLICA:SLOWDOWN"),
                (lambda: motley.estimate("vgg17", CLUSTER), r"model.*vgg17.*accepted: .*vgg16"),
                (lambda: motley.schedule([{"job": "a", "arrival_seconds": 0, "duration_seconds": -1, "workers": 2}], "4x8"),
                 r"^trace.*duration_seconds.*-1"),
                (lambda: motley.schedule([], "4x8"), r"^trace"),
                (lambda: motley.schedule(7, "4x8"), r"^trace: an int; accepted"),
                (lambda: motley.schedule(TRACE), r"^cluster: is missing"),
                (lambda: motley.schedule(TRACE, "4x8", policy="best"), r"policy.*best.*accepted")):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                call()

    def test_no_plan_in_time_is_another_exception(self):
        with self.assertRaisesRegex(RuntimeError, "found no plan for .* within .*; that does not mean that there is none"):
            motley.plan(model="ctrdnn-16", cluster=RENT, cost_model="heterps", min_throughput=1e12, method="genetic", time_limit=0.01)

    def test_warnings_are_logged(self):
        cluster = TWO_TYPES | {"links": []}
        with self.assertLogs("motley", "WARNING") as logs:
            motley.plan(motley.estimate("vgg16", cluster), cluster)
        self.assertIn("no link is stated between", logs.output[0])

    def test_an_interrupt_ends_a_long_search(self):
        """Sent once the search has used a second of processor time; it would go on for 100 s."""
        begun, process = computed_seconds(os.getpid()), os.getpid()

        def send():
            deadline = time.monotonic() + 60
            while computed_seconds(process) < begun + 1 and time.monotonic() < deadline:
                time.sleep(0.02)
            os.kill(process, signal.SIGINT)

        sender = threading.Thread(target=send)
        sender.start()
        self.addCleanup(sender.join)
        with self.assertRaises(KeyboardInterrupt):
            motley.plan(model="resnet101", cluster=RENT, time_limit=100)
        self.assertGreater(motley.plan(PROFILE, CLUSTER).throughput, 0)


class Results(FolderTest):
    @classmethod
    def setUpClass(cls):
        cls.profile = motley.estimate("vgg16", CLUSTER)
        cls.plan = motley.plan(cls.profile, CLUSTER)
        cls.simulation = motley.simulate(cls.plan, cls.profile, CLUSTER)
        cls.schedule = motley.schedule(TRACE, "4x8", policy=["fifo", "las"])
        cls.all = [cls.profile, cls.plan, cls.simulation, cls.schedule]

    def test_they_are_frozen_and_can_be_copied(self):
        for result in self.all:
            with self.assertRaises(dataclasses.FrozenInstanceError):
                result.json = ""
            self.assertEqual(pickle.loads(pickle.dumps(result)), result)

    def test_save_and_load(self):
        for result in self.all:
            result.save(self.folder / "result.json")
            self.assertEqual(type(result).load(self.folder / "result.json").data, result.data)
        self.plan.save(self.folder / "plan.html")
        self.assertEqual(self.read("plan.html"), self.plan.page)
        with self.assertRaisesRegex(ValueError, "this Profile has no page"):
            self.profile.save(self.folder / "profile.html")

    def test_a_plan_by_hand(self):
        """One that leaves out what has a default."""
        plan = {"version": 2, "model": "two", "layers": ["a", "b"], "global_batch_size": 8,
                "stages": [{"first_layer": 0, "last_layer": 1, "replicas": [{"type": "cpu"}]}]}
        (self.folder / "plan.json").write_text(json.dumps(plan))
        loaded = motley.Plan.load(self.folder / "plan.json")
        self.assertEqual(loaded.rows(), [{"stage": 0, "first_layer": "a", "last_layer": "b", "device_type": "cpu", "count": 1,
                                          "gradient_sync": "none", "recompute": False}])
        self.assertEqual((repr(loaded), loaded.cost), ("Plan(model='two', stages=1, throughput=0.0)", 0))
        (self.folder / "plan.json").write_text(json.dumps(plan | {"layers": ["a"]}))
        with self.assertRaisesRegex(ValueError, "plan.json"):
            motley.Plan.load(self.folder / "plan.json")

    def test_text_and_page(self):
        self.assertIn("proved optimal", str(self.plan))
        self.assertTrue(repr(self.plan).startswith("Plan(model='vgg16', stages="))
        frame = self.plan._repr_html_()
        self.assertTrue(frame.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;'))
        self.assertEqual(frame.count("<"), 2, "only the frame itself")
        self.assertIsNone(self.profile._repr_html_())

    def test_rows_agree_with_the_files(self):
        self.assertEqual(sum(row["count"] for row in self.plan.rows()),
                         sum(replicas["count"] for stage in self.plan.data["stages"] for replicas in stage["replicas"]))
        layer = self.profile.data["devices"][1]["layers"][3]["forward"]
        row = next(row for row in self.profile.rows() if row["device_type"] == "small" and row["layer"] == "conv2-1")
        self.assertEqual(row["forward_seconds"], layer["fixed"] + layer["per_sample"] * 256)
        jobs = [job for job in self.schedule.jobs() if job["policy"] == "las"]
        mean = sum(job["finished_seconds"] - job["arrival_seconds"] for job in jobs) / len(jobs)
        self.assertAlmostEqual(self.schedule.rows()[1]["mean_completion_seconds"], mean, delta=1e-6 * mean)
        busy = {}
        for event in json.loads(self.simulation.timeline)["traceEvents"]:
            if event.get("cat") == "compute" and event["name"] in ("forward", "backward"):
                busy[event["pid"], event["tid"]] = busy.get((event["pid"], event["tid"]), 0) + event["dur"] / 1e6
        for row in self.simulation.rows():
            self.assertAlmostEqual(row["busy_seconds"], busy[row["stage"], row["replica"]], delta=1e-6)

    @unittest.skipUnless(importlib.util.find_spec("pandas"), "pandas is not installed")
    def test_frames(self):
        for result in self.all:
            self.assertEqual(len(result.to_frame()), len(result.rows()))
        import pandas
        self.assertEqual(motley.schedule(pandas.read_csv(TRACE), "4x8", policy=["fifo", "las"]).csv, self.schedule.csv)

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "matplotlib is not installed")
    def test_plots(self):
        import matplotlib
        matplotlib.use("agg")
        for result in self.all:
            ax = result.plot()
            ax.figure.savefig(self.folder / "plot.png")
            self.assertTrue(ax.has_data())

    @unittest.skipUnless(importlib.util.find_spec("rich"), "rich is not installed")
    def test_rich(self):
        from rich.console import Console
        console = Console(file=io.StringIO(), width=200)
        console.print(self.plan)
        self.assertEqual([line.rstrip() for line in console.file.getvalue().splitlines()],
                         [line.rstrip() for line in self.plan.text.splitlines()])

    def test_a_package_that_is_missing_is_named(self):
        with unittest.mock.patch.dict("sys.modules", {"pandas": None}), self.assertRaisesRegex(RuntimeError, "pip install pandas"):
            self.plan.to_frame()


if __name__ == "__main__":
    unittest.main()
