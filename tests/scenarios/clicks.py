"""CTR models whose rows parameter servers have: as one worker trains them, however many there are, through plans,
stops and lost servers."""

import json
import os
import signal
import unittest

import planned
from harness import children, relative_difference

JOB = """name: clicks
model: {name: ctrdnn, hidden_sizes: [16, 16]}
data: {name: clicks, num_samples: 1200, num_categories: 2000}
embedding: {optimizer: adagrad, learning_rate: 0.05}
global_batch_size: 60
epochs: 2
optimizer: {name: sgd, learning_rate: 0.05, momentum: 0.9}
gradient_sync: {bucket_size: 4 KiB}
deadline: {join: 60 s, step: 20 s}
"""


class Clicks(planned.PlannedJobs):
    model = "ctrdnn"
    layers = ["lookup", "fc1", "fc2", "output"]

    def setUp(self):
        super().setUp()
        self.job.write_text(JOB)

    def test_workers_train_what_one_worker_trains(self):
        for optimizer in ("sgd", "adagrad", "adam"):
            self.train(f"one-{optimizer}", "--workers", 1, "--embedding.optimizer", optimizer)
            for name, flags in (("ring", ()), ("pull", ("--batch-split.mode", "work-queue")), ("server", ("--gradient-sync.method", "parameter-server")),
                                ("parts", ("--gradient-accumulation-steps", 3))):
                with self.subTest(optimizer=optimizer, how=name):
                    run = f"{name}-{optimizer}"
                    self.train(run, "--workers", 3, "--embedding.optimizer", optimizer, *flags)
                    self.assert_same(f"one-{optimizer}", run, 1e-3)
        rows = [line["evaluation"]["auc"] for line in self.lines("one-adagrad") if "evaluation" in line]
        self.assertGreater(rows[-1], 0.55, "rows that do not learn give 0.5")

    def test_every_network_trains(self):
        # By SGD: an adaptive optimizer's first step for a row is as long if all of its gradient is rounding.
        for model in ("2emb", "matchnet"):
            with self.subTest(model):
                flags = ("--model.name", model, "--embedding.optimizer", "sgd", *(("--model.hidden-sizes", "16,16") if model == "2emb" else ("--model.hidden-sizes", "[]")))
                self.train(f"one-{model}", *flags, "--workers", 1)
                self.train(f"two-{model}", *flags, "--workers", 2)
                self.assert_same(f"one-{model}", f"two-{model}", 1e-3)

    def test_a_planned_run_trains_what_one_worker_trains(self):
        self.train("one", "--workers", 1)
        for name, stages in (("two", [(0, [0.25, 0.75], {}), (3, [1], {})]),
                             ("three", [(1, [0.5, 0.5], {}), (2, [1], {"recompute": True}), (3, [0.3, 0.7], {})])):
            with self.subTest(name):
                self.train(name, "--plan", self.plan(name, stages))
                self.assert_same("one", name, 1e-3)

    def test_plan_auto_profiles_and_trains(self):
        self.train("one", "--workers", 1)
        self.train("auto", "--plan", "auto")
        self.assert_same("one", "auto", 1e-3)

    def test_rows_of_the_workers_own_give_the_weights_of_one_worker(self):
        own = ("--embedding.placement", "replicated", "--embedding.num-embeddings", 500, "--model.dtype", "float64")
        self.assert_shapes_give_the_weights_of_one_worker([2, 3, 4], *own)

    def test_a_run_goes_on_as_if_it_had_not_stopped(self):
        for name, more in (("whole", ()), ("planned", ("--batch-split.mode", "fixed", "--plan", self.plan("plan", [(0, [0.5, 0.5], {}), (3, [1], {})])))):
            with self.subTest(name):
                self.train(f"{name}-whole", *more, "--steps", 30)
                self.train(name, *more, "--steps", 13)
                self.train(name, *more, "--steps", 30, "--resume")
                self.assertEqual(relative_difference(self.weights(f"{name}-whole"), self.weights(name)), 0)
                self.assertEqual(self.not_used_once(name), 0)

    def test_each_checkpoint_that_is_kept_has_its_rows(self):
        self.train("whole", "--steps", 30)
        self.train("run", "--steps", 30, "--checkpoint.every-steps", 6, "--checkpoint.keep", 4)
        for step in (18, 24, 30):
            (self.folder / f"run/checkpoint/step-{step:08}/manifest.json").write_text("damaged")
        self.assertIn("resumed after step 12", self.train("run", "--steps", 30, "--resume"))
        self.assertEqual(relative_difference(self.weights("whole"), self.weights("run")), 0)
        self.assertEqual(self.not_used_once("run"), 0)

    def test_a_lost_server_costs_no_sample(self):
        flags = ("--workers", 2, "--batch-split.mode", "equal", "--checkpoint.every-steps", 20, "--epochs", 40)
        self.train("whole", *flags)
        for how in (signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(how):
                job = self.start(how.name, *flags, "--deadline.silence", "3 s")
                self.wait_for_step(how.name, 45)
                (server,) = children(job.pid, "server")
                os.kill(server, how)
                output, _ = job.communicate(timeout=120)
                self.assertEqual(job.returncode, 0, output)
                self.assertEqual(relative_difference(self.weights("whole"), self.weights(how.name)), 0, output)
                self.assertEqual(self.not_used_once(how.name), 0)

    def rows(self, run, key):
        """What the run's steps have under `rows` by this key, of all workers, after the first steps."""
        return sum(sum(line["embedding"][key]) for line in self.lines(run) if "loss" in line and line["step"] > 5)

    def auc(self, run):
        return [line["evaluation"]["auc"] for line in self.lines(run) if "evaluation" in line][-1]

    def test_narrow_and_cached_rows_reach_the_auc_of_exact_ones_with_fewer_bytes(self):
        more = ("--workers", 2, "--data.num-samples", 8000, "--epochs", 3, "--batch-split.mode", "equal")
        self.train("exact", *more)
        self.assertGreater(self.auc("exact"), 0.6)
        self.assertEqual(self.rows("exact", "cached"), 0)
        for name, flags, most_pulled, most_pushed in (
                ("bfloat16", ("--embedding.comm-dtype", "bfloat16"), 0.7, 0.7),
                ("float16", ("--embedding.comm-dtype", "float16"), 0.7, 0.7),
                ("int8", ("--embedding.comm-dtype", "int8"), 0.6, 0.6),
                ("cached", ("--embedding.cache-rows", 500, "--embedding.max-staleness", 4), 0.8, 1.01),
                ("both", ("--embedding.comm-dtype", "bfloat16", "--embedding.cache-rows", 500, "--embedding.max-staleness", 4), 0.6, 0.7)):
            with self.subTest(name):
                self.train(name, *more, *flags)
                self.assertAlmostEqual(self.auc(name), self.auc("exact"), delta=0.02)
                self.assertEqual(self.not_used_once(name), 0)
                self.assertLess(self.rows(name, "pulled_bytes"), most_pulled * self.rows("exact", "pulled_bytes"))
                self.assertLess(self.rows(name, "pushed_bytes"), most_pushed * self.rows("exact", "pushed_bytes"))
        self.assertGreater(self.rows("both", "cached"), 0.2 * self.rows("both", "needed"))
        self.assertGreater(self.rows("both", "prefetched"), 0)
        page = (self.folder / "both" / "report.html").read_text()
        self.assertIn("Where bytes and waits go", page)
        summary = json.loads((self.folder / "both" / "summary.json").read_text())
        self.assertTrue([row for row in summary if row["metric"] == "row_bytes_per_step" and row["value"] > 0])

    def test_asking_ahead_changes_nothing_but_when(self):
        self.train("ahead", "--workers", 1)
        self.train("late", "--workers", 1, "--embedding.prefetch", "false")
        self.assert_bitwise("ahead", "late")
        self.assertGreater(self.rows("ahead", "prefetched"), 0)
        self.assertEqual(self.rows("late", "prefetched"), 0)
        self.assertEqual(self.rows("ahead", "needed"), self.rows("late", "needed"))

    def test_cached_rows_do_not_depend_on_the_clock(self):
        cache = ("--workers", 2, "--batch-split.mode", "equal", "--embedding.cache-rows", 300, "--embedding.max-staleness", 3)
        for name in ("one", "other"):
            self.train(name, *cache)
        self.assert_bitwise("one", "other")
        asked = self.rows("one", "needed") - self.rows("one", "cached")
        self.assertGreater(self.rows("one", "prefetched"), 0.9 * asked, "all but those of an epoch's first step")

    def test_a_run_that_goes_on_begins_with_an_empty_cache(self):
        cache = ("--workers", 2, "--embedding.cache-rows", 1000, "--embedding.max-staleness", 5)
        self.train("run", *cache, "--steps", 13)
        self.train("run", *cache, "--steps", 30, "--resume")
        cached = {line["step"]: sum(line["embedding"]["cached"]) for line in self.lines("run") if "loss" in line}
        self.assertGreater(cached[13], 0)
        self.assertEqual(cached[14], 0)
        self.assertGreater(cached[15], 0)
        self.assertEqual(self.not_used_once("run"), 0)

    def test_what_does_not_go_together_is_refused(self):
        for flags, words in ((("--max-grad-norm", 1), "max_grad_norm: 1"),
                             (("--gradient-sync.method", "parameter-server", "--gradient-sync.consistency", "async"), "gradient_sync.consistency: async"),
                             (("--model.name", "mlp"), "model.name: mlp looks no categories up"),
                             (("--data.name", "text"), "reads no tokens"),
                             (("--embedding.placement", "replicated", "--embedding.num-embeddings", 0), "embedding.num_embeddings: 0"),
                             (("--embedding.placement", "replicated", "--embedding.memory", "1 MB"), "embedding.memory"),
                             (("--embedding.max-staleness", 4, "--device", "cpu"), "embedding.max_staleness: 4 is given, but embedding.cache_rows is 0"),
                             (("--embedding.cache-rows", 100), "embedding.cache_rows: 100 is given, but embedding.max_staleness is 0"),
                             (("--embedding.cache-rows", -1), "--embedding.cache-rows: '-1' is not accepted"),
                             (("--embedding.comm-dtype", "top-k"), "accepted: one of float32, bfloat16, float16, int8"),
                             (("--embedding.placement", "replicated", "--embedding.comm-dtype", "int8"), "embedding.comm_dtype: accepted"),
                             (("--embedding.placement", "replicated", "--embedding.cache-rows", 9, "--embedding.max-staleness", 2), "embedding.cache_rows: accepted"),
                             (("--embedding.optimizer", "lion"), "accepted: one of adagrad, adam, sgd"),
                             (("--model.name", "nce", "--model.hidden-sizes", "[]"), "model.outputs: 2")):
            with self.subTest(flags):
                self.assertIn(words, self.train("refused", *flags, "--overwrite", expect=2))


if __name__ == "__main__":
    unittest.main()
