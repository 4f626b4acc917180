"""Workers at different steps of one job: what stays the same, what is bounded, and what is refused."""

import os
import re
import signal
import unittest

from harness import Scenario


class Consistency(Scenario):
    served = ("--gradient-sync.method", "parameter-server")
    jitter = ", delay: {distribution: exponential, mean: 0.02 s}"

    def jittery_cluster(self, paces):
        path = self.cluster(paces)
        path.write_text(re.sub(r"( s)(, )?\}", r"\1" + self.jitter + "}", path.read_text()))
        return path

    def staleness(self, run):
        return [steps for line in self.lines(run) for steps in line.get("staleness", [])]

    def test_no_staleness_and_one_worker_are_bsp(self):
        fixed = (*self.served, "--workers", 3, "--batch-split.mode", "fixed", "--batch-split.fixed", "10,20,30")
        self.train("bsp", *fixed)
        self.train("ssp", *fixed, "--gradient-sync.consistency", "ssp")
        self.assert_bitwise("bsp", "ssp")
        for optimizer in ((), ("--optimizer.name", "adamw", "--optimizer.momentum", 0)):
            name = "-".join(["one", *map(str, optimizer[1:2])])
            self.train(name, *self.served, "--workers", 1, *optimizer)
            self.train(f"{name}-async", *self.served, "--workers", 1, *optimizer, "--gradient-sync.consistency", "async")
            self.assert_bitwise(name, f"{name}-async")

    def test_every_sample_is_used_once_and_the_bound_holds(self):
        cluster = ("--cluster", self.jittery_cluster([0.0002, 0.0004, 0.0008]), "--epochs", 4)
        for name, bound, flags in (
            ("ssp", 3, ("--gradient-sync.consistency", "ssp", "--gradient-sync.staleness", 3)),
            ("async", 19, ("--gradient-sync.consistency", "async", "--checkpoint.every-steps", 13)),
            ("adam", 2, ("--gradient-sync.consistency", "async", "--gradient-sync.staleness", 2, "--optimizer.name", "adam",
                         "--optimizer.learning-rate", 0.01, "--optimizer.momentum", 0)),
        ):
            with self.subTest(name):
                self.train(name, *cluster, *self.served, *flags)
                self.assertEqual(self.not_used_once(name), 0)
                losses = self.losses(name)
                self.assertEqual(sorted(losses), list(range(1, 41)))
                self.assertLess(losses[40], 0.7 * losses[1])
                seen = self.staleness(name)
                self.assertEqual(len(seen), 3 * 40)
                self.assertLessEqual(max(seen), bound)
                self.assertGreater(max(seen), 0)
                summary = (self.folder / name / "summary.json").read_text()
                self.assertIn("worst_staleness", summary)

    def test_a_run_goes_on_from_its_checkpoint(self):
        flags = ("--workers", 2, *self.served, "--gradient-sync.consistency", "async")
        self.train("run", *flags, "--steps", 7)
        self.train("run", *flags, "--steps", 13, "--resume")
        self.train("run", *flags[:-1], "bsp", "--steps", 0, "--resume")
        self.assertEqual(self.not_used_once("run"), 0)
        self.assertEqual(sorted(self.losses("run")), list(range(1, 21)))

    def test_an_interrupted_run_stops_at_a_synchronisation(self):
        flags = ("--cluster", self.jittery_cluster([0.0005, 0.001]), *self.served, "--gradient-sync.consistency", "ssp",
                 "--gradient-sync.staleness", 2, "--epochs", 12)
        process = self.start("run", *flags)
        self.wait_for_step("run", 10)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=60)[0]
        self.assertIn("a checkpoint was written", output)
        self.train("run", *flags, "--resume")
        self.assertEqual(self.not_used_once("run"), 0)

    def test_a_stuck_worker_is_named_at_the_deadline(self):
        process = self.start("run", "--cluster", self.cluster([0.002, 0.002, 0.002]), *self.served, "--epochs", 1000,
                             "--gradient-sync.consistency", "ssp", "--gradient-sync.staleness", 1, "--deadline.step", "3 s")
        self.wait_for_step("run", 10)
        os.kill(self.worker_processes(process.pid)[1], signal.SIGSTOP)
        output = process.communicate(timeout=90)[0]
        self.assertEqual(process.returncode, 1, output)
        self.assertIn("rank 1", output.strip().splitlines()[-1])

    def test_what_does_not_go_together_is_refused(self):
        relaxed = (*self.served, "--gradient-sync.consistency", "async")
        for flags, named in (
            (("--gradient-sync.consistency", "ssp"), "gradient_sync.method parameter-server"),
            ((*self.served, "--gradient-sync.staleness", 2), "gradient_sync.staleness: 2"),
            ((*self.served, "--gradient-sync.consistency", "lazy"), "one of bsp, ssp, async"),
            ((*relaxed, "--max-grad-norm", 1), "max_grad_norm: 1"),
            ((*relaxed, "--batch-split.mode", "work-queue"), "batch_split.mode: work-queue"),
        ):
            with self.subTest(named):
                self.assertIn(named, self.train("refused", *flags, expect=2))


if __name__ == "__main__":
    unittest.main()
