"""What Motley costs where it has nothing to gain: two ranks of equal speed, one process group, plain steps and ours in turns.

    overhead.py [--quick]     measures (starts two ranks of itself)
"""
import statistics
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import motley
from rows import SCRIPTS, print_rows, row, run_on_ranks
from turns import compare, differences

sys.path.insert(0, str(SCRIPTS))
from fashion_mnist import Images, make_net

BATCH = 512  # of both ranks: a step takes more than 20 ms


class Block(torch.nn.Module):
    """A residual block of ResNet-18."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        nn = torch.nn
        self.body = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
                                  nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.skip = (nn.Identity() if inputs == outputs
                     else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)))

    def forward(self, images):
        return torch.relu(self.body(images) + self.skip(images))


def make_resnet18():
    nn = torch.nn
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for inputs, outputs, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def batches(loader):
    while True:
        yield from loader


def make_step(model, batch):
    def step():
        images, labels = next(batch)
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        for parameter in model.parameters():
            parameter.grad = None

    return step


def be_rank(quick):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    blocks = 5 if quick else 60
    data = Images("train")
    sampler = torch.utils.data.DistributedSampler(data)
    plain = make_step(DDP(make_net()), batches(torch.utils.data.DataLoader(data, BATCH // 2, sampler=sampler)))
    loader = motley.DataLoader(data, BATCH)
    ours = make_step(motley.weight_gradients(DDP(make_net()), loader), batches(loader))
    (step, _), ratios = compare([plain, ours], blocks)

    images, labels = torch.randn(2, 3, 64, 64), torch.tensor([1, 2])
    same = batches([(images, labels)])
    hooked, bare, weighted = DDP(make_resnet18()), DDP(make_resnet18()), DDP(make_resnet18())
    hooked._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    counted = motley.weight_gradients(weighted, samples=len)
    kinds = [make_step(model, same) for model in (bare, counted, hooked)]
    (_, longer, longer_with_hook), (default, *_) = differences(kinds, 60 if quick else 1000)
    if dist.get_rank() == 0:
        note = "measured; two ranks, one thread each, gloo"
        print_rows([row("ddp-equal-speeds", "overhead", statistics.median(ratios), "ratio", "less", 1.03, 1.0,
                        f"{note}; plain steps take {1e3 * step:.1f} ms"),
                    row("hook", "per_step_ms", 1e3 * longer, "ms", "less", 0.3, None,
                        f"{note}; ResNet-18, over DDP, in steps of {1e3 * default:.0f} ms; DDP's own all-reduce hook costs "
                        f"{1e3 * longer_with_hook:.2f} ms: without a hook DDP divides while it copies into the bucket")])
    dist.destroy_process_group()


if __name__ == "__main__":
    run_on_ranks(__doc__, __file__, be_rank, 2)
