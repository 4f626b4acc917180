"""Data parallelism on Gloo as a peer, for networks and devices that are not there: a rank sleeps for as long as its
device would compute each layer, and all-reduces gradients of the layers' sizes in buckets of 25 MB, the first of 1 MB:
when all ranks have computed (bsp, bulk-synchronous), or each as soon as backward has completed it, while backward goes
on (ddp, as PyTorch's DistributedDataParallel does).

    gloo_synthetic.py RANK RANKS HOST:PORT INTERFACE STEPS LAYERS bsp|ddp

LAYERS is a JSON file with a list for each rank, of each layer's {"parameters", "forward", "backward"}: values, and
seconds of the rank's samples. All ranks begin a step together. Rank 0 prints the median seconds of a step, the first
left out.
"""

import json
import os
import statistics
import sys
import time

rank, ranks, rendezvous, interface, steps, file, mode = sys.argv[1:]
os.environ["GLOO_SOCKET_IFNAME"] = interface

import torch
import torch.distributed as dist

torch.set_num_threads(1)
layers = json.load(open(file))[int(rank)]
forward = sum(layer["forward"] for layer in layers)

# Of each bucket its gradient, and when it is complete, counted from the begin of backward.
buckets, values, seconds, limit = [], 0, 0.0, 1 << 20
for layer in reversed(layers):
    seconds += layer["backward"]
    values += int(layer["parameters"])
    if 4 * values >= limit:
        buckets.append((torch.zeros(values), seconds))
        values, limit = 0, 25 << 20
if values:
    buckets.append((torch.zeros(values), seconds))


def sleep_until(moment):
    time.sleep(max(0.0, moment - time.perf_counter()))


dist.init_process_group("gloo", init_method="tcp://" + rendezvous, rank=int(rank), world_size=int(ranks))
times = []
for _ in range(int(steps)):
    dist.barrier()
    began = time.perf_counter()
    pending = []
    for gradient, ready in buckets:
        sleep_until(began + forward + (ready if mode == "ddp" else seconds))
        pending.append(dist.all_reduce(gradient, async_op=True))
    sleep_until(began + forward + seconds)
    for work in pending:
        work.wait()
    times.append(time.perf_counter() - began)
if rank == "0":
    print(statistics.median(times[1:]), flush=True)
dist.barrier()
dist.destroy_process_group()
