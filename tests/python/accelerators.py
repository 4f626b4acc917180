"""The backend motley with tensors of an accelerator, in groups whose other ranks compute on the CPU: collectives against what
they mean, training against one process, and how ranks end; and a server-side optimizer of an accelerator's parameters."""
import contextlib
import itertools
import json
import pathlib
import signal
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import motley
from backend import TYPES, values
from data_parallel import SAMPLES, Data, Net, mean_loss, train_alone, weights, whole_steps
from embeddings import compare_bags
from ranks import RanksTest, run_scripts

together = "most of the time of each class alone would be PyTorch's import"

needs_accelerator = unittest.skipUnless(torch.accelerator.is_available(), "there is no accelerator that PyTorch can use")


def my_device():
    """The accelerator for rank 0, the CPU for all others."""
    return torch.accelerator.current_accelerator() if dist.get_rank() == 0 else torch.device("cpu")


def collectives():
    """The names of those that do not give what they mean."""
    rank, count, device, wrong = dist.get_rank(), dist.get_world_size(), my_device(), []
    gloo_knows = torch.accelerator.current_accelerator().type == "cuda"  # what is left to it: of accelerators no other

    def mine(size, dtype):
        return values((size,), dtype, rank).to(device)

    def check(name, found, expected):
        if found.device.type != device.type or not torch.equal(found.cpu(), expected):
            wrong.append(name)

    for dtype in (*TYPES, torch.int64, torch.bool):
        for size in (1, 1000, 300_000):
            name, all_values = f"{dtype} {size}", [values((size,), dtype, other) for other in range(count)]
            tensor = mine(size, dtype)
            dist.broadcast(tensor, 0)
            check(f"broadcast {name}", tensor, all_values[0])
            tensor = mine(size, dtype)
            dist.broadcast(tensor, 1)
            check(f"broadcast from the CPU {name}", tensor, all_values[1])
            parts = [torch.empty(size, dtype=dtype, device=device) for _ in range(count)]
            dist.all_gather(parts, mine(size, dtype))
            check(f"all_gather {name}", torch.cat(parts), torch.cat(all_values))
            gathered = torch.empty(count * size, dtype=dtype, device=device)
            dist.all_gather_into_tensor(gathered, mine(size, dtype))
            check(f"all_gather_into_tensor {name}", gathered, torch.cat(all_values))
            if dtype == torch.bool or (dtype not in TYPES and not gloo_knows):
                continue
            tensor = mine(size, dtype)
            dist.all_reduce(tensor)
            check(f"all_reduce {name}", tensor, sum(all_values))
            if dtype not in TYPES:
                continue
            part, whole = torch.empty(size, dtype=dtype, device=device), mine(count * size, dtype)
            dist.reduce_scatter_tensor(part, whole)
            totals = sum(values((count * size,), dtype, other) for other in range(count))
            check(f"reduce_scatter_tensor {name}", part, totals[rank * size:][:size])
            tensor = mine(size, dtype)
            dist.all_reduce(tensor, dist.ReduceOp.AVG)
            check(f"average {name}", tensor, sum(all_values) * (1 / count))
    if gloo_knows:
        tensor = torch.tensor([float(rank)], device=device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        check("all_reduce max", tensor, torch.tensor([count - 1.0]))
    return wrong


def point_to_point():
    """Whether ranks 0 and 1 have what the other one sent, each way of sending it, as it is computed on the device right behind."""
    rank, device, right = dist.get_rank(), my_device(), []
    other = 1 - rank
    if rank > 1:
        return []
    for size in (1, 300_000):
        own, expected = values((size,), torch.float32, rank).to(device) * 3, values((size,), torch.float32, other) * 6

        def receive(receive_into, size=size, expected=expected):
            into = torch.zeros(size, device=device) * 2
            receive_into(into)
            right.append(torch.equal((into * 2).cpu(), expected))

        for sender in (0, 1):
            if rank == sender:
                dist.send(own, other)
                dist.send(own, other)
            else:
                receive(lambda into: dist.recv(into, other))
                receive(dist.recv)  # from any rank
        work = dist.isend(own, other)
        receive(lambda into: dist.irecv(into, other).wait())
        work.wait()
    return right


def broadcast_into_what_is_computed():
    """What is found, and whether the values are those of the root, on a CPU."""
    size, wrong = 100_000, []
    with motley.emulated.violations() as found:
        for _ in range(3):
            tensor = torch.zeros(size, device=my_device()) * 2
            if dist.get_rank() == 1:
                tensor.fill_(7)
            dist.broadcast(tensor, 1)
            wrong.append(not torch.equal(tensor.cpu(), torch.full((size,), 7.0)))
    return found, any(wrong)


def give_up_early():
    """What is found of an operation of an aborted group, whose input the device has yet to compute."""
    group = dist.new_group(backend="motley")
    with motley.emulated.violations() as found:
        if dist.get_rank() == 0:
            later = torch.eye(768, device=my_device())
            for _ in range(20):
                later = later @ later
            group.abort()
            try:
                dist.all_reduce(later, group=group)
                found.append("it was not given up")
            except dist.DistBackendError:
                pass
            del later
        dist.destroy_process_group(group)
    return found


def overlap_many():
    """Many under way at once, some of whose tensors are still to be computed and some on the CPU: which gave something else."""
    rank, count, device, works, wrong = dist.get_rank(), dist.get_world_size(), my_device(), [], []
    turn = torch.eye(512, device=device)
    for index in range(100):
        if index % 3 == 2:  # on the CPU of all ranks
            tensor = torch.full((index * 100 + 1,), float(rank + index))
        else:
            later = torch.full((512, 512), float(rank + index), device=device)
            for _ in range(5 if device.type != "cpu" else 0):
                later = later @ turn
            tensor = later.flatten()[:index * 100 + 1].clone()
        works.append((index, tensor, dist.all_reduce(tensor, async_op=True)))
    for index, tensor, work in works:
        work.wait()
        doubled = tensor * 2  # on the device's stream, right behind it
        if not torch.equal(doubled.cpu(), torch.full((index * 100 + 1,), 2.0 * (sum(range(count)) + count * index))):
            wrong.append(index)
    return wrong


def train(batch_split, run_directory):
    """A rank trains on its device: the samples that it used in each step, and its weights."""
    device = my_device()
    loader = motley.DataLoader(Data(), 32, batch_split=batch_split, run_directory=run_directory)
    net = Net().to(device)
    model = motley.weight_gradients(DDP(net, bucket_cap_mb=0.001), loader)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    used = []
    for _ in range(2):
        for indices, inputs, targets in loader:
            used.append(indices.tolist() if loader.samples else [])
            mean_loss(model, inputs.to(device), targets.to(device)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return {"used": used, "weights": weights(net).cpu()}


@needs_accelerator
class WithCpus(RanksTest):
    """One rank has an accelerator, two have a CPU."""

    count, backend = 3, "motley"

    def test_collectives(self):
        self.assertEqual(self.on_ranks(collectives), [[]] * 3)

    def test_many_at_once(self):
        self.assertEqual(self.on_ranks(overlap_many), [[]] * 3)

    def test_tensors_are_sent_from_rank_to_rank(self):
        self.assertEqual(self.on_ranks(point_to_point), [[True] * 6, [True] * 6, []])

    @unittest.skipUnless(motley.emulated.is_enabled(), "the accelerator is no emulated one")
    def test_a_result_comes_after_what_its_tensor_was_used_for(self):
        self.assertEqual(self.on_ranks(broadcast_into_what_is_computed), [([], False)] * 3)

    @unittest.skipUnless(motley.emulated.is_enabled(), "the accelerator is no emulated one")
    def test_what_is_given_up_leaves_memory_to_copies_that_are_under_way(self):
        self.assertEqual(self.on_ranks(give_up_early), [[]] * 3)

    def test_training_gives_what_one_process_gives(self):
        for batch_split in ([6, 1, 1], "dynamic"):
            with self.subTest(batch_split=batch_split), tempfile.TemporaryDirectory() as folder:
                found = self.on_ranks(train, batch_split, f"{folder}/run")
                workers = json.loads(pathlib.Path(folder, "run/run.json").read_text())["workers"]
                accelerator = torch.accelerator.current_accelerator().type
                self.assertEqual([worker["kind"] for worker in workers], [accelerator, "cpu", "cpu"])
                self.assertEqual(["emulated accelerator" in (worker["emulated"] or "") for worker in workers],
                                 [accelerator == "emulated", False, False])
                steps = whole_steps(found)
                one = train_alone(steps)
                for rank in found:
                    self.assertLess((rank["weights"] - one).abs().max() / one.abs().max(), 1e-9)
                self.assertEqual(sorted(itertools.chain(*steps)), sorted([*range(SAMPLES)] * 2))


SERVED_STEPS, SERVED_SAMPLES = 8, 12


def make_served(optimizer, device):
    """A net, torch's optimizer for it with two groups, and the batches of all ranks together."""
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.Tanh(), torch.nn.Linear(40, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1))
    net = net.to(device)
    kind, options = optimizer
    made = kind([{"params": [parameter for parameter in net.parameters() if parameter.dim() > 1]},
                 {"params": [parameter for parameter in net.parameters() if parameter.dim() == 1], "weight_decay": 0.0}], **options)
    generator = torch.Generator().manual_seed(7)
    size = (SERVED_STEPS, 2 * SERVED_SAMPLES)
    # Every third batch has large errors, and so a gradient that is clipped.
    scale = torch.tensor([10.0 if step % 3 == 2 else 1.0 for step in range(SERVED_STEPS)])[:, None, None]
    return net, made, torch.randn(*size, 6, generator=generator), scale * torch.randn(*size, 1, generator=generator)


def train_served(optimizer, max_grad_norm, accumulates):
    """A rank's half of each batch, in one pass or in two; the weights, torch's state of them, and how often steps were taken back."""
    device = torch.accelerator.current_accelerator()
    net, made, inputs, targets = make_served(optimizer, device)
    served = motley.optim.ParameterServerOptimizer(made, max_grad_norm=max_grad_norm, bucket_cap_mb=0.002, timeout=20)
    first = SERVED_SAMPLES * dist.get_rank()
    for step in range(SERVED_STEPS):
        parts = [slice(first, first + SERVED_SAMPLES)]
        if accumulates:
            parts = [slice(first, first + 4), slice(first + 4, first + SERVED_SAMPLES)]
        for part in parts:
            with served.no_sync() if part is not parts[-1] else contextlib.nullcontext():
                (mean_loss(net, inputs[step, part].to(device), targets[step, part].to(device)) * (part.stop - part.start)
                 / SERVED_SAMPLES).backward()
        served.step()
        served.zero_grad()
    state = {key: {field: value.cpu() for field, value in fields.items()} for key, fields in served.state_dict()["state"].items()}
    return weights(net).cpu(), state, served.rollbacks


def train_served_by_torch(optimizer, max_grad_norm):
    net, made, inputs, targets = make_served(optimizer, "cpu")
    clipped = 0
    for step in range(SERVED_STEPS):
        mean_loss(net, inputs[step], targets[step]).backward()
        if max_grad_norm:
            clipped += int(torch.nn.utils.clip_grad_norm_(net.parameters(), max_grad_norm) > max_grad_norm)
        made.step()
        made.zero_grad()
    return weights(net), made.state_dict()["state"], clipped


def check_served():
    """A rank's part in what ServerSideOptimizer says."""
    adamw = (torch.optim.AdamW, {"lr": 0.01, "eps": 1e-4, "weight_decay": 0.3})
    momentum = (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.02})
    for optimizer, max_grad_norm, accumulates in ((adamw, None, False), (momentum, None, True), (adamw, 3.0, False), (momentum, 3.0, True)):
        expected, state, clipped = train_served_by_torch(optimizer, max_grad_norm)
        found, own_state, rollbacks = train_served(optimizer, max_grad_norm, accumulates)
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
        for key, fields in state.items():
            for field, value in fields.items():
                torch.testing.assert_close(own_state[key][field], value, rtol=1e-4, atol=2e-5)
        assert rollbacks == clipped, (rollbacks, clipped)
        assert not max_grad_norm or 0 < clipped < SERVED_STEPS, clipped


