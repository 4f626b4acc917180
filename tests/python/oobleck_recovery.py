"""Our recovery in Oobleck's simulator (bench/python/elastic_oobleck.py) against accounts by hand, in a simulator that has of the
artifact what a loss needs: steps of 1000 ms, and a layout of 200 ms after each loss."""
import heapq
import math
import sys
import types
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench/python"))

from elastic_oobleck import BrokenSteps, Costs, OurRecovery

STEP, LAYOUT, PAUSE, RESTART = 1000, 200, 50, 5000


class Event(tuple):
    """Moment, a number that tells events of one moment apart, kind, data."""
    kind = property(lambda self: types.SimpleNamespace(name=self[2]))


class Artifact:
    def __init__(self, nodes):
        self.nodes = [f"node{number}" for number in range(nodes)]
        self.step_delta, self.local_rendezvous_timeout_delta, self.global_rendezvous_timeout_delta = STEP, LAYOUT, 0
        self.effective_time, self.fallback_loss_time, self.rebalance_time = 0.0, 0.0, 0.0
        self.num_steps_complete = self.rendezvous_version = self.count = 0
        self.performance_ys, self.events, self.finished = [], [], []

    def add(self, delta, kind, data):
        self.count += 1
        heapq.heappush(self.events, Event((delta, self.count, kind, data)))

    def create_training_step_complete_event(self, delta, rendezvous_version):
        self.effective_time += self.step_delta
        self.add(delta + self.step_delta, "TRAINING_STEP_COMPLETE", {"rendezvous_version": rendezvous_version})

    def create_global_rendezvous_timeout_event(self, delta):
        pause = self.local_rendezvous_timeout_delta + self.global_rendezvous_timeout_delta
        self.rebalance_time += pause
        self.add(delta + pause, "GLOBAL_RENDEZVOUS_TIMEOUT", {})

    def simulate_assign_coordinates(self):
        pass

    def simulate_training_step_complete(self, delta, data):
        if data["rendezvous_version"] == self.rendezvous_version:
            self.num_steps_complete += 1
            self.finished.append(delta)
            self.performance_ys += [1.0, 1.0]
            self.create_training_step_complete_event(delta, self.rendezvous_version)

    def simulate_spot_instance_remove(self, delta, data):
        self.nodes.remove(data["name"])
        self.is_broken = True
        self.fallback_loss_time += self.step_delta
        self.create_global_rendezvous_timeout_event(delta)

    @property
    def status(self):
        return types.SimpleNamespace(name="RENDEZVOUS" if self.is_broken else "RUNNING")

    def install(self, delta):
        self.is_broken = False
        self.rendezvous = list(self.nodes)
        self.simulate_assign_coordinates()
        self.rendezvous_version += 1
        self.create_training_step_complete_event(delta, self.rendezvous_version)

    def play(self, losses, end):
        """Until the first event after `end`; the job begins at 0."""
        self.install(0)
        for delta, name in losses:
            self.add(delta, "SPOT_INSTANCE_REMOVE", {"name": name})
        while self.events[0][0] <= end:
            delta, _, kind, data = heapq.heappop(self.events)
            if kind == "SPOT_INSTANCE_REMOVE":
                self.simulate_spot_instance_remove(delta, data)
            elif kind == "TRAINING_STEP_COMPLETE":
                self.simulate_training_step_complete(delta, data)
            else:
                self.install(delta)
        return self

    def accounts(self):
        return self.effective_time, self.fallback_loss_time, self.rebalance_time


class Strict(BrokenSteps, Artifact):
    pass


class Ours(OurRecovery, Artifact):
    pass


def play(losses, end, keeps_rest=True, nodes=4, pause=PAUSE, fewest_nodes=2):
    return Ours(Costs(pause, RESTART, 10, fewest_nodes, keeps_rest), nodes=nodes).play(losses, end)


class OobleckRecovery(unittest.TestCase):
    def test_a_whole_lost_step_is_theirs(self):
        losses = [(2400, "node1"), (7500, "node3")]
        ours, theirs = play(losses, 12000, keeps_rest=False, pause=LAYOUT), Strict(4).play(losses, 12000)
        self.assertEqual(ours.accounts(), theirs.accounts())
        self.assertEqual(ours.finished, theirs.finished)

    def test_the_lost_share_is_computed_again(self):
        # 400 ms into the third step: half of that stays, so 800 ms are left.
        done = play([(2400, "node1")], 3500)
        self.assertEqual(done.finished, [1000, 2000, 2400 + PAUSE + 800])
        # The half of the step that is thrown away counts as effective all the same, as in the artifact: 500; of the rest what
        # was computed, 200; what was left, 800; and the two steps before and the one after it.
        self.assertEqual(done.accounts(), (2000 + 500 + 200 + 800 + 1000, 500, PAUSE))

    def test_the_lost_share_is_that_of_as_many_replicas_as_there_are_nodes_for(self):
        # 400 ms into the third step: of three replicas of two nodes two thirds of that stay, of two of three or more a half.
        for fewest_nodes, nodes, left in ((2, 7, 733), (3, 7, 800), (math.inf, 7, 800)):
            with self.subTest(fewest_nodes=fewest_nodes):
                done = play([(2400, "node1")], 3400, nodes=nodes, fewest_nodes=fewest_nodes)
                self.assertEqual(done.finished, [1000, 2000, 2400 + PAUSE + left])

    def test_a_step_that_broke_off_does_not_end_in_the_pause(self):
        loss = 3000 - PAUSE // 2
        done = play([(loss, "node1")], 3600)
        self.assertEqual(done.finished, [1000, 2000, loss + PAUSE + 512])  # of 1000 ms 975 were done, and (1 - 0.4875) are left

    def test_two_losses_in_one_step(self):
        # After the first 800 ms are left, of which 300 are done by the second: (0.2 + 0.3) / 2 of the step stays.
        second = 2400 + PAUSE + 300
        done = play([(2400, "node1"), (second, "node3")], second + PAUSE + 1000)
        self.assertEqual(done.finished, [1000, 2000, second + PAUSE + 750])
        self.assertEqual(done.accounts(), (2000 + 700 + 800 - 0.5 * 500 + 750 + 1000, 1000, 2 * PAUSE))

    def test_a_stage_without_replicas_pays_the_checkpoint(self):
        # Of twelve steps ten are in the checkpoint: two are lost, and all of the one under way.
        done = play([(12400, "node0"), (12400 + PAUSE - 10, "node1")], 12440 + RESTART + PAUSE)
        self.assertEqual((done.restarts, done.num_steps_complete), (1, 10))
        self.assertEqual(done.performance_ys, [1.0] * 20 + [0.0] * 4)
        self.assertEqual(done.fallback_loss_time, 500 + 2000 + 1000)
        self.assertEqual(done.events[0][0], 12440 + RESTART + PAUSE + STEP)
        # The first loss's layout is never installed, and its pause counts with the restart.
        self.assertEqual(done.rebalance_time, PAUSE + RESTART + PAUSE)

    def test_a_replica_in_another_stage_needs_no_checkpoint(self):
        done = play([(12400, "node0"), (12410, "node2")], 13000)
        self.assertEqual(done.restarts, 0)


if __name__ == "__main__":
    unittest.main()
