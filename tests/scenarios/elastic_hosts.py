"""Ranks of an elastic job that are started by hand, as on several machines: who cannot reach the others, who comes back or comes new."""

import os
import re
import signal
import unittest

from elastic import ElasticRun
from harness import children, interrupt, process_state, relative_difference


class ElasticHosts(ElasticRun):
    def finish(self, rank, expect):
        output = rank.communicate(timeout=120)[0]
        self.assertEqual(rank.returncode, expect, output)
        return output

    def stop_all(self, *processes):
        interrupt(processes[0])
        for process in processes:
            self.finish(process, 130)

    def assert_as_one_worker_so_far(self, run):
        step = max(self.losses(run))
        self.train("one", *self.double, "--workers", 1, "--epochs", 1000, "--steps", step)
        self.assertLess(relative_difference(self.weights("one"), self.weights(run)), self.tolerance)
        self.assertEqual(self.not_used_once(run), 0)

    def test_who_cannot_reach_the_others_ends_with_a_checkpoint_from_which_it_goes_on(self):
        apart = self.as_on_another_machine()
        common = self.flags_by_hand(29604, 0.002, 1, "--epochs", 1000, "--deadline.join", "15 s")
        others = [self.start(f"own-{rank}", *common, "--rank", rank, within=apart) for rank in (0, 1)]
        last = self.start("own-2", *common, "--rank", 2)
        self.wait_for_step("own-0", 5)
        for other in others:
            (worker,) = children(other.pid, "train")
            os.kill(worker, signal.SIGSTOP)
        output = self.finish(last, 1)
        told = re.search(r"only 2 can be reached, no majority, for 15 s; a checkpoint was written \(step (\d+)\)", output)
        self.assertTrue(told, output)
        step = int(told[1])
        self.assertGreaterEqual(step, 4)
        self.assertEqual(len(list((self.folder / "own-2/checkpoint").glob(f"step-*{step}"))), 1)
        self.assertEqual(sorted(path.name for path in self.folder.glob("own-[01]/checkpoint/step-*")), [])
        self.train("own-2", *self.double, "--workers", 2, "--epochs", 1000, "--steps", step + 15, "--resume")
        self.assert_as_one_worker_so_far("own-2")

    def test_a_rank_that_was_put_out_ends_once_it_wakes_up_and_joins_again(self):
        common = self.flags_by_hand(29610, 0.001, 2, "--epochs", 1000, "--deadline.join", "15 s")
        ranks = [self.start(f"own-{rank}", *common, "--rank", rank) for rank in (0, 1)]
        put_out = self.start("own-2", *common, "--rank", 2, within=self.as_on_another_machine())
        self.wait_for_step("own-0", 5)
        (worker,) = children(put_out.pid, "train")
        os.kill(worker, signal.SIGSTOP)
        self.wait_for_event("own-0", "lost")
        os.kill(worker, signal.SIGCONT)
        self.assertRegex(self.finish(put_out, 1), r"the others go on without this rank|only 2 can be reached, no majority, for 15 s")
        again = self.start("own-again", *common, "--rank", 2, "--join", self.read_address(ranks[0]))
        self.wait_for_event("own-0", "joined")
        self.wait_for_share("own-0", 2)
        self.stop_all(*ranks, again)
        self.assert_as_one_worker_so_far("own-0")
        changes = [line["event"] for line in self.lines("own-0") if line.get("event") in ("lost", "joined")]
        self.assertEqual(changes, ["lost", "joined"])

    def test_the_others_train_while_a_newcomer_loads(self):
        """They hear of it once it is ready: stopped before, it holds up nobody."""
        common = self.flags_by_hand(29609, 0.001, 1, "--epochs", 1000)
        ranks = [self.start(f"own-{rank}", *common, "--rank", rank) for rank in range(3)]
        self.wait_for_step("own-0", 5)
        ranks[2].kill()
        self.wait_for_event("own-0", "lost")
        points = [self.folder / f"faults/2.{point}" for point in ("building-the-network", "joining")]
        points[0].parent.mkdir()
        for point in points:
            point.write_text("stop")
        new = self.start("own-again", *common, "--rank", 2, "--join", self.read_address(ranks[0]),
                         environment={"MOTLEY_FAULTS": str(points[0].parent)})
        for point in points:
            self.wait_until(lambda: not point.exists() and process_state(new.pid) == "T")
            self.wait_for_step("own-0", max(self.losses("own-0")) + 10)
            changes = [line["event"] for line in self.lines("own-0") if line.get("event") in ("lost", "joined")]
            self.assertEqual(changes, ["lost"])
            new.send_signal(signal.SIGCONT)
        self.wait_for_share("own-0", 2)
        self.stop_all(*ranks[:2], new)
        self.assert_as_one_worker_so_far("own-0")

    def test_the_others_train_while_a_newcomer_gets_the_state(self):
        faults = self.folder / "faults"
        faults.mkdir()
        process = self.start("run", *self.double, "--cluster", self.cluster([0.001] * 3), "--elastic", "1:3", "--epochs", 1000,
                             "--evaluate.every-epochs", 1000, environment={"MOTLEY_FAULTS": str(faults)})
        self.wait_for_step("run", 3)
        held = faults / "1.state-transfer"
        held.write_text("wait")
        os.kill(self.worker_processes(process.pid)[1], signal.SIGKILL)
        self.wait_for_change("run", "rank 1 has joined")
        entered = max(self.losses("run"))
        self.wait_for_step("run", entered + 15)
        after = [line["samples"] for line in self.lines("run") if "loss" in line and line["step"] > entered]
        self.assertEqual({(samples[1], sum(samples)) for samples in after}, {(0, 60)})
        held.unlink()
        self.wait_for_share("run", 1)
        self.stop_all(process)
        self.assert_as_one_worker_so_far("run")

    def test_a_machine_that_was_not_there_before_joins(self):
        """The file has a line for it; the job begins with those before."""
        common = self.flags_by_hand(29606, 0.001, 1, "--epochs", 1000, "--workers", 2)
        early = self.train("early", *common, "--rank", 2, expect=2)
        self.assertIn("--rank: 2 does not begin the job, which does so with workers: 2; accepted: 0 to 1, or", early)
        ranks = [self.start(f"own-{rank}", *common, "--rank", rank) for rank in (0, 1)]
        self.wait_for_step("own-0", 5)
        new = self.start("own-2", *common, "--rank", 2, "--join", self.read_address(ranks[0]), within=self.as_on_another_machine())
        self.wait_for_share("own-0", 2)
        self.stop_all(*ranks, new)
        self.assert_as_one_worker_so_far("own-0")
        self.assertEqual([line["samples"][2] for line in self.lines("own-0") if line.get("step") == 1 and "loss" in line], [0])


if __name__ == "__main__":
    unittest.main()