SERVED = """
import os
import torch.distributed as dist
import motley
from accelerators import check_served
dist.init_process_group("motley", init_method=os.environ["INIT"], rank=int(os.environ["RANK"]), world_size=2)
check_served()
dist.destroy_process_group()
"""


@needs_accelerator
class ServerSideOptimizer(unittest.TestCase):
    """Two ranks, each with its parameters on an accelerator and half of the batch, against one process with torch's optimizer."""

    def test_it_steps_as_torch_does(self):
        for code, text in run_scripts(SERVED, 2, fresh=True):
            self.assertEqual(code, 0, text)


@needs_accelerator
class EmbeddingInput(unittest.TestCase):
    def test_ids_offsets_and_weights_on_a_device(self):
        for ours, torchs in compare_bags(torch.accelerator.current_accelerator()):
            torch.testing.assert_close(ours, torchs, rtol=1e-6, atol=1e-7)


LOSE_THE_CPU = """
import os, signal
import torch, torch.distributed as dist
import motley
rank = int(os.environ["RANK"])
dist.init_process_group("motley", init_method=os.environ["INIT"], rank=rank, world_size=2)
device = torch.accelerator.current_accelerator() if rank == 0 else "cpu"
tensor = torch.ones(1000, device=device)
for turn in range(3):
    if rank == 1 and turn == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(tensor)
    print(tensor.sum().item(), flush=True)
"""

