"""Many workers train what one worker trains: the weighted gradient is that of the whole batch."""

import random
import unittest

from harness import Scenario, relative_difference


class Equality(Scenario):
    def test_any_split_gives_the_weights_of_one_worker(self):
        double = ("--model.dtype", "float64", "--model.dropout", 0.2, "--epochs", 1)
        self.train("one", *double, "--workers", 1)
        choose = random.Random(11)
        for number, method in enumerate(["shared-memory", "tcp-ring", "shared-memory", "tcp-ring"]):
            workers = choose.choice([2, 3, 4, 5])
            cuts = sorted(choose.sample(range(1, 60), workers - 1))
            shares = [b - a for a, b in zip([0, *cuts], [*cuts, 60])]
            run = f"split{number}"
            with self.subTest(method=method, shares=shares):
                self.train(run, *double, "--workers", workers, "--gradient-sync.method", method, "--batch-split.mode", "fixed",
                           "--batch-split.fixed", ",".join(map(str, shares)), "--gradient-accumulation-steps", choose.choice([1, 3]))
                self.assertLess(relative_difference(self.weights("one"), self.weights(run)), 1e-6)
                self.assertEqual(self.not_used_once(run), 0)

    def test_pulled_shards_give_the_weights_of_one_worker(self):
        double = ("--model.dtype", "float64", "--model.dropout", 0.2, "--epochs", 1)
        self.train("one", *double, "--workers", 1)
        for method in ("shared-memory", "tcp-ring"):
            with self.subTest(method=method):
                self.train(method, *double, "--workers", 3, "--batch-split.mode", "work-queue", "--gradient-sync.method", method)
                self.assertLess(relative_difference(self.weights("one"), self.weights(method)), 1e-6)
                self.assertEqual(self.not_used_once(method), 0)

    def test_runs_repeat_bitwise_and_two_workers_agree_between_methods(self):
        same = ("--workers", 2, "--batch-split.mode", "equal")
        self.train("a", *same, "--gradient-sync.method", "shared-memory")
        self.train("b", *same, "--gradient-sync.method", "shared-memory")
        self.train("c", *same, "--gradient-sync.method", "tcp-ring")
        self.assert_bitwise("a", "b")
        self.assert_bitwise("a", "c")
        self.assertEqual(self.losses("a"), self.losses("b"))

    def test_overlap_changes_no_bit(self):
        same = ("--workers", 3, "--batch-split.mode", "fixed", "--batch-split.fixed", "10,20,30", "--model.hidden-sizes", "64,64")
        self.train("with", *same)
        self.train("without", *same, "--gradient-sync.overlap", "false")
        self.assert_bitwise("with", "without")

    def test_encryption_changes_no_bit(self):
        for method in ("tcp-ring", "parameter-server"):
            for encryption in ("off", "on"):
                self.train(f"{method}-{encryption}", "--workers", 2, "--batch-split.mode", "equal", "--gradient-sync.method", method,
                           "--network.encryption", encryption)
            self.assert_bitwise(f"{method}-off", f"{method}-on")


if __name__ == "__main__":
    unittest.main()
