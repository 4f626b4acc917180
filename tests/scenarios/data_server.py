"""Jobs whose data a data server has: the same run as from files, bit by bit; who asks for what; what happens when the node
is lost, or is not the right one."""

import os
import shutil
import signal
import subprocess
import time
import unittest

import planned
from harness import BINARY

CLICKS = """name: clicks
model: {name: ctrdnn, hidden_sizes: [16, 16]}
data: {name: clicks, num_samples: 1200, num_categories: 2000}
global_batch_size: 60
epochs: 2
gradient_sync: {bucket_size: 4 KiB}
deadline: {join: 60 s, step: 20 s}
"""


class DataServer(planned.PlannedJobs):
    def setUp(self):
        super().setUp()
        self.files = self.folder / "data"  # whose job file the node is given
        self.files.mkdir()
        for data in self.folder.glob("*.npy"):
            shutil.copy(data, self.files)
        self.here = self.job
        self.there = self.files / "job.yaml"
        self.there.write_text(self.job.read_text())
        (self.folder / "bare").mkdir()
        self.bare = self.folder / "bare" / "job.yaml"  # of the workers, without files beside it
        self.bare.write_text(self.job.read_text())
        self.token = self.write_token("token", "a token that nobody guesses")

    def write_token(self, name, text):
        token = self.folder / name
        token.write_text(text + "\n")
        token.chmod(0o600)
        return token

    def node(self, listen="127.0.0.1:0"):
        """A data server, and where it listens."""
        address = self.folder / "address"
        address.unlink(missing_ok=True)
        log = open(self.folder / "node.log", "w")
        self.addCleanup(log.close)
        node = subprocess.Popen([BINARY, "data-server", self.there, "--listen", listen, "--token-file", self.token,
                                 "--address-file", address], stdout=log, stderr=subprocess.STDOUT)
        self.addCleanup(node.wait)
        self.addCleanup(node.kill)
        deadline = time.monotonic() + 120
        while not address.exists() or not address.read_text().endswith("\n"):
            self.assertLess(time.monotonic(), deadline, (self.folder / "node.log").read_text())
            time.sleep(0.02)
        return node, address.read_text().strip()

    def printed(self, node):
        """What the node's log says when it has been stopped."""
        node.terminate()
        self.assertEqual(node.wait(timeout=20), 0)
        return (self.folder / "node.log").read_text()

    def served(self, address):
        return ("--data.server", address, "--data.token-file", self.token)

    def train_bare(self, run, *flags, **more):
        """As train(), where the files of the data are not."""
        self.job = self.bare
        try:
            return self.train(run, *flags, **more)
        finally:
            self.job = self.here

    def assert_equal_runs(self, one, other):
        self.assert_bitwise(one, other)
        self.assertEqual(self.losses(one), self.losses(other))
        evaluations = [[line["evaluation"] for line in self.lines(run) if "evaluation" in line] for run in (one, other)]
        self.assertEqual(*evaluations)
        self.assertEqual(self.not_used_once(other), 0)

    def test_a_run_is_that_of_local_files(self):
        node, address = self.node()
        served = self.served(address)
        output = self.train_bare("refused", "--workers", 2, expect=2)
        self.assertIn("cannot read", output)
        for name, flags in (("fixed", ("--workers", 2, "--batch-split.mode", "fixed", "--batch-split.fixed", "20,40")),
                            ("unahead", ("--workers", 2, "--batch-split.mode", "equal", "--data.prefetch", 0))):
            with self.subTest(name):
                self.train(f"{name}-files", *flags)
                self.train_bare(f"{name}-node", *flags, *served)
                self.assert_equal_runs(f"{name}-files", f"{name}-node")
        self.train_bare("moving-node", "--cluster", self.cluster([0.001, 0.003]), *served)
        moving = [line["batch_split"] for line in self.lines("moving-node") if "batch_split" in line]
        self.assertGreater(len({tuple(shares) for shares in moving}), 1, "shares that never move discard nothing")
        self.train("moving-files", "--workers", 2, "--batch-split.mode", "replay", "--batch-split.replay",
                   self.folder / "moving-node")
        self.assert_equal_runs("moving-node", "moving-files")
        waits = [line["data_wait_seconds"] for line in self.lines("moving-node") if "batch_split" in line]
        self.assertTrue(all(len(wait) == 2 and min(wait) >= 0 for wait in waits))
        # A job goes on from files where it was with a node.
        self.train_bare("parts", *("--workers", 2, "--batch-split.mode", "equal"), *served, "--steps", 7)
        self.train("parts", "--workers", 2, "--batch-split.mode", "equal", "--data.server", "", "--data.token-file", "",
                   "--data.train", self.files / "train.npy", "--data.train-targets", self.files / "train_targets.npy",
                   "--data.test", self.files / "test.npy", "--data.test-targets", self.files / "test_targets.npy",
                   "--steps", 0, "--resume")
        self.assert_bitwise("unahead-files", "parts")
        self.printed(node)

    def test_pulled_shards_are_each_used_once(self):
        _, address = self.node()
        self.train_bare("pull", "--workers", 3, "--batch-split.mode", "work-queue", *self.served(address))
        self.assertEqual(self.not_used_once("pull"), 0)

    def test_only_the_ends_of_a_plan_ask_the_node(self):
        node, address = self.node()
        plan = self.plan("plan", [(1, [1], {}), (4, [1], {}), (7, [1], {})])
        flags = (*planned.NETWORK, "--batch-split.mode", "fixed", "--plan", plan)
        self.train("files", *flags)
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1:29541\n127.0.0.1\n127.0.0.1\n")
        secret = self.write_token("secret", "0123456789abcdef0123456789abcdef")
        self.job = self.bare
        command = self.command("node", *flags, "--data.server", address, "--hosts", hosts, "--rank")
        self.job = self.here
        processes = []
        for rank in range(3):
            environment = {**os.environ, "MOTLEY_SECRET_FILE": str(secret)}
            if rank != 1:  # the stage between has no token to ask with
                environment["MOTLEY_TOKEN_FILE"] = str(self.token)
            processes.append(subprocess.Popen([*command, str(rank)], env=environment, stdout=subprocess.PIPE,
                                              stderr=subprocess.STDOUT, text=True))
            self.addCleanup(processes[-1].kill)
        for process in processes:
            output, _ = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, output)
        self.assert_equal_runs("files", "node")
        log = self.printed(node)
        self.assertRegex(log, r"job 'scenario': rank 0 .*read the inputs of 1[2-9]\d\d and the targets of 0 training")
        self.assertRegex(log, r"job 'scenario': rank 2 .*read the inputs of 0 and the targets of 1[2-9]\d\d training")
        self.assertRegex(log, r"job 'scenario': rank 2 .*read the inputs of 0 and the targets of \d+ test")
        self.assertNotIn("rank 1 ", log)

    def test_a_planned_ctr_model_is_that_of_local_data(self):
        self.model, self.layers = "ctrdnn", ["lookup", "fc1", "fc2", "output"]
        for job in (self.here, self.there, self.bare):
            job.write_text(CLICKS)
        _, address = self.node()
        plan = self.plan("plan", [(0, [0.25, 0.75], {}), (3, [1], {})])
        flags = ("--batch-split.mode", "fixed", "--plan", plan)
        self.train("files", *flags)
        self.train_bare("node", *flags, *self.served(address))
        self.assert_equal_runs("files", "node")

    def test_plan_auto_needs_no_files(self):
        _, address = self.node()
        self.train_bare("auto", "--plan", "auto", *self.served(address))
        self.assertEqual(self.not_used_once("auto"), 0)

    def test_targets_that_do_not_suit_the_loss_are_refused_as_those_of_a_file(self):
        (self.files / "table.csv").write_text("x,y\n" + "".join(f"{row % 7},{1.5 if row == 40 else 0.5}\n" for row in range(120)))
        for job in (self.there, self.bare):
            job.write_text("model: {name: mlp, hidden_sizes: [4]}\nloss: mse\nepochs: 1\nglobal_batch_size: 30\n"
                           "data: {name: csv, train: table.csv, target: y, target_kind: real}\n"
                           "deadline: {join: 60 s, step: 20 s}\n")
        _, address = self.node()
        flags = ("--workers", 2, *self.served(address))
        self.train_bare("accepted", *flags)
        output = self.train_bare("refused", "--loss", "bce", *flags, expect=2)
        self.assertIn("does not suit the training data", output)
        self.assertIn("sample 40 (counted from 0)", output)

    def started(self, address, *flags):
        """A run of two slow workers that is some steps on its way."""
        self.job = self.bare
        job = self.start("run", "--cluster", self.cluster([0.004, 0.004]), "--batch-split.mode", "equal",
                         *self.served(address), *flags)
        self.job = self.here
        self.wait_for_step("run", 5)
        return job

    def test_a_node_that_is_killed_is_named(self):
        node, address = self.node()
        job = self.started(address, "--deadline.step", "4 s")
        os.kill(node.pid, signal.SIGKILL)
        output, _ = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 1, output)
        self.assertIn(f"the data server at {address} was lost", output.strip().splitlines()[-1])

    def test_a_node_that_comes_back_costs_nothing(self):
        node, address = self.node()
        job = self.started(address)
        os.kill(node.pid, signal.SIGKILL)
        node.wait()
        self.node(address)
        output, _ = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 0, output)
        self.train("files", "--workers", 2, "--batch-split.mode", "equal")
        self.assert_equal_runs("files", "run")

    def test_the_wrong_node_is_refused_by_name(self):
        node, address = self.node()
        served = self.served(address)
        wrong = self.write_token("wrong", "a token that somebody guessed")
        for flags, code, words in (
            ((*served[:3], wrong), 1, [f"data server at {address}", "secret differs"]),
            (served[:2], 2, ["data.token_file", "MOTLEY_TOKEN_FILE"]),
            ((*served, "--data.train", "other.npy"), 2, ["the job has data.train: other.npy", "the data server has data.train: train.npy"]),
            ((*served, "--data.test", ""), 2, ["the data server has", "data.test: test.npy"]),
            (("--data.server", "nowhere", *served[2:]), 2, ["data.server"]),
            (("--data.server", "127.0.0.1:1", *served[2:], "--deadline.join", "5 s"), 1, ["data server at 127.0.0.1:1"]),
        ):
            with self.subTest(flags):
                output = self.train_bare("refused", *flags, "--workers", 2, "--overwrite", expect=code)
                for word in words:
                    self.assertIn(word, output)
        parameter_server = ("--gradient-sync.method", "parameter-server", "--gradient-sync.servers", address, "--gradient-sync.token-file", self.token)
        self.assertIn("this is a data server", self.train("refused", *parameter_server, "--overwrite", expect=1))
        for flags, words in ((("--listen", "nowhere"), "nowhere"),
                             (("--data.train", self.folder / "nowhere.npy"), "cannot read")):
            command = [BINARY, "data-server", self.there, "--token-file", self.token, *flags]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(words, done.stdout)


if __name__ == "__main__":
    unittest.main()
