"""A rank of a job that trains until it is as accurate as wanted: what time_to_accuracy.py compares.

    motley launch --emulated-speeds 1,0.5 accuracy_job.py --method dynamic --network cnn --accuracy 0.85

Rank 0 prints the seconds of training after which the wanted accuracy on the test images was reached, and the best that was measured.
States are kept as training goes on and tested after each epoch, which does not count. All methods take steps of the same global batch size
with the same optimizer from the same weights.
"""
import argparse
import json
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import motley
from overhead import make_resnet18
from rows import SCRIPTS

sys.path.insert(0, str(SCRIPTS))
from fashion_mnist import Images, make_net

METHODS = ("ddp", "equal", "original", "dynamic")
NETWORKS = {"cnn": lambda: make_net(48), "resnet18": lambda: torch.nn.Sequential(torch.nn.Conv2d(1, 3, 1), make_resnet18())}
BATCH, SNAPSHOTS = 256, 12  # of all ranks; an epoch


class Way:
    """How a step comes to its gradients."""

    def backward(self, loss):
        loss.backward()


class Plain(Way):
    """PyTorch's own: each rank has the same share."""

    def __init__(self, net, data, seed):
        self.model = DDP(net)
        self.sampler = torch.utils.data.DistributedSampler(data, seed=seed)
        self.loader = torch.utils.data.DataLoader(data, batch_size=BATCH // dist.get_world_size(), sampler=self.sampler)

    def begin(self, epoch):
        self.sampler.set_epoch(epoch)
        return self.loader


class Split(Way):
    """Motley's, by speed as measured while training, or with equal shares."""

    def __init__(self, net, data, seed, how):
        self.loader = motley.DataLoader(data, global_batch_size=BATCH, seed=seed, batch_split=how)
        self.model = motley.weight_gradients(DDP(net), self.loader)

    def begin(self, epoch):
        return self.loader


class Original(Way):
    """The rule of arXiv 2110.08941: after each epoch a rank's share becomes p / t over the sum of all, where t is its mean time of forward
    and backward. Gradients are weighted exactly, which its published code does not do."""

    def __init__(self, net, data, seed):
        self.model, self.data, self.seed = DDP(net), data, seed
        self.shares = [1 / dist.get_world_size()] * dist.get_world_size()

    def begin(self, epoch):
        if epoch:
            mean = torch.tensor([self.computing / self.steps])
            times = [torch.zeros(1) for _ in self.shares]
            dist.all_gather(times, mean)
            by_speed = [share / seconds.item() for share, seconds in zip(self.shares, times)]
            self.shares = [one / sum(by_speed) for one in by_speed]
        self.computing, self.steps = 0.0, 0
        self.loader = motley.DataLoader(self.data, global_batch_size=BATCH, seed=self.seed + epoch, batch_split=self.shares)
        return self.loader

    def backward(self, loss):
        self.loader.weigh(loss).backward()


def make(method, net, data, seed):
    if method == "ddp":
        return Plain(net, data, seed)
    return Original(net, data, seed) if method == "original" else Split(net, data, seed, method)


@torch.no_grad()
def measure_accuracy(net, state, tests):
    """Of a state of the network, by all ranks together."""
    net.load_state_dict(state)
    net.eval()
    own = slice(dist.get_rank(), None, dist.get_world_size())
    images, labels = tests.images[own].float() / 255, tests.labels[own]
    right = sum((net(part).argmax(1) == wanted).sum() for part, wanted in zip(images.split(250), labels.split(250)))
    dist.all_reduce(right)
    net.train()
    return right.item() / len(tests)


def find_first(states, is_reached):
    """The first of the states that has reached it, if the last one has: all after one that has are taken to have it."""
    if not is_reached(states[-1]):
        return None
    low, high = 0, len(states) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_reached(states[middle]) else (middle + 1, high)
    return states[low]


def train(options):
    """Seconds of training until the accuracy was reached, or None, and the best accuracy that was measured."""
    torch.manual_seed(options.seed)
    data, tests = Images("train"), Images("t10k")
    net = NETWORKS[options.network]()
    way = make(options.method, net, data, options.seed)
    optimizer = torch.optim.AdamW(way.model.parameters(), lr=1e-3)
    every = -(-len(data) // BATCH // SNAPSHOTS)
    training, accuracies = 0.0, []

    def is_reached(state):
        accuracies.append(measure_accuracy(net, state[1], tests))
        return accuracies[-1] >= options.accuracy

    for epoch in range(options.epochs):
        states = []
        dist.barrier()
        began = time.perf_counter()
        for step, (images, labels) in enumerate(way.begin(epoch), 1):
            before = time.perf_counter()
            way.backward(torch.nn.functional.cross_entropy(way.model(images), labels))
            if options.method == "original":
                way.computing, way.steps = way.computing + time.perf_counter() - before, way.steps + 1
            optimizer.step()
            optimizer.zero_grad()
            if step % every == 0:
                states.append((training + time.perf_counter() - began, {key: value.clone() for key, value in net.state_dict().items()}))
        training += time.perf_counter() - began
        states.append((training, {key: value.clone() for key, value in net.state_dict().items()}))
        if found := find_first(states, is_reached):
            return found[0], max(accuracies)
        net.load_state_dict(states[-1][1])
    return None, max(accuracies)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--network", choices=NETWORKS, required=True)
    parser.add_argument("--accuracy", type=float, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    found = train(given)
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()
