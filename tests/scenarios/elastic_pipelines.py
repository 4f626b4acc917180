"""Workers of an elastic job with a plan are lost while it runs: the stages go on, and the result is that of one worker."""

import os
import random
import re
import signal
import unittest

from harness import children, relative_difference
from planned import DOUBLE, TIED, PlannedJobs

LAYERS = ["flatten", *(f"{kind}{number}" for number in (1, 2, 3) for kind in ("fc", "relu", "dropout")), "output"]
WIDE = [(4, [0.5, 0.5], {}), (10, [0.3, 0.7], {})]
DEEP = [(3, [1], {}), (6, [0.5, 0.5], {}), (10, [0.4, 0.3, 0.3], {"recompute": True})]


class ElasticPipelines(PlannedJobs):
    layers = LAYERS
    seconds_per_sample = 1.5e-4  # of each layer: slow enough that workers are lost while there are steps left

    def setUp(self):
        super().setUp()
        self.flags = (*DOUBLE, "--model.dropout", 0.2)

    def start_planned(self, run, stages, *flags, least=1, environment=None, within=(), **fields):
        workers = sum(len(shares) for _, shares, _ in stages)
        if "--replacements" not in flags:
            flags += ("--replacements", 0)
        return self.start(run, *self.flags, "--plan", self.plan(run, stages, **fields), "--emulation",
                          self.profile({f"type{i}": self.seconds_per_sample for i in range(3)}), "--elastic", f"{least}:{workers}", *flags,
                          environment=environment, within=within)

    def finish(self, process, expect=0):
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, expect, output)
        return output

    def lose(self, run, stages, victims, *flags, how=signal.SIGKILL, step=5, expect=0, **fields):
        """Runs with some workers lost after a step; returns the output."""
        process = self.start_planned(run, stages, *flags, **fields)
        self.wait_for_step(run, step)
        processes = self.worker_processes(process.pid)
        for victim in victims:
            os.kill(processes[victim], how)
        return self.finish(process, expect)

    def assert_as_one_worker(self, run, one="one"):
        self.assertLess(relative_difference(self.weights(one), self.weights(run)), 1e-9)
        self.assertEqual(self.not_used_once(run), 0)
        steps = [line["step"] for line in self.lines(run) if "loss" in line]
        self.assertEqual(steps, sorted(self.losses(one)))
        for step, loss in self.losses(one).items():
            self.assertAlmostEqual(self.losses(run)[step], loss, delta=1e-9 * abs(loss))

    def events(self, run, kind):
        return [line["text"] for line in self.lines(run) if line.get("event") == kind]

    def test_whoever_is_lost_the_others_of_its_stage_go_on(self):
        self.train("one", *self.flags, "--workers", 1)
        for run, stages, victims, how, more in (
            ("first", WIDE, [0], signal.SIGKILL, ()),
            ("last", WIDE, [3], signal.SIGKILL, ("--gradient-sync.method", "tcp-ring")),
            ("one-of-each", WIDE, [1, 2], signal.SIGKILL, ()),
            ("stopped", WIDE, [2], signal.SIGSTOP, ()),
            ("stopped-first", WIDE, [0], signal.SIGSTOP, ("--gradient-sync.method", "tcp-ring")),
            ("deep", DEEP, [1, 3, 5], signal.SIGKILL, ()),
        ):
            with self.subTest(run):
                output = self.lose(run, stages, victims, *more, how=how, schedule="gpipe" if run == "last" else "1f1b")
                workers = 6 if run == "deep" else 4
                self.assertIn(f"{workers - len(victims)} of {workers} workers go on", output)
                self.assertNotIn("go back", output)
                self.assert_as_one_worker(run)
                split = [line["batch_split"] for line in self.lines(run) if "loss" in line][-1]
                self.assertEqual([rank for rank in range(workers) if split[rank] == 0], victims)

    def test_a_worker_ends_at_any_point_of_a_step(self):
        self.train("one", *self.flags, "--workers", 1)
        for number, points in enumerate((("forward", "", "", "between-buckets"), ("", "backward", "checkpoint", ""),
                                         ("gradient-synchronisation", "", "", "gathering-times"),
                                         ("", "evaluation", "optimizer", ""), ("regrouping", "loading", "", "regrouping"))):
            with self.subTest(points=points):
                run, faults = f"run-{number}", self.folder / f"faults-{number}"
                faults.mkdir()
                for rank, point in enumerate(points):
                    if point:
                        (faults / f"{rank}.{point}").write_text("stop" if rank == 2 else "kill")
                output = self.finish(self.start_planned(run, WIDE, "--checkpoint.every-steps", 3,
                                                        environment={"MOTLEY_FAULTS": str(faults)}))
                self.assertEqual(os.listdir(faults), [], output)
                self.assert_as_one_worker(run)
                if points[0] == "gradient-synchronisation":  # the second stage had given it the gradients of all its rows
                    self.assertIn("with what they have computed of the step", output)

    def test_a_worker_that_is_stuck_is_put_out_and_those_who_wait_for_it_are_not(self):
        self.train("one", *self.flags, "--workers", 1)
        for rank, point in ((0, "forward"), (3, "backward")):
            with self.subTest(rank=rank):
                run, faults = f"run-{rank}", self.folder / f"faults-{rank}"
                faults.mkdir()
                process = self.start_planned(run, WIDE, "--deadline.progress", "5 s", environment={"MOTLEY_FAULTS": str(faults)})
                self.wait_for_step(run, 3)
                (faults / f".{rank}").write_text("hang")
                (faults / f".{rank}").rename(faults / f"{rank}.{point}")
                output = self.finish(process)
                self.assertIn(f"rank {rank} was lost; 3 of 4 workers go on", output)
                self.assert_as_one_worker(run)

    def test_a_stage_that_loses_all_of_its_workers_goes_to_others_who_go_back_to_a_checkpoint(self):
        self.train("one", *self.flags, "--workers", 1)
        for run, stages, victims, how, more in (
            ("first", WIDE, [0, 1], signal.SIGKILL, ("--checkpoint.every-steps", 3)),
            ("last", WIDE, [2, 3], signal.SIGSTOP, ("--checkpoint.every-steps", 4)),
            ("all-but-one", WIDE, [0, 1, 3], signal.SIGKILL, ("--checkpoint.every-steps", 3)),
            ("no-checkpoint", WIDE, [0, 1], signal.SIGKILL, ()),
            ("deep", DEEP, [0, 3, 4, 5], signal.SIGKILL, ("--checkpoint.every-steps", 2)),
        ):
            with self.subTest(run):
                output = self.lose(run, stages, victims, *more, how=how)
                self.assertIn("the beginning" if run == "no-checkpoint" else "all go back to the checkpoint of step", output)
                self.assertTrue([name for name in os.listdir(self.folder / run) if name.startswith("plan-after-step-")])
                self.assert_as_one_worker(run)

    def test_one_after_the_other_at_any_moment(self):
        self.train("one", *self.flags, "--workers", 1, "--epochs", 4)
        choose = random.Random(7)
        for round in range(4):
            run = f"round-{round}"
            with self.subTest(run):
                process = self.start_planned(run, [WIDE, DEEP][round % 2], "--checkpoint.every-steps", 3, "--epochs", 4,
                                             "--replacements", round)
                self.wait_for_step(run, 2)
                processes = self.worker_processes(process.pid)
                for step, victim in zip(sorted(choose.sample(range(3, 30), 3)), choose.sample(range(4), 3)):
                    self.wait_for_step(run, step)
                    os.kill(processes[victim], signal.SIGKILL)
                self.finish(process)
                self.assert_as_one_worker(run)

    def test_others_take_the_places_of_those_who_are_lost(self):
        self.seconds_per_sample = 5e-5  # there are more steps
        self.train("one", *self.flags, "--workers", 1, "--epochs", 20)
        for run, victims in (("first", [0]), ("last", [3]), ("one-of-each", [0, 2]), ("stage", [0, 1])):
            with self.subTest(run):
                output = self.lose(run, WIDE, victims, "--epochs", 20, "--replacements", 3, "--checkpoint.every-steps", 3)
                self.assertIn("4 of 4 workers go on", output)
                # One that is there in time joins in the same change in which its predecessor is told as lost.
                self.assertTrue([line for line in self.lines(run) if line.get("event") and "joined" in line["text"]])
                self.assert_as_one_worker(run)
                self.assertNotIn(0, [line["batch_split"] for line in self.lines(run) if "loss" in line][-1])

    def test_a_worker_that_gets_notice_leaves_after_its_step(self):
        self.train("one", *self.flags, "--workers", 1)
        for run, leavers in (("last", [3]), ("first", [0]), ("stage", [2, 3])):
            with self.subTest(run):
                output = self.lose(run, WIDE, leavers, how=signal.SIGTERM)
                self.assertIn("left", output)
                self.assertEqual("go back to the checkpoint" in output, run == "stage")
                self.assert_as_one_worker(run)

    def test_clipped_gradients_of_tied_parameters(self):
        self.use_transformer()
        self.seconds_per_sample = 3e-4  # as its layers compute longer
        self.flags = (*TIED, "--max-grad-norm", 1)
        self.train("one", *self.flags, "--workers", 1, "--steps", 20)
        stages = [(2, [0.5, 0.5], {}), (5, [0.5, 0.5], {})]
        for run, victims in (("replica", [1]), ("stage", [2, 3])):
            with self.subTest(run):
                self.lose(run, stages, victims, "--steps", 20, "--checkpoint.every-steps", 3)
                self.assert_as_one_worker(run)

    def test_too_few_end_with_a_checkpoint_from_which_it_goes_on(self):
        self.train("one", *self.flags, "--workers", 1)
        output = self.lose("run", WIDE, [0, 3], "--checkpoint.every-steps", 4, "--deadline.join", "20 s", least=3, expect=1)
        self.assertIn("--resume", output)
        self.train("run", *self.flags, "--plan", self.plan("again", WIDE), "--deadline.join", "20 s", "--resume")
        self.assert_as_one_worker("run")

    def by_hand(self, port, *flags, stages=WIDE, apart=()):
        """Ranks of one machine, each started by itself in a folder of its own, after some steps; all but the last one `apart`."""
        hosts, secret = self.folder / "hosts", self.folder / "secret"
        last = sum(len(shares) for _, shares, _ in stages) - 1
        hosts.write_text(f"127.0.0.1:{port}\n" + "127.0.0.1\n" * last)
        secret.write_text("0123456789abcdef0123456789abcdef")
        secret.chmod(0o600)
        common = ("--hosts", hosts, "--secret-file", secret, *flags)
        ranks = [self.start_planned(f"own-{rank}", stages, *common, "--rank", rank, within=apart if rank < last else ())
                 for rank in range(last + 1)]
        self.wait_for_step("own-0", 5)
        return ranks

    def test_ranks_that_are_started_by_hand_go_on_each_in_its_own_folder(self):
        self.train("one", *self.flags, "--workers", 1)
        ranks = self.by_hand(29591)
        ranks[0].kill()
        for rank in ranks[1:]:
            self.finish(rank)
        self.assertLess(relative_difference(self.weights("one"), self.weights("own-1")), 1e-9)
        self.assertEqual(self.not_used_once("own-1"), 0)

    def cut_off(self, port, stages):
        """What the last one of some ranks says once it cannot reach the others any more."""
        ranks = self.by_hand(port, "--deadline.join", "15 s", "--epochs", 100, stages=stages, apart=self.as_on_another_machine())
        for other in ranks[:-1]:
            (worker,) = children(other.pid, "train")
            os.kill(worker, signal.SIGSTOP)
        told = self.finish(ranks[-1], expect=1).strip().splitlines()[-1]
        self.assertIn("no majority, for 15 s; ", told)
        return told

    def test_a_rank_that_cannot_reach_the_others_writes_a_checkpoint_where_it_has_all_layers(self):
        stages = [(10, [0.4, 0.3, 0.3], {})]
        step = int(re.search(r"; a checkpoint was written \(step (\d+)\)", self.cut_off(29607, stages))[1])
        self.assertTrue(list((self.folder / "own-2/checkpoint").glob(f"step-*{step}")))
        more = ("--epochs", 100, "--steps", step + 15)
        self.train("own-2", *self.flags, "--plan", self.plan("again", stages), *more, "--resume")
        self.train("one", *self.flags, "--workers", 1, *more)
        self.assertLess(relative_difference(self.weights("one"), self.weights("own-2")), 1e-9)

    def test_a_rank_that_has_one_of_two_stages_says_why_it_writes_none(self):
        self.assertIn("there is no checkpoint: this rank alone has only the weights of stage 2 of 2", self.cut_off(29608, WIDE))

    def test_where_the_last_checkpoint_is_in_the_folder_of_a_lost_rank_the_others_end(self):
        ranks = self.by_hand(29595, "--checkpoint.every-steps", 3)
        for rank in ranks[:2]:
            rank.kill()
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks[2:]]
        self.assertNotIn(0, [rank.returncode for rank in ranks])
        self.assertIn("a stage has lost all of its ranks", "".join(outputs))

    def test_a_plan_that_is_found_first(self):
        self.train("auto", *self.flags, "--plan", "auto", "--elastic", "1:2", "--workers", 0, "--steps", 5)

    def test_what_cannot_be_elastic_is_refused(self):
        served = [(2, [0.5, 0.5], {"gradient_sync": "parameter-server"}), (10, [1], {})]
        for stages, flags, expected in (
            (WIDE, ("--elastic", "1:3"), "the job has 4 workers"),
            (served, ("--elastic", "1:3"), "stages[0]"),
            (WIDE, ("--elastic", "1:4", "--device", "cuda"), "device: cuda"),
        ):
            with self.subTest(expected):
                output = self.train("refused", *self.flags, "--plan", self.plan("refused", stages), *flags, expect=2)
                self.assertIn(expected, output)
                self.assertFalse((self.folder / "refused").exists())


if __name__ == "__main__":
    unittest.main()
