"""All-reduces of gradients on emulated accelerators, one of each of two ranks, against the copies that they take at least.

    accelerator_exchange.py [--quick]     measures (starts ranks of itself)

Gradients come in buckets, as DistributedDataParallel gives them, all at once. The limit is copies of as many bytes from the device and
of as many to it, at the same time.
"""
import statistics
import time

import torch
import torch.distributed as dist

import motley
from rows import print_rows, row, run_on_ranks, say

RANKS = 2
BYTES = 46_800_000
BUCKETS = 30
LINK, RATE = "2GB/s", 2e9  # each way


def timed(step):
    dist.barrier()
    began = time.perf_counter()
    step()
    torch.accelerator.synchronize()
    return time.perf_counter() - began


def measure(rounds):
    """Seconds of the exchange and of the copies, in turns, of this rank."""
    device = torch.device("emulated")
    buckets = [torch.ones(BYTES // 4 // BUCKETS, device=device) for _ in range(BUCKETS)]
    whole = [torch.ones(BYTES // 4, device=device) for _ in range(2)]
    pinned = [torch.ones(BYTES // 4, pin_memory=True) for _ in range(2)]
    outward, inward = torch.Stream(device), torch.Stream(device)

    def exchange():
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
            work.wait()

    def copy():
        with outward:
            pinned[0].copy_(whole[0], non_blocking=True)
        with inward:
            whole[1].copy_(pinned[1], non_blocking=True)

    torch.accelerator.synchronize()
    times = [(timed(exchange), timed(copy)) for _ in range(rounds + 2)][2:]
    return zip(*times)


def be_rank(quick):
    motley.emulated.enable(memory="1GB", host_link=LINK)
    dist.init_process_group("motley")
    torch.set_num_threads(1)
    ours, copies = ([None] * RANKS for _ in range(2))
    mine, own_copies = measure(11 if quick else 31)
    dist.all_gather_object(ours, list(mine))
    dist.all_gather_object(copies, list(own_copies))
    if dist.get_rank() == 0:
        ends = [max(each) for each in zip(*ours)]  # of the rank that was done last
        limits = [max(each) for each in zip(*copies)]
        share = statistics.median(limit / end for limit, end in zip(limits, ends))
        note = (f"measured on emulated accelerators, links of {LINK} each way; {BYTES / 1e6:.1f} MB in {BUCKETS} buckets take "
                f"{1e3 * statistics.median(ends):.1f} ms, copies of both directions at once {1e3 * statistics.median(limits):.1f} ms "
                f"({1e3 * BYTES / RATE:.1f} ms at the links' rate); medians of {len(ends)} in turns")
        say(f"accelerator: {note}")
        print_rows([row("emulated-exchange-46.8MB-N2", "share_of_copy_limit", share, "share", "more", 0.9, 1.0, note)])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run_on_ranks(__doc__, __file__, be_rank, RANKS)
