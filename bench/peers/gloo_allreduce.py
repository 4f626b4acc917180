"""PyTorch's Gloo as a peer: all_reduce of float32 tensors among processes over loopback, one timed batch per line.

    gloo_allreduce.py RANKS BYTES[,BYTES...] [--momentum] [--barrier]

Each line "INDEX COUNT" on standard input runs COUNT all_reduces of the INDEX-th size; the answer is the seconds per
all_reduce of the slowest rank. With --momentum each is followed by a step of torch.optim.SGD with momentum, which
counts too. With --barrier all ranks begin a round at once. End of input ends the processes. Prints "ready" first.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", type=int)
    parser.add_argument("sizes", type=lambda text: [int(size) for size in text.split(",")])
    parser.add_argument("--momentum", action="store_true")
    parser.add_argument("--barrier", action="store_true")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--rendezvous")
    arguments = parser.parse_args()
    ranks, sizes, rank = arguments.ranks, arguments.sizes, arguments.rank
    if rank == 0:
        folder = tempfile.TemporaryDirectory()
        rendezvous = os.path.join(folder.name, "store")
        command = [sys.executable, __file__, *sys.argv[1:], "--rendezvous", rendezvous, "--rank"]
        others = [subprocess.Popen([*command, str(r)], stdin=subprocess.DEVNULL) for r in range(1, ranks)]
    else:
        rendezvous = arguments.rendezvous
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=ranks)
    tensors = [torch.zeros(size // 4) for size in sizes]
    optimizers = []
    for tensor in tensors:
        dist.all_reduce(tensor)
        if arguments.momentum:
            weights = torch.nn.Parameter(torch.zeros_like(tensor))
            weights.grad = tensor
            optimizers.append(torch.optim.SGD([weights], lr=0.01, momentum=0.9, fused=True))
            optimizers[-1].step()
    if rank == 0:
        print("ready", flush=True)
    while True:
        order = torch.tensor([-1, 0])
        if rank == 0:
            line = sys.stdin.readline()
            if line.strip():
                order = torch.tensor([int(word) for word in line.split()])
        dist.broadcast(order, 0)
        index, count = order.tolist()
        if index < 0:
            break
        dist.barrier()
        total = 0.0
        for _ in range(count):
            tensors[index].fill_(rank + 1)  # as in training, each rank has just written its values; not counted
            if arguments.barrier:
                dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(tensors[index])
            if arguments.momentum:
                tensors[index].div_(ranks)
                optimizers[index].step()
            total += time.perf_counter() - began
        seconds = torch.tensor([total / count], dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        if rank == 0:
            print(seconds.item(), flush=True)
    if rank == 0:
        for other in others:
            other.wait()
    dist.destroy_process_group()


main()
