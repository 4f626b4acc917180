"""A planned job trains what one worker trains, whatever the plan: stages, heterogeneous replicas, schedules, exchanges."""

import json
import os
import random
import re
import signal
import subprocess
import unittest

from harness import BINARY, Scenario, interrupt_once, relative_difference

LAYERS = ["flatten", "fc1", "relu1", "fc2", "relu2", "fc3", "relu3", "output"]
EXPORTED = ("--model.name", "exported", "--model.hidden-sizes", "", "--model.dtype", "float64")
NETWORK = ("--model.hidden-sizes", "16,16,16")
DOUBLE = (*NETWORK, "--model.dtype", "float64")
TIED = ("--model.tie-embeddings", "true")


class PlannedJobs(Scenario):
    """Helpers for jobs with plans."""

    model = "mlp"
    layers = LAYERS

    def plan(self, name, cuts, micro_batches=4, schedule="1f1b", **fields):
        """A plan's file. A stage is its last layer, the shares of its replicas, and what else its entry has."""
        entries = []
        first = 0
        for last, shares, more in cuts:
            replicas = [{"type": f"type{i}", "count": 1, "batch_fraction": share} for i, share in enumerate(shares)]
            exchange = "none" if len(shares) == 1 else "ring"
            entries.append({"first_layer": self.layers[first], "last_layer": self.layers[last], "replicas": replicas,
                            "gradient_sync": exchange, "recompute": False, **more})
            first = last + 1
        plan = {"version": 2, "model": self.model, "layers": self.layers, "global_batch_size": 60, "micro_batches": micro_batches,
                "pipeline_schedule": schedule, "stages": entries, "cost_model": "pipeline", "method": "by hand",
                "objective": "a test", "predicted": {"step_seconds": 0, "throughput": 0, "hourly_cost": 0, "cost": 0},
                **fields}
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(plan))
        return path

    def profile(self, seconds_per_sample, name="profile"):
        """A profile's file: for each type the seconds of a sample in each layer, forward; backward takes twice as long."""
        layers = [{"name": name, "kind": "other", "inputs": [i - 1] if i else [], "activation_bytes": 64, "flops": 1,
                   "parameters": 1000}
                  for i, name in enumerate([*self.layers, "step"])]
        devices = [{"type": name, "origin": "scaled", "rule": "by hand", "compute_fraction": 1,
                    "communication_fraction": 1, "fractions_origin": "scaled", "fractions_rule": "by hand",
                    "layers": [{"forward": {"fixed": 0, "per_sample": seconds},
                                "backward": {"fixed": 0, "per_sample": 2 * seconds}} for _ in layers]}
                   for name, seconds in seconds_per_sample.items()]
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({"version": 2, "batch_size": 60, "devices": devices, "graph": {
            "name": self.model, "source": "by hand", "input_bytes": 48, "layers": layers}}))
        return path

    def use_transformer(self):
        self.model = "transformer"
        self.layers = ["embedding", "block1", "block2", "block3", "norm", "output"]
        choose = random.Random(6)
        words = [" ".join(choose.choices(["a", "row", "of", "words"], k=3)) for _ in range(600)]
        (self.folder / "text.txt").write_text("\n".join(words))
        self.job.write_text(
            "model: {name: transformer, num_layers: 3, hidden_size: 16, num_heads: 2, dropout: 0.1, dtype: float64}\n"
            "data: {name: text, train: text.txt, sequence_length: 8}\n"
            "global_batch_size: 60\n"
            "epochs: 2\n"
            "optimizer: {name: sgd, learning_rate: 0.05, momentum: 0.9}\n"
            "gradient_sync: {bucket_size: 4 KiB}\n"
            "deadline: {join: 60 s, step: 20 s}\n"
        )

    def export(self, network, name):
        """A module that takes 12 values a sample, as a .pt2 file."""
        import torch

        program = torch.export.export(network.train(), (torch.randn(5, 12),), dynamic_shapes=({0: torch.export.Dim("batch")},))
        torch.export.save(program, self.folder / name)

    def profiled_layers(self, file):
        """Of a .pt2 file, as `motley profile` finds them."""
        output = self.folder / "measured.json"
        profiled = subprocess.run([BINARY, "profile", str(self.job), "--output", str(output), "--overwrite", *EXPORTED, "--model.path",
                                   str(self.folder / file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(profiled.returncode, 0, profiled.stdout)
        return json.loads(output.read_text())["graph"]["layers"][:-1]

    def random_stages(self, choose, count):
        lasts = [*sorted(choose.sample(range(len(self.layers) - 1), count - 1)), len(self.layers) - 1]
        stages = []
        for last in lasts:
            weights = [choose.randint(1, 4) for _ in range(choose.choice([1, 1, 2, 3]))]
            stages.append((last, [weight / sum(weights) for weight in weights], {"recompute": choose.random() < 0.3}))
        return stages

    def assert_same(self, one, other, bound):
        self.assertLess(relative_difference(self.weights(one), self.weights(other)), bound)
        self.assertEqual(self.not_used_once(other), 0)
        evaluations = [{line["step"]: line["evaluation"] for line in self.lines(run) if "evaluation" in line}
                       for run in (one, other)]
        self.assertTrue(evaluations[0].keys() <= evaluations[1].keys(), evaluations)
        for step, expected in evaluations[0].items():
            for key, value in expected.items():
                self.assertAlmostEqual(evaluations[1][step][key], value, delta=100 * bound)

    def assert_shapes_give_the_weights_of_one_worker(self, counts, *flags):
        self.train("one", *flags, "--workers", 1, "--max-grad-norm", 1)
        choose = random.Random(5)
        for number, count in enumerate(counts):
            stages = self.random_stages(choose, count)
            schedule = ["1f1b", "gpipe"][number % 2]
            micro_batches = choose.choice([1, 3, 4, 7])
            with self.subTest(stages=stages, schedule=schedule, micro_batches=micro_batches):
                plan = self.plan(f"plan{number}", stages, micro_batches, schedule)
                self.train(f"planned{number}", *flags, "--plan", plan, "--max-grad-norm", 1)
                self.assert_same("one", f"planned{number}", 1e-9)


class Planned(PlannedJobs):
    def test_every_shape_gives_the_weights_of_one_worker(self):
        self.assert_shapes_give_the_weights_of_one_worker([1, 2, 3, 4, 2, 4], *DOUBLE)

    def test_a_transformer_on_a_text_gives_the_weights_of_one_worker(self):
        self.use_transformer()
        self.assert_shapes_give_the_weights_of_one_worker([2, 3, 4])

    def test_stages_that_synchronise_at_a_server_or_over_tcp(self):
        stages = [(2, [0.25, 0.75], {"gradient_sync": "parameter-server"}), (7, [0.5, 0.5], {})]
        self.train("one", *NETWORK, "--workers", 1)
        self.train("served", *NETWORK, "--plan", self.plan("served", stages))
        self.assert_same("one", "served", 1e-4)
        stages = [(2, [0.25, 0.75], {}), (7, [0.5, 0.2, 0.3], {})]
        self.train("ring", *NETWORK, "--plan", self.plan("ring", stages), "--gradient-sync.method", "tcp-ring")
        self.assert_same("one", "ring", 1e-4)

    def test_a_run_goes_on_with_another_plan_or_none(self):
        adam = (*DOUBLE, "--optimizer.name", "adam", "--optimizer.learning-rate", 0.01)
        self.train("one", *adam, "--workers", 1)
        first = self.plan("first", [(2, [1], {}), (7, [0.5, 0.5], {})])
        second = self.plan("second", [(4, [0.3, 0.7], {}), (5, [1], {}), (7, [1], {})], 5, "gpipe")
        for name, plan in (("same", first), ("other", second), ("none", None)):
            with self.subTest(then=name):
                self.train(name, *adam, "--plan", first, "--steps", 7)
                more = ("--plan", plan) if plan else ("--plan", "", "--workers", 2)
                self.train(name, *adam, *more, "--steps", 20, "--resume")
                self.assert_same("one", name, 1e-9)

    def test_plan_auto_profiles_plans_and_trains(self):
        self.train("one", *DOUBLE, "--workers", 1)
        output = self.train("auto", *DOUBLE, "--plan", "auto", "--steps", 7)
        for name in ("profile.json", "plan.json"):
            self.assertTrue((self.folder / "auto" / name).exists(), output)
        self.assertEqual(json.loads((self.folder / "auto" / "profile.json").read_text())["state_arrays"], 1, "of SGD with momentum")
        self.assertRegex(output, r"plan: .*, predicted \S+ \S+ a step")
        before = (self.folder / "auto" / "plan.json").read_bytes()
        self.train("auto", *DOUBLE, "--plan", "auto", "--steps", 20, "--resume")
        self.assertEqual((self.folder / "auto" / "plan.json").read_bytes(), before, "a resumed run keeps its plan")
        self.assert_same("one", "auto", 1e-9)

    def test_plan_auto_says_how_right_it_was(self):
        output = self.train("auto", *DOUBLE, "--plan", "auto", "--steps", 40)
        told = [line["text"] for line in self.lines("auto") if line.get("event") == "prediction"]
        self.assertEqual(len(told), 1, output)
        self.assertRegex(told[0], r"a step takes .* and the plan predicts ")
        self.assertRegex(output, r"plan: a step took .* and the plan predicts ")
        rows = {row["metric"]: row for row in json.loads((self.folder / "auto" / "summary.json").read_text())}
        predicted = json.loads((self.folder / "auto" / "plan.json").read_text())["predicted"]["step_seconds"]
        measured = rows["step_seconds"]["value"]
        if not [line for line in self.lines("auto") if line.get("event") == "moved"]:
            self.assertAlmostEqual(rows["step_prediction_error"]["value"], abs(measured / predicted - 1), places=6)

    def test_an_interrupt_before_there_is_a_plan_leaves_no_folder(self):
        run = self.folder / "auto"
        job = self.start("auto", *DOUBLE, "--plan", "auto")
        interrupt_once(self, job, lambda: (run / "cluster.yaml").exists(), 60)  # from then on it is measured
        output, _ = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 130, output)
        self.assertFalse(run.exists(), output)
        run.mkdir()  # one that was there stays, and takes the next run
        self.train("auto", *DOUBLE, "--workers", 1, "--steps", 2)

    def test_a_lost_rank_is_named(self):
        plan = self.plan("plan", [(2, [1], {}), (4, [0.5, 0.5], {}), (7, [1], {})])
        for rank in (0, 2, 3):
            with self.subTest(rank=rank):
                job = self.start(f"run{rank}", *NETWORK, "--plan", plan, "--epochs", 10000)
                self.wait_for_step(f"run{rank}", 5)
                os.kill(self.worker_processes(job.pid)[rank], signal.SIGKILL)
                output, _ = job.communicate(timeout=60)
                self.assertEqual(job.returncode, 1, output)
                self.assertIn(f"rank {rank}", output.splitlines()[-1])

    def test_plans_that_do_not_fit_are_refused(self):
        fits = [(2, [1], {}), (7, [1], {})]
        for name, flags, fields, words in (
                ("batch", ("--global-batch-size", 64), {}, "global_batch_size: 64"),
                ("layers", (), {"layers": ["other", *LAYERS[1:]], "stages": [
                    {"first_layer": "other", "last_layer": "output", "replicas": [{"type": "a", "count": 1}],
                     "gradient_sync": "none", "recompute": False}]}, "layers[0] is 'other'"),
                ("workers", ("--workers", 3), {}, "workers: 3"),
                ("gradient accumulation", ("--gradient-accumulation-steps", 2), {}, "gradient_accumulation_steps: 2"),
                ("shares", ("--batch-split.mode", "equal"), {}, "batch_split.mode: equal"),
                ("server", ("--gradient-sync.method", "parameter-server"), {}, "gradient_sync.method: parameter-server"),
                ("cluster", [None, None], {}, "no device type"),
                ("emulated", [0.001, 0.001], {}, "is emulated"),
                ("layers of the profile", ("--emulation", self.profile({"type0": 1e-4})), {"layers": LAYERS[:7] + ["last"], "stages": [
                    {"first_layer": "flatten", "last_layer": "last", "replicas": [{"type": "type0", "count": 1}],
                     "gradient_sync": "none", "recompute": False}]}, "'last'"),
                ("type", ("--emulation", self.profile({"other": 1e-4})), {}, "no device type 'type0'")):
            with self.subTest(name):
                if isinstance(flags, list):
                    flags = ("--cluster", self.cluster(flags))
                output = self.train(name, *NETWORK, "--plan", self.plan(name, fits, **fields), *flags, expect=2)
                self.assertIn(words, output)

    def test_auto_and_emulation_say_what_they_need(self):
        self.assertIn("workers: 2", self.train("workers", "--plan", "auto", "--workers", 2, expect=2))
        self.assertIn("emulation: ", self.train("emulation", "--emulation", "profile.json", expect=2))


class MeasuredSpeeds(PlannedJobs):
    """Shares and plans that follow the speeds that a run measures."""

    alone = "speeds are measured"

    def test_shares_inside_a_stage_follow_measured_speed(self):
        self.train("one", *DOUBLE, "--workers", 1, "--steps", 80)
        plan = self.plan("plan", [(4, [0.5, 0.5], {}), (7, [1], {})])
        profile = self.profile({"type0": 1e-4, "type1": 3e-4})
        emulated = (*DOUBLE, "--plan", plan, "--emulation", profile, "--replan", "false")
        self.train("planned", *emulated, "--steps", 50)
        self.train("planned", *emulated, "--steps", 80, "--resume")
        self.assert_same("one", "planned", 1e-9)
        workers = json.loads((self.folder / "planned" / "run.json").read_text())["workers"]
        self.assertTrue(all(worker["emulated"].startswith("by the profile ") for worker in workers), workers)
        steps = [line for line in self.lines("planned") if "batch_split" in line]
        self.assertEqual(steps[0]["batch_split"], [30, 30, 60])
        self.assertLess(steps[-1]["batch_split"][1], 20, "a device of a third of the other's speed should have 15 of 60")
        self.assertEqual(sum(steps[-1]["batch_split"][:2]), 60)
        self.assertLess(steps[50]["batch_split"][1], 25, "a checkpoint keeps what was learnt")
        decisions = [line["decision"] for line in steps if "decision" in line]
        self.assertTrue(decisions and all(text.startswith("stage 0: ") for text in decisions), decisions)

        self.train("fixed", *emulated, "--steps", 30, "--batch-split.mode", "fixed")
        self.assertEqual({tuple(line["batch_split"]) for line in self.lines("fixed") if "batch_split" in line}, {(30, 30, 60)})

    def test_a_run_moves_to_a_plan_for_the_speeds_that_it_sees(self):
        """The profile says that both workers are alike; one takes three times as long."""
        steps = 120  # each takes several times as long as its computation, so that a busy machine can emulate it
        adam = (*DOUBLE, "--optimizer.name", "adam", "--optimizer.learning-rate", 0.01)
        self.train("one", *adam, "--workers", 1, "--steps", steps + 20)
        plan = self.plan("plan", [(4, [1], {}), (7, [1], {})])
        stages = json.loads(plan.read_text())
        stages["stages"][1]["replicas"][0]["type"] = "type1"
        plan.write_text(json.dumps(stages))
        # The slow worker has the first of two stages. It has so little memory that it can hold two layers at the end, where
        # one micro-batch is under way at a time, and but one at the front: the workers swap.
        small = self.folder / "small.yaml"
        small.write_text("version: 2\ndevice_types: [{name: type0, kind: cpu, count: 1, memory: 25 KB}, "
                         "{name: type1, kind: cpu, count: 1}]\n")
        flags = (*adam, "--plan", plan, "--profile", self.profile({"type0": 5e-5, "type1": 5e-5}, "believed"),
                 "--emulation", self.profile({"type0": 1.5e-4, "type1": 5e-5}, "real"))
        for name, more in (("moved", ()), ("swapped", ("--cluster", small))):
            with self.subTest(name):
                output = self.train(name, *flags, *more, "--steps", steps)
                moves = [line for line in self.lines(name) if line.get("event") == "moved"]
                self.assertTrue(moves, output)
                self.assertIn("worker 0 takes ", moves[0]["text"])
                after = json.loads((self.folder / name / f"plan-after-step-{moves[0]['step']}.json").read_text())
                work = {"type0": 0, "type1": 0}  # layers times shares
                for stage in after["stages"]:
                    layers = LAYERS.index(stage["last_layer"]) - LAYERS.index(stage["first_layer"]) + 1
                    workers = sum(replicas["count"] for replicas in stage["replicas"])
                    for replicas in stage["replicas"]:
                        work[replicas["type"]] += layers * replicas["count"] * replicas.get("batch_fraction", 1 / workers)
                self.assertAlmostEqual(sum(work.values()), len(LAYERS))
                self.assertLess(work["type0"], 4, "the slow worker had five of eight layers")
                if name == "swapped":
                    self.assertEqual([stage["replicas"][0]["type"] for stage in after["stages"]], ["type1", "type0"])
                self.train(name, *flags, *more, "--steps", steps + 20, "--resume")
                self.assert_same("one", name, 1e-9)

        output = self.train("stays", *flags, "--steps", 60, "--replan", "false")
        self.assertEqual([line for line in self.lines("stays") if line.get("event") == "moved"], [], output)

    def test_a_tied_run_moves_to_another_plan(self):
        """The profile says that both workers are alike; one takes three times as long, and has most of the layers."""
        self.use_transformer()
        # Keys' biases have no gradient but rounding. With Adam's usual epsilon they would follow it, to 1e-9 after 200 steps with
        # some numbers of micro-batches.
        adam = (*TIED, "--optimizer.name", "adam", "--optimizer.learning-rate", 0.01, "--optimizer.epsilon", 1e-4)
        self.train("one", *adam, "--workers", 1, "--steps", 200)
        plan = self.plan("plan", [(4, [1], {}), (5, [1], {})])
        stages = json.loads(plan.read_text())
        stages["stages"][1]["replicas"][0]["type"] = "type1"
        plan.write_text(json.dumps(stages))
        output = self.train("moved", *adam, "--plan", plan, "--steps", 200,
                            "--profile", self.profile({"type0": 1e-4, "type1": 1e-4}, "believed"),
                            "--emulation", self.profile({"type0": 3e-4, "type1": 1e-4}, "real"))
        self.assertTrue([line for line in self.lines("moved") if line.get("event") == "moved"], output)
        self.assert_same("one", "moved", 1e-9)


class Tied(PlannedJobs):
    """Layers that share a tensor are in several stages."""

    def test_a_tied_transformer_gives_the_weights_of_one_worker(self):
        self.use_transformer()
        self.assert_shapes_give_the_weights_of_one_worker([2, 3, 4, 4], *TIED)
        for run in ("one", "planned0"):
            names = self.weights(run).keys()
            self.assertIn("embedding.token.weight", names)
            self.assertNotIn("output.weight", names)

    def test_a_tied_run_goes_on_with_another_plan_or_none(self):
        self.use_transformer()
        adam = (*TIED, "--optimizer.name", "adamw", "--optimizer.learning-rate", 0.01, "--max-grad-norm", 0.5)
        self.train("one", *adam, "--workers", 1, "--steps", 20)
        first = self.plan("first", [(1, [0.25, 0.75], {}), (5, [0.5, 0.2, 0.3], {})])
        second = self.plan("second", [(0, [1], {}), (3, [0.3, 0.7], {}), (5, [0.6, 0.4], {})], 5, "gpipe")
        for name, plan in (("other", second), ("none", None)):
            with self.subTest(then=name):
                self.train(name, *adam, "--plan", first, "--steps", 7)
                more = ("--plan", plan) if plan else ("--plan", "", "--workers", 2)
                self.train(name, *adam, *more, "--steps", 20, "--resume")
                self.assert_same("one", name, 1e-9)

    def test_an_exported_network_that_shares_tensors(self):
        import torch

        class Network(torch.nn.Module):
            def __init__(self, share_statistics):
                super().__init__()
                self.first = torch.nn.Linear(12, 12)
                self.second = torch.nn.Linear(12, 12)
                self.third = torch.nn.Linear(12, 12)
                self.last = torch.nn.Linear(12, 4)
                self.third.weight = self.first.weight
                self.norm = torch.nn.BatchNorm1d(12) if share_statistics else torch.nn.Identity()

            def forward(self, x):
                x = self.norm(torch.relu(self.first(x)))
                x = torch.relu(self.second(x))
                x = self.norm(torch.relu(self.third(x)))
                return self.last(x)

        torch.manual_seed(3)
        for share_statistics in (False, True):
            self.export(Network(share_statistics), f"{share_statistics}.pt2")
        flags = (*EXPORTED, "--max-grad-norm", 1)
        self.layers = [layer["name"] for layer in self.profiled_layers("False.pt2")]
        self.assertEqual(self.layers, ["first", "relu", "second", "relu#2", "third", "relu#3", "last"])
        self.train("one", *flags, "--model.path", self.folder / "False.pt2", "--workers", 1)
        stages = [(1, [0.5, 0.5], {}), (3, [1], {}), (6, [0.25, 0.75], {})]
        for schedule in ("1f1b", "gpipe"):
            with self.subTest(schedule):
                self.train(schedule, *flags, "--model.path", self.folder / "False.pt2",
                           "--plan", self.plan(schedule, stages, 4, schedule))
                self.assert_same("one", schedule, 1e-9)
        self.layers = [layer["name"] for layer in self.profiled_layers("True.pt2")]
        self.assertEqual(self.layers, ["first", "relu", "norm", "second", "relu#2", "third", "relu#3", "norm#2", "last"])
        stages = [(1, [0.5, 0.5], {}), (4, [1], {}), (8, [0.25, 0.75], {})]
        output = self.train("statistics", *flags, "--model.path", self.folder / "True.pt2",
                            "--plan", self.plan("statistics", stages), expect=2)
        self.assertIn("layers 'norm', 'norm#2' share 'norm.running_mean' and are in stages 1, 2, which share only what is "
                      "trained", output)

    def test_what_cannot_be_tied_across_stages_is_refused(self):
        self.use_transformer()
        stages = [(2, [0.25, 0.75], {"gradient_sync": "parameter-server"}), (5, [1], {})]
        flags = (*TIED, "--model.dtype", "float32")
        output = self.train("served", *flags, "--plan", self.plan("served", stages), expect=2)
        self.assertIn("layers 'embedding', 'output' share 'embedding.token.weight' and are in stages 0, 1, of which stage 0 "
                      "uses a parameter server; accepted: plans that have these layers in one stage, or none of these "
                      "stages at a parameter server", output)


class Skips(PlannedJobs):
    """Values that go around stages."""

    def test_a_network_whose_values_go_around_stages(self):
        import torch

        class Network(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.down1 = torch.nn.Sequential(torch.nn.Linear(12, 10), torch.nn.Tanh())
                self.down2 = torch.nn.Sequential(torch.nn.Linear(10, 6), torch.nn.Tanh())
                self.middle = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh())
                self.up2 = torch.nn.Sequential(torch.nn.Linear(11, 8), torch.nn.Tanh())
                self.up1 = torch.nn.Sequential(torch.nn.Linear(18, 8), torch.nn.Tanh())
                self.last = torch.nn.Linear(8, 4)

            def forward(self, x):
                one = self.down1(x)
                two = self.down2(one)
                inner = self.up2(torch.cat([self.middle(two), two], 1))
                return self.last(self.up1(torch.cat([inner, one], 1)))

        torch.manual_seed(3)
        self.export(Network(), "network.pt2")
        layers = self.profiled_layers("network.pt2")
        self.layers = [layer["name"] for layer in layers]
        self.assertEqual(self.layers, ["down1.0", "down1.1", "down2", "middle..cat", "up2..cat", "up1.0", "up1.1", "last"])
        self.assertEqual([layer["activation_bytes"] / 4 for layer in layers], [10, 10, 16, 21, 18, 8, 8, 4])
        self.assert_shapes_give_the_weights_of_one_worker([2, 3, 4, 4], *EXPORTED, "--model.path", self.folder / "network.pt2")


class Synthetic(PlannedJobs):
    """Networks that only send and sleep."""

    def setUp(self):
        super().setUp()
        self.job.write_text(self.job.read_text().replace("model: {name: mlp, hidden_sizes: [16]}", "model: {name: synthetic}"))
        self.synthetic = self.profile({"type0": 0.0004, "type1": 0.0008})

    def test_workers_take_the_time_of_their_layers_and_keep_no_weights(self):
        plan = self.plan("plan", [(3, [1], {}), (7, [0.5, 0.5], {})])
        output = self.train("run", "--model.path", self.synthetic, "--plan", plan, "--steps", 4, "--batch-split.mode", "fixed")
        steps = [line for line in self.lines("run") if "step_seconds" in line]
        self.assertEqual(len(steps), 4, output)
        # A sample takes 3 times its forward pass; the last layer has the time of "step", too.
        expected = [4 * 60 * 3 * 0.0004, 5 * 30 * 3 * 0.0004, 5 * 30 * 3 * 0.0008]
        for line in steps:
            self.assertEqual(line["samples"], [60, 30, 30])
            for seconds, least in zip(line["compute_seconds"], expected):
                self.assertGreater(seconds, 0.99 * least)
        self.assertEqual(list((self.folder / "run/checkpoint").glob("*")), [])
        self.assertTrue((self.folder / "run/report.html").exists())

    def test_plan_auto_plans_from_the_synthetic_profile(self):
        cluster = self.folder / "heterogeneous.yaml"
        cluster.write_text(
            "version: 2\n"
            "device_types: [{name: type0, kind: cpu, count: 1}, {name: type1, kind: cuda, count: 1}]\n"
            "nodes: [{name: a, devices: [{type: type0, count: 1}]}, {name: b, devices: [{type: type1, count: 1}]}]\n"
            "links: [{from: a, to: b, bandwidth: 10 Gb/s, latency: 10 us}]\n")
        output = self.train("run", "--model.path", self.synthetic, "--plan", "auto", "--cluster", cluster, "--steps", 2)
        self.assertIn("predicted", output)
        plan = json.loads((self.folder / "run/plan.json").read_text())
        used = {replica["type"] for stage in plan["stages"] for replica in stage["replicas"]}
        self.assertEqual(used, {"type0", "type1"}, "on a fast link both are of use")
        self.assertLess(plan["predicted"]["step_seconds"], 9 * 60 * 3 * 0.0004, "and faster than the fast one alone")

    def test_what_cannot_be_synthetic_is_refused(self):
        plan = self.plan("plan", [(7, [1], {})])
        for name, flags, words in (
                ("no plan", ("--model.path", self.synthetic), "plan: none"),
                ("no profile", ("--plan", plan), "model.path: empty"),
                ("missing", ("--plan", plan, "--model.path", "missing.json"), "missing.json"),
                ("double", ("--plan", plan, "--model.path", self.synthetic, "--model.dtype", "float64"), "model.dtype"),
                ("other layers", ("--plan", self.plan("other", [(7, [1], {})], layers=["x", *LAYERS[1:]], stages=[
                    {"first_layer": "x", "last_layer": "output", "replicas": [{"type": "type0", "count": 1}],
                     "gradient_sync": "none", "recompute": False}]), "--model.path", self.synthetic), "'x'")):
            with self.subTest(name):
                self.assertIn(words, self.train("run", *flags, expect=2))


class MeasuredPlans(PlannedJobs):
    """Plans that are chosen by running them, on devices that are not what the profile says."""

    alone = "speeds are measured"

    def measure(self, *flags, expect=0, method="rl-attention", batch=60):
        cluster = self.folder / "types.yaml"
        cluster.write_text("version: 2\n"
                           "device_types: [{name: type0, kind: cpu, count: 1}, {name: type1, kind: cpu, count: 1}]\n")
        done = subprocess.run(
            [BINARY, "plan", "--profile", str(self.profile({"type0": 2e-5, "type1": 6e-5}, "believed")),
             "--cluster", str(cluster), "--global-batch-size", str(batch), "--micro-batches", "2", "--method", method,
             "--measure", str(self.job), "--measure-steps", "3", "--output", str(self.folder / "plan.json"),
             "--html", str(self.folder / "plan.html"), "--overwrite", *map(str, flags)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=170)
        self.assertEqual(done.returncode, expect, done.stdout)
        return done.stdout

    def test_the_plan_that_ran_fastest_is_written(self):
        """What the cost model takes for the fast device is really ten times as slow as the other."""
        real = self.profile({"type0": 4e-4, "type1": 4e-5}, "real")
        text = self.job.read_text().replace("hidden_sizes: [16]", "hidden_sizes: [16, 16, 16]")
        self.job.write_text(f"{text}emulation: {real}\n")
        output = self.measure("--measure-plans", 6, "--time-limit", "60s")
        runs = re.findall(r"(?m)^\d+ of 6: ([\d.]+) (m?s) \(predicted ", output)
        self.assertGreaterEqual(len(runs), 2, output)
        measured = [float(value) / (1000 if unit == "ms" else 1) for value, unit in runs]
        plan = json.loads((self.folder / "plan.json").read_text())
        self.assertEqual(plan["measured"]["steps"], 3)
        self.assertAlmostEqual(plan["measured"]["step_seconds"], min(measured), delta=0.02 * min(measured))
        self.assertLess(min(measured), measured[0], "what the cost model thinks best is far from it")
        self.assertNotAlmostEqual(plan["predicted"]["step_seconds"], plan["measured"]["step_seconds"], delta=1e-4)
        self.assertIn("Measured", (self.folder / "plan.html").read_text())
        self.train("run", "--plan", self.folder / "plan.json", "--steps", 3)

    def test_what_cannot_be_measured_is_said(self):
        output = self.measure("--measure-plans", 2, "--time-limit", "20s", expect=1)
        self.assertIn("layers has 8 names, but the network 'mlp' has", output)  # the job's has fewer
        for method in ("exact", "brute-force"):
            self.assertIn(f"--measure: given with --method {method},", self.measure(method=method, expect=2))
        self.assertIn("--what-if", self.measure("--what-if", "type0.count=2", expect=2))
        self.assertIn("accepted: 60", self.measure(batch=61, expect=2))
        self.assertFalse((self.folder / "plan.json").exists())


if __name__ == "__main__":
    unittest.main()
