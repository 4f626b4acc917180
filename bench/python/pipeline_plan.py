"""motley.pipeline against the program: the same plan, network, batches and number of threads, in turns.

    pipeline_plan.py [--quick]           measures
    pipeline_plan.py --rank PLAN STEPS   a rank of motley.pipeline: prints its median step
"""
import collections
import concurrent.futures
import json
import pathlib
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

import motley
from rows import SCRIPTS, last_step_ms, median_ratio, print_rows, read_flags, row, run, say

sys.path.insert(0, str(SCRIPTS))
from fashion_mnist import Images

BATCH, COUNTED = 256, 60  # samples of a step; steps that count, the last ones
JOB = SCRIPTS.parent / "fashion-mnist"


def make_cnn():
    """The program's network ``cnn``."""
    return nn.Sequential(collections.OrderedDict(
        conv1=nn.Conv2d(1, 24, 5, 2, 2), relu1=nn.ReLU(), conv2=nn.Conv2d(24, 48, 3, 2, 1), relu2=nn.ReLU(), flatten=nn.Flatten(),
        fc1=nn.Linear(48 * 7 * 7, 64), relu_fc1=nn.ReLU(), output=nn.Linear(64, 10)))


def make_plan():
    stages = [{"first_layer": first, "last_layer": last, "replicas": [{"type": "cpu", "count": 1}], "gradient_sync": "none"}
              for first, last in (("conv1", "relu1"), ("conv2", "output"))]
    return {"version": 2, "model": "cnn", "layers": list(dict(make_cnn().named_children())), "global_batch_size": BATCH, "micro_batches": 4,
            "stages": stages}


def list_batches(data, pipe):
    """What this rank's stage needs of each batch."""
    orders = torch.Generator().manual_seed(0)
    while True:
        for indices in torch.randperm(len(data), generator=orders).split(BATCH):
            if len(indices) == BATCH:
                yield (data.images[indices] / 255 if pipe.stage == 0 else None,
                       data.labels[indices] if pipe.stage + 1 == pipe.stages else None)


def be_rank(plan, steps):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data, net = Images("train"), make_cnn()
    pipe = motley.pipeline(net, plan, loss_fn=nn.functional.cross_entropy, example_inputs=torch.zeros(2, 1, 28, 28))
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1, momentum=0.9, nesterov=True, fused=True)
    seconds, batches = [], list_batches(data, pipe)
    with concurrent.futures.ThreadPoolExecutor(1) as ahead:  # as the program does
        upcoming = ahead.submit(next, batches)
        for _ in range(steps):
            began = time.perf_counter()
            inputs, targets = upcoming.result()
            upcoming = ahead.submit(next, batches)
            optimizer.zero_grad()
            pipe.step(inputs, targets)
            optimizer.step()
            seconds.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        print(f"{1e3 * statistics.median(seconds[-COUNTED:]):.3f} ms a step")
    dist.destroy_process_group()


def run_program(folder, plan, steps):
    run(["motley", "train", JOB / "job.yaml", "--cluster", JOB / "cores.yaml", "--plan", plan, "--steps", steps,
         "--global-batch-size", BATCH, "--batch-split.mode", "fixed", "--run-directory", folder / "run", "--overwrite", "--quiet"])
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return 1e3 * statistics.median([line["step_seconds"] for line in lines if "step_seconds" in line][-COUNTED:])


def measure(quick):
    pairs, steps = [], 80 if quick else 100
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        plan = folder / "plan.json"
        plan.write_text(json.dumps(make_plan()))
        for _ in range(1 if quick else 15):
            program = run_program(folder, plan, steps)
            ours = last_step_ms(run(["motley", "launch", "--workers", 2, __file__, "--rank", plan, steps]))
            say(f"python: a pipeline of two stages: the program {program:.1f} ms a step, motley.pipeline {ours:.1f} ms")
            pairs.append((program, ours))
    print_rows([row("pipeline-plan", "ratio_to_program", median_ratio(pairs), "ratio", "more", 0.9, None,
                    f"measured; samples per second over the program's; cnn on Fashion-MNIST, two stages, batches of {BATCH} in four "
                    "micro-batches, one thread each, both optimizers in one pass over each parameter")])


if __name__ == "__main__":
    given = read_flags(__doc__, rank={"nargs": 2, "metavar": ("PLAN", "STEPS"), "help": "be a rank that runs the plan"})
    if given.rank is not None:
        be_rank(given.rank[0], int(given.rank[1]))
    else:
        measure(given.quick)
