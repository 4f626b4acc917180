"""motley.run_step: memory that runs out on one rank, in forward and in backward, against one process that has enough."""
import dataclasses
import json
import unittest

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import motley
from data_parallel import SAMPLES, Data, count_lost_or_doubled, largest_difference, mean_loss, train_alone, weights, whole_steps
from ranks import RanksTest, run_scripts


class LittleMemory(torch.autograd.Function):
    """Passes values on, and holds at most so many samples in forward and in backward."""

    @staticmethod
    def forward(context, values, room):
        if len(values) > room.get("forward", len(values)):
            raise torch.OutOfMemoryError("injected into forward")
        context.room = room
        return values.clone()

    @staticmethod
    def backward(context, gradients):
        if len(gradients) > context.room.get("backward", len(gradients)):
            raise torch.OutOfMemoryError("injected into backward")
        return gradients, None


class Net(torch.nn.Module):
    """The network of the other tests, with a layer of little memory and a buffer that every forward changes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layers = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh(),
                                          torch.nn.Linear(16, 1)).double()
        self.register_buffer("forwards", torch.zeros((), dtype=torch.int64))
        self.room = {}

    def forward(self, inputs):
        self.forwards += 1
        return self.layers[2:](LittleMemory.apply(self.layers[:2](inputs), self.room))


def train(rooms, options, steps=None):
    """rooms: for a rank, the most samples that it can hold from which step on. What data_parallel.train gives, and the forwards."""
    loader = motley.DataLoader(Data(), **options)
    net = Net()
    model = motley.weight_gradients(DDP(net, bucket_cap_mb=0.001), loader)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    rank = torch.distributed.get_rank()

    def step(batch):
        indices, inputs, targets = batch
        loss = mean_loss(model, inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return indices.tolist() if loader.samples else []

    used, splits = [], []
    for batch in loader:
        for begin, room in rooms.get(rank, []):
            if begin == len(used):
                net.room = room
        used.append(motley.run_step(step, batch, loader))
        splits.append(loader.split)
        if steps == len(used):
            break
    return {"used": used, "splits": splits, "weights": weights(net), "forwards": int(net.forwards)}


class RunStep(RanksTest):
    count, backend = 3, "motley"

    def check(self, rooms, options):
        results = self.on_ranks(train, rooms, {"global_batch_size": 24, **options})
        steps = whole_steps(results)
        self.assertEqual(count_lost_or_doubled(steps), 0)
        self.assertLess(largest_difference(results, train_alone(steps, Net())), 1e-12)
        for result in results:
            self.assertEqual(result["splits"], results[0]["splits"])
            self.assertEqual(result["forwards"], len(steps))  # buffers are those of the steps that were done
        return results[0]["splits"]

    def test_in_forward(self):
        splits = self.check({1: [(2, {"forward": 5})]}, {"batch_split": "equal"})
        self.assertEqual(splits[1], [8, 8, 8])
        self.assertEqual(splits[2][1], 4)  # 8, 6 and 4 samples
        self.assertTrue(all(split[1] <= 4 for split in splits[2:]))

    def test_in_backward(self):
        splits = self.check({0: [(1, {"backward": 7})]}, {"batch_split": "equal"})
        self.assertEqual(splits[1][0], 6)

    def test_on_several_ranks_and_again(self):
        splits = self.check({0: [(3, {"forward": 7})], 2: [(1, {"backward": 7}), (5, {"forward": 5})]}, {"batch_split": "dynamic"})
        self.assertTrue(all(sum(split) in (24, SAMPLES % 24) for split in splits))
        self.assertTrue(all(split[0] <= 7 for split in splits[3:]))
        self.assertTrue(all(split[2] <= 5 for split in splits[5:]))

    def test_batches_that_were_drawn_ahead(self):
        splits = self.check({1: [(2, {"forward": 6})]}, {"batch_split": [1, 2, 1], "num_workers": 1})
        self.assertEqual(splits[1], [6, 12, 6])
        self.assertTrue(all(split[1] <= 6 for split in splits[2:]))

    def test_what_cannot_be_repeated_is_said_on_all_ranks(self):
        for message in self.refused_on_ranks(train, {1: [(1, {"forward": 5})]}, {"global_batch_size": 24, "batch_split": "equal",
                                                                                "min_local_batch_size": 8}):
            self.assertIn("rank 1 ran out of memory with 8 of the step's 24 samples, and min_local_batch_size", message)
        for message in self.refused_on_ranks(train, {0: [(1, {"forward": 0})]}, {"global_batch_size": 24, "batch_split": "equal",
                                                                                "max_local_batch_size": 9}):
            self.assertIn("rank 0 ran out of memory with 6 of the step's 24 samples, and with less the ranks cannot hold", message)

    def test_ranks_that_are_in_different_steps_are_told_so(self):
        """One has ended the step whose last gradients another still waits for: over a network it may be that far ahead."""
        for message in self.refused_on_ranks(run_out_a_step_ahead):
            self.assertIn("rank 1 ran out of memory with 12 of the step's 24 samples in step 1, when others had not ended the step before",
                          message)

    def test_other_failures_are_left_alone(self):
        for message in self.refused_on_ranks(fail_otherwise):
            self.assertEqual(message, "not of memory")

    def test_accumulation_is_refused(self):
        for message in self.refused_on_ranks(train, {}, {"global_batch_size": 24, "micro_batch_size": 4, "drop_last": True}):
            self.assertIn("motley.run_step takes one batch a step", message)


def run_out_a_step_ahead():
    loader = motley.DataLoader(Data(), 24, batch_split=[1, 2, 1])
    model = motley.weight_gradients(DDP(Net()), loader)

    def step(batch):
        if torch.distributed.get_rank() == 1:
            loader._step = dataclasses.replace(loader._step, number=loader._step.number + 1)
            raise torch.OutOfMemoryError("injected")
        mean_loss(model, *batch[1:]).backward()

    for batch in loader:
        motley.run_step(step, batch, loader)


def fail_otherwise():
    loader = motley.DataLoader(Data(), global_batch_size=24)

    def step(_):
        raise RuntimeError("not of memory")

    for batch in loader:
        motley.run_step(step, batch, loader)


class OverGloo(unittest.TestCase):
    def test_the_error_names_what_to_set(self):
        script = """
import os, torch, torch.distributed as dist, motley
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=os.environ["INIT"], rank=rank, world_size=2)
loader = motley.DataLoader(torch.utils.data.TensorDataset(torch.ones(96, 4)), 24, batch_split="equal")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
model = motley.weight_gradients(net, loader)
def step(batch):
    if rank == 1 and len(batch[0]) > 8:
        raise torch.OutOfMemoryError("injected")
    model(batch[0]).sum().backward()
for batch in loader:
    motley.run_step(step, batch, loader)
"""
        (other, _), (code, text) = run_scripts(script, 2)
        self.assertNotIn(other, (0, "it did not end"))
        self.assertEqual(code, 1, text)
        self.assertIn("OutOfMemoryError: rank 1 ran out of memory with 12 of the step's 24 samples: say max_local_batch_size=9 to "
                      "motley.DataLoader on this rank", text)

    def test_one_process(self):
        loader = motley.DataLoader(Data(), global_batch_size=24)

        def step(batch):
            raise torch.OutOfMemoryError(json.dumps(len(batch[0])))

        with self.assertRaisesRegex(torch.OutOfMemoryError, "with 24 of the step's 24 samples: say a smaller global_batch_size"):
            for batch in loader:
                motley.run_step(step, batch, loader)


if __name__ == "__main__":
    unittest.main()
