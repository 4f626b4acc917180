"""motley profile on small data: a file that says where every number comes from, and refusals that say what helps."""

import functools
import json
import os
import subprocess
import unittest

from harness import BINARY, Scenario, computed_seconds, interrupt_once


class Profile(Scenario):
    alone = "speeds are measured"

    def profile(self, *flags, expect=0):
        output = self.folder / "profile.json"
        command = [BINARY, "profile", self.job, "--output", output, "--overwrite", *flags]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        if expect:
            self.assertFalse(output.exists())
            return done.stderr.strip().splitlines()[-1]
        return json.loads(output.read_text()), done.stdout

    def test_layers_devices_and_links(self):
        profile, text = self.profile("--batch-sizes", "2,8", "--time-limit", "2s", "--scale", "gpu=cpu*0.05")
        layers = profile["graph"]["layers"]
        self.assertEqual([layer["name"] for layer in layers], ["flatten", "fc1", "relu1", "output", "step"])
        self.assertEqual(sum(layer.get("parameters", 0) for layer in layers), 12 * 16 + 16 + 16 * 4 + 4)
        cpu, gpu = profile["devices"]
        self.assertEqual((cpu["type"], cpu["origin"]), ("cpu", "measured"))
        self.assertEqual([point["batch_size"] for point in cpu["layers"][1]["measurements"]], [2, 8])
        self.assertEqual((gpu["type"], gpu["origin"]), ("gpu", "scaled"))
        self.assertIn("0.05 times the seconds of 'cpu'", gpu["rule"])
        for layer, scaled in zip(cpu["layers"], gpu["layers"]):
            for direction in ("forward", "backward"):
                for part, seconds in layer[direction].items():
                    self.assertAlmostEqual(scaled[direction].get(part, 0), 0.05 * seconds, delta=1e-12)
        self.assertEqual(cpu["noise"], gpu["noise"], "it is as noisy as what it was scaled from")
        self.assertGreaterEqual(cpu["noise"]["pass_spread"], 0)
        self.assertIn("how quiet it was: load average", text)
        data = cpu.get("overheads", {}).get("data", {}).get("per_sample", 0)
        self.assertAlmostEqual(gpu.get("overheads", {}).get("data", {}).get("per_sample", 0), 0.05 * data, delta=1e-12)
        self.assertIn("besides its layers: loss", text)
        (link,) = profile["links"]
        self.assertEqual((link["from"], link["to"], link["origin"]), ("cpu", "cpu", "measured"))
        self.assertGreater(link["bytes_per_second"], 0)
        for word in ("fc1", "fully-connected", "spread", "profile.json", "two points only"):
            self.assertIn(word, text)

    def test_an_interrupt_leaves_nothing(self):
        """While layers are measured, and while whole steps run in processes of their own."""
        for named, batch, seconds, is_there in (
                ("layers", ",".join(str(100000 + k) for k in range(1000)), 10000, lambda process: computed_seconds(process.pid) > 2),
                ("whole steps", 8, 8, lambda process: list(self.folder.glob("motley-brief-*/run/metrics.jsonl")))):
            with self.subTest(named):
                command = [BINARY, "profile", self.job, "--output", self.folder / "profile.json", "--batch-sizes", batch,
                           "--time-limit", f"{seconds}s"]
                process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                           env=os.environ | {"TMPDIR": str(self.folder)})
                interrupt_once(self, process, functools.partial(is_there, process), 120)
                _, said = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 130, said)
                self.assertEqual(said.strip().splitlines()[-1], "motley: stopped as asked; nothing was written")
                self.assertFalse((self.folder / "profile.json").exists())
                self.assertEqual(list(self.folder.glob("motley-brief-*")), [])

    def test_types_of_a_cluster_file(self):
        cluster = self.folder / "cluster.yaml"
        types = "version: 2\ndevice_types: [{name: here, kind: cpu}, {name: slow, kind: cpu}%s]\nworkers:\n"
        slow = "  - {name: a, device: slow, seconds_per_sample: 5 ms}\n  - {name: b, device: slow, seconds_per_sample: 5 ms}\n"
        cluster.write_text(types % "" + slow)
        profile, _ = self.profile("--cluster", cluster, "--batch-sizes", "2,8", "--time-limit", "2s")
        here, paced = profile["devices"]
        self.assertEqual((here["origin"], paced["origin"]), ("measured", "scaled"))
        self.assertIn("seconds_per_sample", paced["rule"])
        eight = sum(layer[direction].get("fixed", 0) + 8 * layer[direction].get("per_sample", 0)
                    for layer in paced["layers"] for direction in ("forward", "backward"))
        overheads = paced.get("overheads", {})
        loss = paced["layers"][-1]["forward"]
        own = eight - loss.get("fixed", 0) - 8 * loss.get("per_sample", 0)
        eight += 8 * overheads.get("data", {}).get("per_sample", 0) + own * overheads.get("framework_fraction", 0)
        self.assertAlmostEqual(eight, 8 * 0.005, delta=0.02)
        self.assertEqual([(link["from"], link["to"]) for link in profile["links"]], [("here", "here")])

        cluster.write_text(types % ", {name: gpu, kind: cuda}" + slow)
        (self.folder / "profile.json").unlink()
        message = self.profile("--cluster", cluster, expect=2)
        self.assertIn("'gpu' is of kind cuda", message)
        self.assertIn("--scale gpu=TYPE*FACTOR", message)
        cluster.write_text(types % "")
        self.assertIn("'here' and 'slow' are both of kind cpu", self.profile("--cluster", cluster, expect=2))

    def test_an_estimate_is_that_of_the_stated_speeds(self):
        cluster = self.folder / "cluster.yaml"
        types = "version: 2\ndevice_types: [{name: here, kind: cpu, count: 2%s}]\n"
        cluster.write_text(types % "")
        self.assertIn("'here' has no speed", self.profile("--estimate", "--cluster", cluster, expect=2))
        self.assertIn("needs --cluster", self.profile("--estimate", expect=2))
        cluster.write_text(types % ", speed: {flops_per_second: 1e6, memory_bandwidth: 1 GB/s, layer_overhead: 1 ms}")
        profile, text = self.profile("--estimate", "--cluster", cluster)
        (device,) = profile["devices"]
        self.assertEqual((device["type"], device["origin"]), ("here", "scaled"))
        layer = [layer["name"] for layer in profile["graph"]["layers"]].index("fc1")
        self.assertAlmostEqual(device["layers"][layer]["forward"]["per_sample"], 2 * 12 * 16 / 1e6)
        self.assertAlmostEqual(device["layers"][layer]["forward"]["fixed"], 1e-3)
        self.assertIn("computed, not measured", text)

    def test_the_arrays_of_the_optimizers_state_are_counted(self):
        cluster = self.folder / "cluster.yaml"
        cluster.write_text("version: 2\ndevice_types: [{name: here, kind: cpu, count: 2, speed: "
                           "{flops_per_second: 1e6, memory_bandwidth: 1 GB/s}}]\n")
        for name, momentum, arrays in (("sgd", 0, 0), ("sgd", 0.9, 1), ("adam", 0, 2), ("adamw", 0.9, 2)):
            profile, _ = self.profile("--estimate", "--cluster", cluster, "--optimizer.name", name, "--optimizer.momentum", momentum)
            self.assertEqual(profile["state_arrays"], arrays, name)

    def test_an_elastic_job_is_measured_like_any_other(self):
        profile, _ = self.profile("--elastic", "2:4", "--batch-sizes", "2,8", "--time-limit", "2s", "--optimizer.name", "adam")
        self.assertEqual([device["type"] for device in profile["devices"]], ["cpu"])
        self.assertEqual(profile["state_arrays"], 2)

    def test_a_row_that_a_batch_reads_twice_comes_once(self):
        cluster, clicks = self.folder / "cluster.yaml", self.folder / "clicks.tsv"
        cluster.write_text("version: 2\ndevice_types: [{name: here, kind: cpu, count: 2, speed: "
                           "{flops_per_second: 1e6, memory_bandwidth: 1 GB/s, lookups_per_second: 1e5}}]\n")
        clicks.write_text("".join("\t".join(["1", *["2"] * 13, *["aaaa"] * 25, f"{line:x}"]) + "\n" for line in range(24)))
        profile, _ = self.profile("--estimate", "--cluster", cluster, "--model.name", "ctrdnn", "--data.name", "criteo",
                                  "--data.train", clicks, "--data.test", clicks, "--global-batch-size", 24)
        self.assertEqual(profile["graph"]["layers"][0]["lookups"], 26)
        counted = profile["graph"]["distinct_lookups"]
        self.assertEqual([one["batch_size"] for one in counted], [6, 24])
        for one in counted:
            self.assertAlmostEqual(one["share"], (25 + one["batch_size"]) / (one["batch_size"] * 26))

    def test_refusals(self):
        self.assertIn("gpu=cpu*0.05", self.profile("--scale", "gpu=cpu", expect=2))
        self.assertIn("above 0", self.profile("--scale", "gpu=cpu*-1", expect=2))
        self.assertIn("given twice", self.profile("--scale", "gpu=cpu*2", "--scale", "gpu=cpu*3", expect=2))
        self.assertIn("ascending integers", self.profile("--batch-sizes", "4,1", expect=2))
        self.assertIn("accepted: cpu", self.profile("--scale", "gpu=tpu*2", "--batch-sizes", "2,4", "--time-limit", "1s", expect=2))
        self.assertIn("accepted: one of mlp, cnn", self.profile("--model.name", "resnet", expect=2))


if __name__ == "__main__":
    unittest.main()
