"""Runs an example's train() on two ranks, of which the first gets three quarters of each batch and dies on the way; then a second time,
to the end. What that gives is compared with one process that computes the batches which both runs recorded.

    torchrun --nproc-per-node 2 example_runs.py EXAMPLE FOLDER RUN LIMIT    one of the runs; rank 0 dies after LIMIT samples, if not 0
"""
import contextlib
import importlib
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import torch
import torch.distributed as dist

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
sys.path.insert(0, str(EXAMPLES))
SIZE, EPOCHS, SAVE_STEPS, DIES_IN_STEP = 800, 2, 3, 6
RUN = 300  # seconds in which a run has ended


class Recorded(torch.utils.data.Dataset):
    """The first samples of another dataset; writes down which ones were used by which rank."""

    def __init__(self, data, folder, run, limit):
        self.data, self.folder, self.run, self.limit, self.count = data, folder, run, limit, 0

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        self.count += 1
        rank = dist.get_rank()
        if self.limit and rank == 0 and self.count > self.limit:
            self.die()
        with open(f"{self.folder}/{self.run}-{rank}", "a") as file:
            file.write(f"{index}\n")
        return self.data[index]

    def die(self):
        os._exit(7)


def part(window, rank):
    return window * (3, 1)[rank] // 4


def run_by_torchrun(*words):
    """Runs a script with its arguments on two ranks; how it ended."""
    return subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words],
                          env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=RUN, check=False)


class ExampleTest(unittest.TestCase):
    """A test of one example. Its folder is new for each test."""

    batches = [256, 256, 256, 32]  # sizes of an epoch's

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_example(self, name, run, limit=0):
        """One run; how it ended."""
        return run_by_torchrun(__file__, name, self.folder, str(run), str(limit))

    def limit(self):
        """The samples of rank 0 before the step in which it dies."""
        return sum(part(size, 0) for size in (self.batches * EPOCHS)[:DIES_IN_STEP - 1])

    def run_twice(self, name):
        """The batches of all steps that count: those before the last checkpoint of a run that dies, and those of the run after it."""
        died = self.run_example(name, 1, self.limit())
        self.assertNotEqual(died.returncode, 0)
        self.assertTrue((self.folder / "checkpoint").exists(), died.stderr)
        resumed = self.run_example(name, 2)
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        return self.used_batches()

    def used_batches(self):
        """What the two runs recorded, as the samples of each step on both ranks; none is there twice in an epoch."""
        sizes = self.batches * EPOCHS
        used = [[] for _ in sizes]
        for run, steps in ((1, range(SAVE_STEPS)), (2, range(SAVE_STEPS, len(sizes)))):
            for rank in range(2):
                indices = iter(map(int, (self.folder / f"{run}-{rank}").read_text().split()))
                for step in steps:
                    used[step] += itertools.islice(indices, part(sizes[step], rank))
                self.assertEqual(len(list(indices)) > 0, run == 1)  # what was done after the checkpoint is done again
        for epoch in range(EPOCHS):
            of_epoch = list(itertools.chain(*used[epoch * len(self.batches):(epoch + 1) * len(self.batches)]))
            self.assertEqual(len(of_epoch), sum(self.batches))
            self.assertEqual(len(set(of_epoch)), sum(self.batches))
        return used

    def check(self, weights, expected):
        """The weights of a checkpoint, by name, against those of one process."""
        self.assertEqual(weights.keys(), expected.keys())
        largest = max(value.abs().max() for value in expected.values())
        for name, value in expected.items():
            self.assertEqual(weights[name].dtype, torch.float64)
            self.assertLess((weights[name] - value).abs().max() / largest, 1e-12, name)


@contextlib.contextmanager
def double_precision():
    torch.set_default_dtype(torch.float64)
    try:
        # transformers computes losses in float32 otherwise
        with unittest.mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


@double_precision()
def train_alone(batches):
    """The weights after these batches by PyTorch alone."""
    from fashion_mnist import Images, make_net
    torch.manual_seed(0)
    net, data = make_net(), Images("t10k")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for batch in batches:
        images = torch.stack([data[index][0] for index in batch])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), data.labels[batch]).backward()
        optimizer.step()
    return net.state_dict()


@double_precision()
def main(example, folder, run, limit):
    module = importlib.import_module(example)
    data = module.read_paragraphs() if hasattr(module, "read_paragraphs") else module.Images("t10k")
    if hasattr(module, "dist"):
        dist.init_process_group("gloo")
    module.train(Recorded(data, folder, run, int(limit)), EPOCHS, f"{folder}/checkpoint", SAVE_STEPS, [3, 1])
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
