"""What an accelerator gains and costs: training on it alone, all-reduces of its tensors, and together with the machine's CPUs.

    gpu.py [--quick]     measures (starts ranks of itself); says so where PyTorch sees no accelerator
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import motley
from overhead import batches, make_resnet18, make_step
from rows import SCRIPTS, print_rows, read_flags, row, run, say
from turns import compare

sys.path.insert(0, str(SCRIPTS))
from fashion_mnist import make_net

GRADIENTS = 11_700_000  # float32, as many as ResNet-18 has
IMAGES = 32_768  # of a step of all ranks


def on_device(step):
    """A step that ends when the device has done it."""
    def waited():
        step()
        torch.accelerator.synchronize()

    return waited


def measure_overhead(device, quick):
    """ResNet-18 by one rank: PyTorch alone, its DDP, and ours."""
    images, labels = torch.randn(64, 3, 224, 224, device=device), torch.randint(1000, (64,), device=device)
    same = batches([(images, labels)])
    nccl = dist.new_group(backend="nccl")
    ours = motley.weight_gradients(DDP(make_resnet18().to(device)), samples=len)
    steps = [make_step(model, same) for model in (make_resnet18().to(device), ours, DDP(make_resnet18().to(device), process_group=nccl))]
    blocks = 5 if quick else 15
    (eager, mine, ddp), ratios = compare([*map(on_device, steps)], blocks)
    note = f"measured on {torch.cuda.get_device_name(device)}; 64 images of 224 x 224, float32; eager steps take {1e3 * eager:.2f} ms"
    return [row("resnet18", "overhead_over_pytorch", statistics.median(ratios), "ratio", "less", None, 1.0,
                f"{note}; PyTorch's DDP of one rank takes {ddp / eager:.4f} of that, ours {mine / eager:.4f}")]


def measure_exchange(device, quick):
    """All-reduces of two ranks that share the device, over us and over gloo, and the copies alone."""
    values, pinned = torch.ones(GRADIENTS, device=device), torch.empty(GRADIENTS, pin_memory=True)
    gloo = dist.new_group(backend="gloo")

    def copy():
        pinned.copy_(values, non_blocking=True)
        values.copy_(pinned, non_blocking=True)

    kinds = [lambda: dist.all_reduce(values), lambda: dist.all_reduce(values, group=gloo), copy]
    (ours, theirs, copies), ratios = compare([*map(on_device, kinds)], 4 if quick else 10)
    note = f"measured; two ranks share one {torch.cuda.get_device_name(device)}; ours {1e3 * ours:.2f} ms, gloo {1e3 * theirs:.2f} ms"
    return [row("exchange-46.8MB-N2", "share_of_copies", copies / ours, "share", "more", None, 1.0,
                f"{note}; to pinned memory and back, of both ranks at once, {1e3 * copies:.2f} ms"),
            row("exchange-46.8MB-N2", "ratio_to_gloo", 1 / statistics.median(ratios), "ratio", "less", None, None, note)]


class Images(torch.utils.data.Dataset):
    """Random ones, in batches."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(1)
        self.images, self.labels = torch.randn(count, 1, 28, 28, generator=generator), torch.randint(10, (count,), generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]

    def __getitems__(self, indices):
        return self[torch.tensor(indices)]


def train(devices, steps):
    """The median of the last half of a training's steps, seconds, and the split at the end; each rank has a device."""
    device = torch.device(devices[dist.get_rank()])
    if device.type == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 2) - 2))
    loader = motley.DataLoader(Images(2 * IMAGES), IMAGES, collate_fn=lambda batch: batch)
    model = motley.weight_gradients(DDP(make_net().to(device)), loader)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    times, began = [], time.perf_counter()
    while len(times) < steps:
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
            now = time.perf_counter()
            times.append(now - began)
            began = now
    return statistics.median(times[len(times) // 2:]), loader.split


def be_rank(part, quick):
    device = torch.accelerator.current_accelerator()
    dist.init_process_group("motley")
    if part == "overhead":
        rows = measure_overhead(device, quick)
    elif part == "exchange":
        rows = measure_exchange(device, quick)
    else:
        seconds, split = train(part.split(","), 8 if part == "cpu" else 40)
        rows = [seconds, split]
    if dist.get_rank() == 0:
        print_rows(rows)
    dist.destroy_process_group()


def measure_mixed(start, device):
    """The small net of the examples, on the accelerator, on the CPUs, and on both."""
    (on_device, _), (on_cpu, _), (both, split) = (start(part, ranks) for part, ranks in ((device, 1), ("cpu", 1), (f"{device},cpu", 2)))
    optimum = 1 / (1 / on_device + 1 / on_cpu)
    note = (f"measured; {IMAGES} images a step, {1e3 * on_device:.2f} ms on the accelerator alone, {1e3 * on_cpu:.1f} ms on the CPUs "
            f"alone, {1e3 * both:.2f} ms on both, split {split}")
    return [row("mixed-cpu-gpu", "gap_to_optimum", both / optimum - 1, "share", "less", None, 0.0, note),
            row("mixed-cpu-gpu", "step_speedup_over_accelerator", on_device / both, "ratio", "more", None, on_device / optimum, note)]


def main():
    flags = read_flags(__doc__, part={"default": ""})
    if flags.part:
        return be_rank(flags.part, flags.quick)
    if not torch.accelerator.is_available():
        say("skipped: PyTorch sees no accelerator")
        return print_rows([])

    def start(part, ranks):
        say(f"{part}, {ranks} rank{'s' * (ranks > 1)}")
        quick = ["--quick"] if flags.quick else []
        return json.loads(run(["motley", "launch", "--workers", ranks, __file__, "--part", part, *quick]).splitlines()[-1])

    device = torch.accelerator.current_accelerator().type
    print_rows([*start("overhead", 1), *start("exchange", 2), *measure_mixed(start, device)])


if __name__ == "__main__":
    main()
