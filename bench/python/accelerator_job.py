"""Two ranks, of which the first computes on an emulated accelerator: collectives of all kinds and steps of training, once as they are,
and then with each of our own waits, events and pins left out, or every so manieth. Rank 0 prints, by place, in how many runs that was
found.

    accelerator_job.py --rank RANK --meeting FILE --runs N --every N
"""
import json
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import motley
from motley import _motley
from rows import read_flags

SIZES = (2_000, 300_000)  # values: copied by themselves, and within memory that ranks share
TIMEOUT = 20  # seconds of an operation


def collectives(group, device):
    """Each kind twice, so that memory is used again, and several under way at once."""
    count = dist.get_world_size()
    for size in SIZES * 2:
        tensor = torch.ones(size, device=device)
        for root in range(count):
            dist.broadcast(tensor * 2, root, group=group)
        parts, whole = [torch.empty(size, device=device) for _ in range(count)], torch.empty(count * size, device=device)
        dist.all_gather(parts, tensor, group=group)
        dist.all_gather_into_tensor(whole, tensor, group=group)
        dist.reduce_scatter_tensor(tensor, whole + torch.cat(parts), group=group)
        tensors = [tensor.sqrt() for _ in range(3)]
        works = [dist.all_reduce(each, group=group, async_op=True) for each in tensors]
        for each, work in zip(tensors, works):
            work.wait()
            each.sum().item()
        dist.all_reduce(tensor, group=group, async_op=True).get_future().wait()
        tensor.sum().item()


def forget(group, device):
    """Operations whose end nobody waits for on the device: their memory is used again, by one of the next."""
    for _ in range(12):
        work = dist.all_reduce(torch.ones(SIZES[1], device=device), group=group, async_op=True)
        while not work.is_completed():
            time.sleep(1e-3)


def give_up(group, device):
    """Operations that end before their inputs have been computed, as the group was aborted."""
    if device.type == "cpu":
        return
    later = torch.eye(768, device=device)
    for _ in range(20):
        later = later @ later
    group.abort()
    for _ in range(2):
        try:
            dist.all_reduce(later @ later, group=group)
        except dist.DistBackendError:
            continue
        raise SystemExit("accelerator: an aborted group went on")


def train(group, device):
    """A step; at the next one DDP itself makes a copy that blocks."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)).to(device)
    model = motley.weight_gradients(DDP(net, process_group=group, bucket_cap_mb=0.05), samples=len)
    model(torch.randn(16, 64).to(device)).square().mean().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()


def work(device, is_complete=True):
    """With a process group of its own, as pins are made with that. Where something is left out, values may be wrong, which DDP refuses:
    the group ends then, and with it the other rank's operations."""
    group = dist.new_group(backend="motley")
    try:
        for part in (collectives, train, forget, give_up):
            part(group, device)
    except RuntimeError:
        if is_complete:
            raise
    dist.destroy_process_group(group)


def look(device, is_complete=True):
    """What is found in one run."""
    with motley.emulated.violations() as found:
        work(device, is_complete)
        torch.accelerator.synchronize()
    return found


def look_without(places, runs, device):
    found = {}
    for place in places:
        _motley.omit_emulated(place)
        found[place] = sum(bool(look(device, is_complete=False)) for _ in range(runs))
        _motley.omit_emulated("")
    return found


def main():
    flags = read_flags(__doc__, rank={"type": int}, meeting={}, runs={"type": int}, every={"type": int})
    torch.set_num_threads(1)
    dist.init_process_group("motley", init_method=f"file://{flags.meeting}", rank=flags.rank, world_size=2)
    device, times = torch.device("emulated" if flags.rank == 0 else "cpu"), torch.zeros(1, dtype=torch.int64)
    if flags.rank == 0:
        _motley.note_emulated_places(True)
        if found := look(device):
            raise SystemExit(f"accelerator: nothing is left out, and this is found: {found}")
        places = _motley.emulated_places()[::flags.every]
        _motley.note_emulated_places(False)
        times.fill_(len(places) * flags.runs)
        dist.broadcast(times, 0)
        print(json.dumps(look_without(places, flags.runs, device)))
    else:
        work(device)
        dist.broadcast(times, 0)
        for _ in range(times.item()):
            work(device, is_complete=False)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
