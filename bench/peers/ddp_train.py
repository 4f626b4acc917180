"""PyTorch's DistributedDataParallel on Gloo as a peer: whole steps of VGG-11 (531 MB in float32) with SGD and momentum.

    ddp_train.py RANK RANKS HOST:PORT INTERFACE STEPS SAMPLES fp32|bf16

Images have 1 x 64 x 64 values, so that the classifier of 4096 and 4096 is that of the paper; SAMPLES of them a rank and
step. With bf16 gradients travel through PyTorch's own compression hook, which DDP refuses on Gloo by its name (it asks
for NCCL) and which works there all the same: it stands behind another name here. Rank 0 prints the median seconds of a step, the
first two left out.
"""

import os
import statistics
import sys
import time

rank, ranks, rendezvous, interface, steps, samples, wire = sys.argv[1:]
os.environ["GLOO_SOCKET_IFNAME"] = interface

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook


def vgg11():
    layers, channels = [], 1
    for to in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        if to == 0:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, to, 3, padding=1), nn.ReLU()]
            channels = to
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(4096, 1000))


torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo", init_method="tcp://" + rendezvous, rank=int(rank), world_size=int(ranks))
model = nn.parallel.DistributedDataParallel(vgg11(), gradient_as_bucket_view=True)
if wire == "bf16":
    model.register_comm_hook(None, lambda state, bucket: bf16_compress_hook(state, bucket))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
images = torch.rand(int(samples), 1, 64, 64)
classes = torch.randint(0, 10, (int(samples),))
seconds = []
for _ in range(int(steps)):
    dist.barrier()
    began = time.perf_counter()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), classes).backward()
    optimizer.step()
    seconds.append(time.perf_counter() - began)
if rank == "0":
    print(statistics.median(seconds[2:]), flush=True)
dist.barrier()
dist.destroy_process_group()
