"""Wrong input: a message that names file, field, value and what would be accepted, exit code 2, nothing half-written."""

import socket
import subprocess
import unittest

import numpy

from harness import BINARY, Scenario


class BadInput(Scenario):
    def refuse(self, *flags, expect=2, job=True):
        last = self.train("refused", *flags, expect=expect, job=job).strip().splitlines()[-1]
        return last

    def test_unknown_keys_and_values(self):
        self.job.write_text(self.job.read_text() + "global_bacth_size: 5\n")
        message = self.refuse()
        self.assertIn("job.yaml:10", message)
        self.assertIn("unknown key 'global_bacth_size'; did you mean 'global_batch_size'?", message)
        self.assertFalse((self.folder / "refused").exists())

    def test_a_job_file_of_the_version_before(self):
        self.job.write_text(self.job.read_text().replace("global_batch_size", "batch").replace("gradient_sync: {bucket_size", "exchange: {bucket_bytes"))
        self.assertIn("accepted: version 2, in which batch is now global_batch_size, "
                      "exchange.bucket_bytes is now gradient_sync.bucket_size", self.refuse())

    def test_a_start_that_fails_leaves_the_run_that_it_would_replace(self):
        self.train("run", "--steps", 4, "--checkpoint.every-steps", 2)
        before = {path: path.read_bytes() for path in sorted((self.folder / "run/checkpoint").rglob("*")) if path.is_file()}
        self.assertTrue(before)
        lines = self.lines("run")
        original = (self.folder / "train.npy").read_bytes()
        broken = numpy.load(self.folder / "train.npy")
        broken.flat[0] = float("nan")
        for name, flags in (("device", ("--device", "cuda:99")), ("data", ())):
            with self.subTest(name):
                if name == "data":
                    numpy.save(self.folder / "train.npy", broken)
                done = subprocess.run(self.command("run", "--overwrite", *flags), capture_output=True, text=True, timeout=180)
                self.assertIn(done.returncode, (1, 2), done.stderr)
                self.assertIn("error", done.stderr)
                self.assertEqual({path: path.read_bytes() for path in before}, before)
                self.assertEqual(self.lines("run"), lines)
                self.assertFalse((self.folder / "run/replaced").exists())
        (self.folder / "train.npy").write_bytes(original)
        self.train("run", "--resume", "--steps", 6)
        self.train("run", "--overwrite", "--steps", 2)
        self.assertEqual(sorted(self.losses("run")), [1, 2])
        self.assertFalse((self.folder / "run/replaced").exists())

    def test_a_run_set_aside_by_a_start_that_was_killed_comes_back(self):
        self.train("run", "--steps", 4, "--checkpoint.every-steps", 2)
        losses = self.losses("run")
        (self.folder / "run/replaced").mkdir()
        for name in ("metrics.jsonl", "checkpoint", "run.json", "logs"):  # as a kill may leave it
            (self.folder / "run" / name).rename(self.folder / "run/replaced" / name)
        self.train("run", "--resume", "--steps", 6)
        continued = self.losses("run")
        self.assertEqual(sorted(continued), list(range(1, 7)))
        self.assertEqual({step: continued[step] for step in losses}, losses)

    def test_a_job_file_that_is_no_text(self):
        for content, why in ((b"\xff\xfe\x00", ":1: control characters or bytes that are not UTF-8"), (b"", ": the file is empty"),
                             (b"# nothing\n", ": the file is empty"), (b"- 1\n", ": the file has no keys"),
                             (b"seed: 1\nname: \x01\n", ":2: control characters")):
            with self.subTest(content):
                self.job.write_bytes(content)
                self.assertIn(f"job.yaml{why}", self.refuse())

    def test_a_run_that_is_done_says_so(self):
        self.train("run", "--steps", 6)
        job = (self.folder / "run/job.yaml").read_text()
        lines = self.lines("run")
        self.assertIn("step 6 is done, and the job has 4: nothing is left to do; accepted: more --steps or --epochs",
                      self.train("run", "--resume", "--steps", 4))
        self.assertEqual((self.folder / "run/job.yaml").read_text(), job)
        self.assertEqual([line for line in self.lines("run") if "loss" in line], [line for line in lines if "loss" in line])

    def test_a_line_that_is_no_metrics_is_told(self):
        self.train("run", "--steps", 6)
        metrics = self.folder / "run/metrics.jsonl"
        lines = metrics.read_text().splitlines(keepends=True)
        metrics.write_text("".join([*lines[:2], "garbage\n", *lines[2:]]))
        self.assertRegex(self.train("run", "--resume", "--steps", 8), r"metrics\.jsonl:3 is left out: ")
        self.assertEqual(sorted(self.losses("run")), list(range(1, 9)))

    def test_a_batch_of_more_than_there_is(self):
        self.assertIn("global_batch_size: 700 is more than the 600 training samples: a step has 600",
                      self.train("run", "--global-batch-size", 700))

    def test_what_stops_a_worker_is_said_once(self):
        broken = numpy.load(self.folder / "train.npy")
        broken.flat[0] = float("nan")
        numpy.save(self.folder / "train.npy", broken)
        output = self.train("refused", "--workers", 2, expect=2)
        self.assertEqual(output.count("error:"), 1, output)
        self.assertFalse((self.folder / "refused").exists(), "a folder of which nothing is of use")

    def test_a_name_is_that_of_one_folder(self):
        for name in ("../../evil", "/tmp/evil", ".hidden", "a/b", "a\\b"):
            with self.subTest(name):
                self.assertIn(f"name: '{name}' is not the name of a folder; accepted: up to 200 letters", self.refuse("--name", name))

    def test_flags(self):
        self.assertIn("accepted: an integer from 1", self.refuse("--global-batch-size", "0"))
        self.assertIn("accepted: one of mlp, cnn", self.refuse("--model.name", "resnet"))
        self.assertIn("optimizer.nesterov", self.refuse("--optimizer.nesterov", "true", "--optimizer.momentum", "0"))

    def test_a_batch_smaller_than_the_workers(self):
        self.assertIn("global_batch_size: 3 is smaller than the number of workers; accepted: 4 or more",
                      self.refuse("--global-batch-size", 3, "--workers", 4))

    def test_missing_and_damaged_data(self):
        message = self.refuse("--data.train", self.folder / "nowhere.npy")
        self.assertIn("nowhere.npy", message)
        data = self.folder / "train.npy"
        data.write_bytes(data.read_bytes()[:1000])
        self.assertIn("train.npy", self.refuse("--overwrite"))

    def test_texts_and_networks_that_do_not_suit_each_other(self):
        (self.folder / "text.txt").write_text("too short")
        text = ("--data.name", "text", "--data.train", self.folder / "text.txt", "--data.test", "")
        self.assertIn("accepted with data.name text: transformer, exported", self.refuse(*text))
        transformer = ("--model.name", "transformer", "--model.hidden-sizes", "[]")
        self.assertIn("accepted with it: data.name text or tokens, not npy", self.refuse(*transformer))
        self.assertIn("text.txt: 8 of its 9 tokens are used here; accepted: 65 or more",
                      self.refuse(*text, *transformer))

    def test_a_folder_that_holds_a_run(self):
        self.train("refused", "--steps", 2)
        self.assertIn("--resume", self.refuse("--steps", 2))
        self.assertIn("holds no run", self.train("empty", "--resume", expect=2))

    def test_a_run_is_not_overwritten_for_input_that_is_not_there(self):
        self.train("refused", "--steps", 2)
        weights = self.weights("refused")
        for key, value in (("--data.train", "nowhere.npy"), ("--data.test-targets", "nowhere.npy"),
                           ("--model.path", "nowhere.pt"), ("--cluster", "nowhere.yaml"), ("--batch-split.replay", "nowhere")):
            mode = ("--batch-split.mode", "replay") if key == "--batch-split.replay" else ()
            self.assertIn("nowhere", self.refuse("--overwrite", key, self.folder / value, *mode))
        self.assertIn("batch_split.fixed: 2 numbers", self.refuse("--overwrite", "--workers", 3, "--batch-split.mode", "fixed",
                                                             "--batch-split.fixed", "1,2"))
        self.assertEqual(self.weights("refused").keys(), weights.keys())
        self.train("refused", "--steps", 4, "--resume")

    def test_a_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            hosts = self.folder / "hosts"
            hosts.write_text(f"127.0.0.1:{port}\n127.0.0.1\n")
            secret = self.folder / "secret"
            secret.write_text("0123456789abcdef")
            secret.chmod(0o600)
            done = subprocess.run(self.command("run", "--workers", 2, "--hosts", hosts, "--rank", 0, "--deadline.join", "5 s"),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                                  env={"MOTLEY_SECRET_FILE": str(secret)})
            self.assertIn(done.returncode, (1, 2), done.stdout)
            self.assertIn(str(port), done.stdout.strip().splitlines()[-1])

    def test_usage(self):
        for arguments in ([], ["train", "--no-such-flag"], ["dance"]):
            done = subprocess.run([BINARY, *arguments], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, arguments)


if __name__ == "__main__":
    unittest.main()