ALONE = """
import os
import torch, torch.distributed as dist
import motley
dist.init_process_group("motley", init_method=os.environ["INIT"], rank=0, world_size=1)
tensor = torch.arange(1000.0, device=torch.accelerator.current_accelerator())
dist.all_reduce(tensor)
work = dist.all_reduce(tensor, async_op=True)
work.wait()
assert tensor.sum().item() == 499500, tensor
"""


@needs_accelerator
class Ends(unittest.TestCase):
    def test_a_killed_rank_is_named(self):
        ends = run_scripts(LOSE_THE_CPU, 2, fresh=True)
        self.assertEqual(ends[1][0], -signal.SIGKILL)
        code, text = ends[0]
        self.assertEqual(code, 1, text)
        self.assertRegex(text.strip().splitlines()[-1], r"DistBackendError: motley: .*rank 1 ended")
        self.assertNotIn("terminate called", text)

    def test_a_rank_alone(self):
        for code, text in run_scripts(ALONE, 1, fresh=True):
            self.assertEqual(code, 0, text)


@unittest.skipUnless(motley.emulated.is_enabled(), "the accelerator is no emulated one")
class Emulated(unittest.TestCase):
    """As a device of PyTorch's, which ranks do not need."""

    def test_it_trains_as_the_cpu_does(self):
        losses = {}
        for device in ("cpu", "emulated"):
            torch.manual_seed(3)
            net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(device)
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
            losses[device] = []
            for step in range(5):
                torch.manual_seed(step)
                inputs = torch.randn(16, 8).to(device)
                torch.manual_seed(100 + step)
                loss = net(inputs).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses[device].append(loss.item())
        torch.testing.assert_close(losses["emulated"], losses["cpu"], rtol=1e-6, atol=0)

    def test_a_profile(self):
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to("emulated")
        profile = motley.profile(net, torch.randn(32, 8).to("emulated"), batch_sizes=[4, 32], seconds=0.2)
        device = profile.data["devices"][0]
        self.assertEqual((device["type"], device["origin"]), ("emulated", "measured"))
        self.assertIn("emulated accelerator", device["rule"])

    def test_weights_are_saved_and_loaded(self):
        net = torch.nn.Linear(8, 4).to("emulated")
        with tempfile.TemporaryFile() as file:
            torch.save(net.state_dict(), file)
            file.seek(0)
            for where in ("cpu", "emulated"):
                file.seek(0)
                loaded = torch.load(file, map_location=where, weights_only=True)
                self.assertEqual(loaded["weight"].device.type, where)
                self.assertTrue(torch.equal(loaded["weight"].cpu(), net.weight.detach().cpu()))

    def test_what_is_not_waited_for_is_found(self):
        values = torch.ones(10_000, device="emulated")
        for waits in (True, False):
            with motley.emulated.violations() as found:
                host = torch.empty(10_000, pin_memory=True)
                host.copy_(values, non_blocking=True)
                if waits:
                    torch.accelerator.synchronize()
                host.sum()
            self.assertEqual(len(found), 0 if waits else 1, found)
            torch.accelerator.synchronize()


if __name__ == "__main__":
    sys.exit(unittest.main())
