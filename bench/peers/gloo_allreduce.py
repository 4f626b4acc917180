"""PyTorch's Gloo as a peer: all_reduce of float32 tensors among processes over loopback, one timed batch per line.

    gloo_allreduce.py RANKS BYTES[,BYTES...]

Each line "INDEX COUNT" on standard input runs COUNT all_reduces of the INDEX-th size; the answer is the seconds per
all_reduce of the slowest rank. End of input ends the processes. Prints "ready" first.
"""

import os
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist


def main():
    ranks, sizes = int(sys.argv[1]), [int(size) for size in sys.argv[2].split(",")]
    rank = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    if rank == 0:
        folder = tempfile.TemporaryDirectory()
        meeting = os.path.join(folder.name, "store")
        command = [sys.executable, __file__, *sys.argv[1:3]]
        others = [subprocess.Popen([*command, str(r), meeting], stdin=subprocess.DEVNULL) for r in range(1, ranks)]
    else:
        meeting = sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=ranks)
    tensors = [torch.zeros(size // 4) for size in sizes]
    for tensor in tensors:
        dist.all_reduce(tensor)
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
            began = time.perf_counter()
            dist.all_reduce(tensors[index])
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
