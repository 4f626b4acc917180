"""Jobs that train with a parameter server: the same weights as without one, and what happens when the server is lost."""

import os
import pathlib
import signal
import subprocess
import time
import unittest

from harness import BINARY, Scenario, children, read_safetensors, relative_difference


class ServingRun(Scenario):
    def token(self):
        token = self.folder / "token"
        token.write_text("a token that nobody guesses\n")
        token.chmod(0o600)
        return token

    def server(self, token, name="address"):
        """A server that runs apart, and where it listens."""
        address = self.folder / name
        server = subprocess.Popen(
            [BINARY, "server", "--listen", "127.0.0.1:0", "--token-file", token, "--address-file", address],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.kill)
        deadline = time.monotonic() + 120
        while not address.exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        return server, address.read_text().strip()


class Serving(ServingRun):
    optimizers = {
        "sgd": ("--optimizer.momentum", 0),
        "nesterov": ("--optimizer.momentum", 0.9, "--optimizer.nesterov", "true", "--optimizer.weight-decay", 0.01),
        "adam": ("--optimizer.name", "adam", "--optimizer.learning-rate", 0.003, "--optimizer.momentum", 0),
        "adamw": ("--optimizer.name", "adamw", "--optimizer.learning-rate", 0.003, "--optimizer.momentum", 0),
        "clipped": ("--max-grad-norm", 0.3),
    }

    def test_every_optimizer_gives_the_weights_of_the_ring(self):
        same = ("--workers", 3, "--batch-split.mode", "fixed", "--batch-split.fixed", "10,20,30")
        for name, flags in self.optimizers.items():
            with self.subTest(optimizer=name):
                self.train(f"{name}-ring", *same, *flags)
                self.train(f"{name}-ps", *same, *flags, "--gradient-sync.method", "parameter-server")
                one, other = self.weights(f"{name}-ring"), self.weights(f"{name}-ps")
                self.assertLess(relative_difference(one, other), 1e-5)
                self.assertEqual(self.not_used_once(f"{name}-ps"), 0)

    def test_a_run_goes_on_with_another_exchange(self):
        flags = ("--workers", 2, "--batch-split.mode", "equal", *self.optimizers["adamw"])
        self.train("whole", *flags)
        self.train("parts", *flags, "--steps", 7, "--gradient-sync.method", "parameter-server")
        self.train("parts", *flags, "--steps", 13, "--gradient-sync.method", "ring", "--resume")
        self.train("parts", *flags, "--gradient-sync.method", "parameter-server", "--gradient-sync.servers", "", "--steps", 0, "--resume")
        self.assertLess(relative_difference(self.weights("whole"), self.weights("parts")), 1e-5)
        newest = [sorted((self.folder / run / "checkpoint").glob("step-*"))[-1] for run in ("whole", "parts")]
        one, other = (read_safetensors(step / "optimizer.safetensors") for step in newest)
        self.assertLess(relative_difference(one, other), 1e-4)

    def test_a_lost_server_takes_the_job_back_to_its_checkpoint(self):
        undisturbed = ("--cluster", self.cluster([0.005, 0.005]), "--batch-split.mode", "replay", "--batch-split.replay")
        for how in (signal.SIGKILL, signal.SIGSTOP):  # one that is stopped is there, and does not answer
            with self.subTest(how):
                run = how.name
                process = self.start(run, "--cluster", self.cluster([0.005, 0.005]), "--gradient-sync.method", "parameter-server",
                                     "--checkpoint.every-steps", 4, "--deadline.silence", "3 s")
                self.wait_for_step(run, 9)
                (server,) = children(process.pid, "server")
                os.kill(server, how)
                output = process.communicate(timeout=120)[0]
                self.assertEqual(process.returncode, 0, output)
                self.assertIn("was lost", output)
                self.assertIn("resumed after step", output)
                self.assertFalse(pathlib.Path(f"/proc/{server}").exists(), "the lost server is still there")
                self.assertEqual(self.not_used_once(run), 0)
                self.assertEqual(sorted(self.losses(run)), list(range(1, 21)))
                self.train(f"{run}-again", *undisturbed, self.folder / run)
                self.assertLess(relative_difference(self.weights(run), self.weights(f"{run}-again")), 1e-5)

    def test_servers_stand_where_the_job_says(self):
        token = self.token()
        servers = ",".join(self.server(token, f"address-{rack}")[1] for rack in range(2))
        same = ("--workers", 3, "--batch-split.mode", "fixed", "--batch-split.fixed", "10,20,30")
        placed = ("--gradient-sync.method", "parameter-server", "--gradient-sync.placement")
        named = ("--gradient-sync.servers", servers, "--gradient-sync.token-file", token)
        self.train("ring", *same)
        for name, flags in {
            "central": named,
            "sharded": named,
            "hierarchical": (*named, "--gradient-sync.racks", "0,1,1"),
            "auto": (*named, "--gradient-sync.racks", "1,0,1"),
            "colocated": (),
        }.items():
            with self.subTest(placement=name):
                output = self.train(name, *same, *placed, name, *flags)
                self.assertLess(relative_difference(self.weights("ring"), self.weights(name)), 1e-5)
                self.assertEqual(name == "auto", "gradient_sync.placement auto: " in output, output)
        for racks in ("0,0,0", "0,1", "0,1,2"):
            output = self.train("bad", *same, *placed, "hierarchical", *named, "--gradient-sync.racks", racks, expect=2)
            self.assertIn("gradient_sync.racks", output)
        output = self.train("bad", *same, "--gradient-sync.method", "auto", *named, "--gradient-sync.racks", "0,7,1", expect=2)
        self.assertIn("gradient_sync.racks", output)
        output = self.train("bad", *same, *placed, "colocated", *named, expect=2)
        self.assertIn("gradient_sync.placement", output)
        output = self.train("bad", *same, *placed, "hierarchical", "--gradient-sync.racks", "0,0,1", expect=2)
        self.assertIn("gradient_sync.servers", output)

    def test_jobs_share_a_server_that_runs_apart(self):
        token = self.token()
        server, address = self.server(token)
        served = ("--gradient-sync.method", "parameter-server", "--gradient-sync.servers", address,
                  "--gradient-sync.token-file", token, "--workers", 2, "--batch-split.mode", "equal")
        other = self.start("other", *served, "--name", "other", "--epochs", 8)
        self.train("one", *served)
        refused = self.folder / "refused"
        refused.write_text("a token that somebody guessed\n")
        refused.chmod(0o600)
        output = self.train("two", *served[:5], refused, *served[6:], expect=1)
        self.assertIn("secret differs", output)
        self.assertEqual(other.wait(timeout=60), 0, other.stdout.read())
        self.train("alone", "--workers", 2, "--batch-split.mode", "equal")
        self.assertLess(relative_difference(self.weights("one"), self.weights("alone")), 1e-5)
        output = self.train("auto", "--gradient-sync.method", "auto", *served[2:])
        self.assertRegex(output, "gradient_sync.method auto: .*parameter-server: .* of memory")
        self.assertLess(relative_difference(self.weights("auto"), self.weights("alone")), 1e-5)
        server.terminate()
        self.assertEqual(server.wait(timeout=20), 0)

    def test_bad_servers_are_refused_by_name(self):
        served = ("--gradient-sync.method", "parameter-server", "--deadline.join", "2 s")
        output = self.train("a", *served, "--gradient-sync.servers", "nowhere", expect=2)
        self.assertIn("gradient_sync.servers", output)
        output = self.train("b", *served, "--gradient-sync.servers", "127.0.0.1:1", "--gradient-sync.token-file",
                            self.folder / "none", expect=2)
        self.assertIn("gradient_sync.token_file", output)
        output = self.train("c", *served, "--model.dtype", "float64", expect=2)
        self.assertIn("float64", output)


if __name__ == "__main__":
    unittest.main()
