"""The backend motley of torch.distributed against gloo: what a step of DistributedDataParallel takes beyond one without
communication; and, beside the quick rows, PyTorch's own tests and two hundred starts.

    backend.py [--quick]      measures (starts the ranks of itself)
    backend.py PART           a rank: exposed, start, or equality, of which equality.py makes its row
"""
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import motley  # noqa: F401
from rows import KEEPS_FREED, print_rows, read_flags, row, run, say

SUITE = pathlib.Path(__file__).resolve().parents[2] / "tests/python/torch_suite.py"
PAIRS = 15
STEPS = 3  # of a kind in a row, of which the median counts
STARTS = 50  # of two ranks, each with and without destroying the process group
TARGETS = {("shm", 2): 0.35, ("shm", 4): 0.5, ("tcp", 2): 0.8, ("tcp", 4): 0.8}


def timed_step(model, images, labels, synchronises, gloo):
    dist.barrier(gloo)
    began = time.perf_counter()
    model.require_backward_grad_sync = synchronises
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    seconds = time.perf_counter() - began
    for parameter in model.parameters():
        parameter.grad = None
    return seconds


def be_exposed():
    """Steps through each backend with and without synchronisation, in turns; their gradients are ResNet-18's."""
    from overhead import make_resnet18

    gloo = dist.new_group(backend="gloo")
    batch = torch.randn(2, 3, 32, 32), torch.tensor([1, 2])
    models = [DDP(make_resnet18(), process_group=group, broadcast_buffers=False) for group in (None, gloo)]

    def measure(model):
        steps = [[timed_step(model, *batch, synchronises, gloo) for _ in range(STEPS)] for synchronises in (True, False)]
        return statistics.median(steps[0]) - statistics.median(steps[1])

    exposed = [[], []]
    for pair in range(PAIRS + 1):
        for index in (0, 1) if pair % 2 else (1, 0):
            seconds = measure(models[index])
            if pair:  # the first warms up
                exposed[index].append(seconds)
    if dist.get_rank() == 0:
        print(json.dumps(exposed))


def be_equality():
    """Training in float64 over the backend, against one process that computes each whole batch."""
    rank, count = dist.get_rank(), dist.get_world_size()

    def make():
        torch.manual_seed(1)
        nn = torch.nn
        net = nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 1)).double()
        return net, torch.optim.AdamW(net.parameters(), lr=0.01)

    (net, optimizer), (alone, alone_optimizer) = make(), make()
    model = DDP(net, bucket_cap_mb=0.5)
    for _ in range(32):
        inputs, targets = torch.randn(8 * count, 20, dtype=torch.float64), torch.randn(8 * count, 1, dtype=torch.float64)
        dist.broadcast(inputs, 0)
        dist.broadcast(targets, 0)
        for one, own_optimizer, part in ((model, optimizer, slice(8 * rank, 8 * rank + 8)), (alone, alone_optimizer, slice(None))):
            own_optimizer.zero_grad()
            torch.nn.functional.mse_loss(one(inputs[part]), targets[part]).backward()
            own_optimizer.step()
    worst = max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(net.parameters(), alone.parameters()))
    everyone = torch.tensor([worst], dtype=torch.float64)
    dist.all_reduce(everyone, dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps(everyone.item()))


def be_start():
    model = DDP(torch.nn.Linear(10, 10))
    model(torch.ones(2, 10)).sum().backward()
    dist.all_reduce(torch.ones(5), async_op=True).get_future().then(lambda done: done.value())


def exposed_row(transport, count):
    ours, gloo = json.loads(run(["motley", "launch", "--workers", count, __file__, "exposed"],
                                MOTLEY_TRANSPORT="tcp" if transport == "tcp" else "auto", **KEEPS_FREED))
    ratios = sorted(one / other for one, other in zip(ours, gloo))
    quarter = len(ratios) // 4
    note = (f"measured; medians {1e3 * statistics.median(ours):.1f} and {1e3 * statistics.median(gloo):.1f} ms beyond a step without "
            f"synchronisation, half of the {len(ratios)} ratios within {ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f}")
    say(f"python: {transport}, {count} ranks: {note}")
    return row(f"backend-{transport}-N{count}-46.8MB", "exposed_ratio_to_gloo", statistics.median(ratios), "ratio", "less",
               TARGETS[transport, count], None, note)


def suite_results(*flags):
    done = subprocess.run([sys.executable, SUITE, *flags], stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout.strip():
        sys.exit(f"PyTorch's own tests ended with {done.returncode} and without a result")
    return json.loads(done.stdout.strip().splitlines()[-1])


def suite_rows():
    if importlib.util.find_spec("expecttest") is None:
        say("python: rows pytorch-suite-* are left out: PyTorch's own tests import expecttest, which tools/setup --nightly installs")
        return []
    suite, lifted = suite_results(), suite_results("--lift")
    return [row("pytorch-suite-2", "unexpected_failures", len(suite["unexpected"]), "tests", "less", 0, 0,
                "; ".join(["long", *suite["unexpected"]])),
            row("pytorch-suite-2", "passes", suite["passes"], "tests", "more", 65, None, "long"),
            row("pytorch-suite-lifted", "passes", lifted["passes"], "tests", "more", 18, 26, "long; 8 need CUDA")]


def exit_row():
    failed = 0
    for index in range(2 * STARTS):
        command = [sys.executable, "-m", "motley", "launch", "--workers", "2", __file__, "start"]
        environment = os.environ | {"DESTROY": "yes" if index % 2 else "no"}
        failed += subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False).returncode != 0
    return row("exit-200-starts", "non_zero_exits", failed, "starts", "less", 0, 0, "long; two ranks each time")


def main():
    quick = read_flags(__doc__).quick
    rows = [exposed_row(transport, count) for transport, count in TARGETS]
    print_rows(rows + ([] if quick else [*suite_rows(), exit_row()]))


if __name__ == "__main__":
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        dist.init_process_group("motley")
        {"exposed": be_exposed, "equality": be_equality, "start": be_start}[sys.argv[1]]()
        if os.environ.get("DESTROY") != "no":
            dist.destroy_process_group()
    else:
        main()
