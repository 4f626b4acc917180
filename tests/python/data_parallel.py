"""motley.DataLoader and motley.weight_gradients against one process that computes each whole batch by itself."""
import collections
import contextlib
import copy
import datetime
import importlib
import itertools
import json
import pathlib
import random
import sys
import unittest
import unittest.mock

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import motley
from ranks import RanksTest

together = "importing takes longer than most tests"

SAMPLES, FEATURES = 203, 5


class Data(torch.utils.data.Dataset):
    """Each sample says which one it is."""

    def __init__(self, size=SAMPLES):
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(size, FEATURES, dtype=torch.float64, generator=generator)
        self.targets = torch.randn(size, 1, dtype=torch.float64, generator=generator)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return index, self.inputs[index], self.targets[index]


class Net(torch.nn.Module):
    def __init__(self, norm=False):
        super().__init__()
        torch.manual_seed(5)
        layers = [torch.nn.Linear(FEATURES, 16), *([torch.nn.BatchNorm1d(16)] if norm else []), torch.nn.Tanh(),
                  torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)]
        self.layers = torch.nn.Sequential(*layers).double()

    def forward(self, inputs):
        return self.layers(inputs)


def mean_loss(net, inputs, targets):
    return ((net(inputs) - targets) ** 2).mean()


def weights(net):
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def train(options, how, passes=2, state=None, steps=None, group_size=None):
    """A rank trains: the samples it used in each step, its weights at the end, the splits, and the loader's state."""
    group = None
    if group_size is not None:
        group = dist.new_group(list(range(group_size)))
        if dist.get_rank() >= group_size:
            return None
    loader = motley.DataLoader(Data(), process_group=group, **options)
    net = Net()
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard
        for layer in net.layers:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer)
        model = fully_shard(net)
    else:
        model = DDP(net, process_group=group, bucket_cap_mb=0.001)
    if how != "weigh":
        model = motley.weight_gradients(model, loader)
    if state is not None:
        loader.load_state_dict(state["loader"])
        net.load_state_dict(state["net"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    if state is not None:
        optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # it came in memory that the ranks share
    used, splits, mine = [], [], []
    for _ in range(passes):
        for indices, inputs, targets in loader:
            loss = mean_loss(model, inputs, targets)
            if how == "weigh":
                loss = loader.weigh(loss)
            else:
                loss = loss / loader.micro_batches
            if loader.samples:
                mine += indices.tolist()
            elif how != "weigh":
                loss = loss * float("nan")  # a stand-in's gradients count nothing, whatever they are
            loss.backward()
            if loader.step_ends:
                optimizer.step()
                optimizer.zero_grad()
                used.append(mine)
                splits.append(list(loader.split))
                mine = []
                if steps is not None and len(used) == steps:
                    break
        if steps is not None and len(used) == steps:
            break
    result = {"used": used, "splits": splits, "weights": torch.cat([whole(p.detach()).flatten() for p in net.parameters()]),
              "state": {"loader": loader.state_dict()}}
    if how != "fsdp":
        result["state"] |= {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
    if group is not None:
        dist.barrier(group)
    return result


def train_alone(batches, net=None, optimizer=None):
    """The same steps in one process: each batch whole."""
    net = net or Net()
    optimizer = optimizer or torch.optim.AdamW(net.parameters(), lr=0.01)
    data = Data()
    for indices in batches:
        optimizer.zero_grad()
        mean_loss(net, data.inputs[indices], data.targets[indices]).backward()
        optimizer.step()
    return weights(net)


def random_splits(steps, batch, size, ranks, unit=1, seed=7):
    """As a run's metrics.jsonl records them; some ranks get nothing."""
    generator = random.Random(seed)
    lines = []
    per_pass = -(-size // batch)
    for step in range(steps):
        window = min(batch, size - step % per_pass * batch) // unit
        cuts = sorted(generator.randint(0, window) for _ in range(ranks - 1))
        parts = [high - low for low, high in itertools.pairwise([0, *cuts, window])]
        lines.append(json.dumps({"step": step, "batch_split": [part * unit for part in parts]}))
    return "\n".join(lines)


def whole_steps(results):
    """The samples of each step, of all ranks together."""
    return [sorted(itertools.chain(*parts)) for parts in zip(*(result["used"] for result in results))]


def count_lost_or_doubled(steps):
    """In one pass over the data."""
    times = collections.Counter(itertools.chain(*steps))
    return sum(abs(times[sample] - 1) for sample in range(SAMPLES))


def largest_difference(results, expected):
    """Of any rank's weights, as a part of the largest weight."""
    return max(((result["weights"] - expected).abs().max() / expected.abs().max()).item() for result in results)


def mean_of_some():
    """By ranks 0 and 2, the first of which is in a group more."""
    pair = dist.new_group([0, 2], backend=dist.get_backend(), timeout=datetime.timedelta(seconds=30))
    if dist.get_rank() == 0:
        dist.new_group([0], backend="gloo", use_local_synchronization=True)
    if dist.get_rank() == 1:
        return None
    mean = motley.Mean(loader := motley.DataLoader(Data(), 24, batch_split=[3, 1], process_group=pair))
    with torch.no_grad():
        for _, inputs, _ in loader:
            mean.update(inputs.mean())
    return mean.compute()


class Equality(RanksTest):
    """Also what bench/python/equality.py measures."""

    count = 3

    def recorded(self, *arguments, **named):
        file = pathlib.Path(self.folder.name) / "splits.jsonl"
        file.write_text(random_splits(*arguments, **named))
        return f"replay:{file}"

    def recorded_as(self, *splits):
        file = pathlib.Path(self.folder.name) / "these.jsonl"
        file.write_text("\n".join(json.dumps({"step": step, "batch_split": split}) for step, split in enumerate(splits)))
        return f"replay:{file}"

    def compare(self, options, how, passes=2):
        """Trains on all ranks, and the same steps in one process: the largest relative difference of weights, and how many samples
        were lost or doubled."""
        results = self.on_ranks(train, options, how, passes)
        steps = whole_steps(results)
        self.assertGreater(len({tuple(split) for split in results[0]["splits"]}), 1)
        per_pass = len(steps) // passes
        lost = sum(count_lost_or_doubled(steps[begin:begin + per_pass]) for begin in range(0, len(steps), per_pass))
        return largest_difference(results, train_alone(steps)), lost

    def compare_resumed(self):
        """Likewise, where three ranks train for four steps and two go on."""
        first = self.on_ranks(train, {"global_batch_size": 24, "batch_split": [3, 2, 1]}, "hook", 1, None, 4)
        self.assertEqual(first[0]["state"]["loader"], first[2]["state"]["loader"])
        rest = self.on_ranks(train, {"global_batch_size": 24, "batch_split": [1, 3]}, "hook", 1, first[0]["state"], None, 2)[:2]
        steps = whole_steps(first) + whole_steps(rest)
        return largest_difference(rest, train_alone(steps)), count_lost_or_doubled(steps)

    def check(self, options, how, passes=2):
        error, lost = self.compare(options, how, passes)
        self.assertEqual(lost, 0)
        self.assertLess(error, 1e-12)

    def test_random_splits(self):
        self.check({"global_batch_size": 24, "batch_split": self.recorded(18, 24, SAMPLES, 3)}, "hook")

    def test_random_splits_with_the_loss_weighed(self):
        self.check({"global_batch_size": 24, "batch_split": self.recorded(18, 24, SAMPLES, 3)}, "weigh")

    def test_random_splits_under_fsdp(self):
        self.check({"global_batch_size": 24, "batch_split": self.recorded(18, 24, SAMPLES, 3)}, "fsdp")

    def test_accumulation(self):
        options = {"global_batch_size": 28, "gradient_accumulation_steps": 7, "batch_split": self.recorded(16, 28, SAMPLES, 3, unit=7)}
        for how in ("hook", "weigh", "fsdp"):
            with self.subTest(how):
                self.check(options, how)

    def test_micro_batches_of_one_size(self):
        self.check({"global_batch_size": 28, "micro_batch_size": 7, "batch_split": self.recorded(16, 28, SAMPLES, 3, unit=7)}, "hook")

    def test_proportions(self):
        results = self.on_ranks(train, {"global_batch_size": 24, "batch_split": [3, 2, 1]}, "hook", 1)
        self.assertEqual(results[0]["splits"][0], [12, 8, 4])
        self.assertEqual(sum(results[0]["splits"][-1]), SAMPLES % 24)

    def test_some_of_the_ranks_which_are_in_different_numbers_of_groups(self):
        first, left_out, last = self.on_ranks(mean_of_some)
        self.assertIsNone(left_out)
        self.assertEqual(first, last)
        self.assertAlmostEqual(first, Data().inputs.mean().item(), places=12)

    def test_a_plan(self):
        plan = make_plan(24, [{"type": "gpu", "count": 2, "batch_fraction": 3 / 8}, {"type": "cpu", "batch_fraction": 1 / 4}])
        results = self.on_ranks(train, {"global_batch_size": 24, "batch_split": plan}, "hook", 1)
        self.assertEqual(results[0]["splits"][0], [9, 9, 6])
        self.check({"global_batch_size": 24, "batch_split": plan}, "hook")

    def test_dynamic_splits_agree_however_far_ranks_draw_ahead(self):
        results = self.on_ranks(train_drawing_ahead, 6)
        self.assertEqual(results[0]["splits"], results[1]["splits"])
        self.assertEqual(results[0]["splits"], results[2]["splits"])
        for begin in range(0, len(results[0]["used"]), 9):
            samples = itertools.chain(*(itertools.chain(*result["used"][begin:begin + 9]) for result in results))
            self.assertEqual(sorted(samples), list(range(SAMPLES)))

    def test_resuming_on_fewer_ranks_uses_each_sample_once(self):
        error, lost = self.compare_resumed()
        self.assertEqual(lost, 0)
        self.assertLess(error, 1e-12)

    def test_running_statistics_are_those_of_all_samples(self):
        """As pooled from each rank's own, and, but for what a variance is divided by, as one process has them."""
        splits = self.recorded(9, 24, SAMPLES, 3, seed=11)
        results = self.on_ranks(train_batch_norm, splits, False) + self.on_ranks(train_batch_norm, splits, True)
        for mean, variance, seen, samples, used in results:
            parts = [(count / sum(samples), *part) for count, part in zip(samples, seen)]
            pooled = sum(share * own_mean for share, own_mean, _ in parts)
            spread = sum(share * (own + own_mean**2) for share, own_mean, own in parts) - pooled**2
            torch.testing.assert_close(mean, 0.1 * pooled, rtol=1e-12, atol=1e-15)
            torch.testing.assert_close(variance, 0.9 + 0.1 * spread, rtol=1e-12, atol=0)
            alone = Net(norm=True)
            alone(Data().inputs[sorted(used)])
            torch.testing.assert_close(mean, alone.layers[1].running_mean, rtol=1e-12, atol=1e-15)
            torch.testing.assert_close(variance, alone.layers[1].running_var, rtol=0.1 / min(samples), atol=0)

    def test_running_statistics_of_batches_of_the_users_own(self):
        """Also with sizes that come again after others."""
        sizes = [(8, 4, 2), (8, 4, 2), (3, 2, 7), (8, 4, 2)]
        results = self.on_ranks(train_batch_norm_on_own_batches, sizes)
        alone, data, begin = Net(norm=True), Data(), 0
        for step in sizes:
            alone(data.inputs[begin:begin + sum(step)])
            begin += sum(step)
        for mean, variance, frozen in results:
            torch.testing.assert_close(mean, alone.layers[1].running_mean, rtol=1e-12, atol=1e-15)
            torch.testing.assert_close(variance, alone.layers[1].running_var, rtol=0.3, atol=0)  # divided by each rank's samples
            torch.testing.assert_close(variance, results[0][1], rtol=0, atol=0)
            self.assertEqual(frozen, [0.0] * 16 + [1.0] * 16)

    def test_running_statistics_that_are_a_plain_average_over_steps_of_several_micro_batches(self):
        results = self.on_ranks(train_batch_norm_averaged)
        alone, data = Net(norm=True), Data(48)
        alone.layers[1].momentum = None
        steps = whole_steps(results)
        self.assertEqual([len(step) for step in steps], [24] * 4)
        for step in steps:
            alone(data.inputs[step])
        for result in results:
            torch.testing.assert_close(result["mean"], alone.layers[1].running_mean, rtol=1e-11, atol=1e-13)
            torch.testing.assert_close(result["variance"], results[0]["variance"], rtol=0, atol=0)

    def test_a_rank_without_a_part_can_compute_what_needs_two_samples(self):
        for splits in self.on_ranks(train_batch_norm_to_the_end):
            self.assertIn(0, splits[-1])

    def test_a_reducer_is_made_after_an_attempt_that_failed(self):
        for before, after in self.on_ranks(renew_twice):
            torch.testing.assert_close(after, before, rtol=1e-12, atol=0)

    def test_mixed_precision_and_compiled_models(self):
        """Under autocast, with a GradScaler that skips a step, and compiled: as one process with the same settings."""
        for how, tolerance in (("autocast", 1e-2), ("scaler", 1e-12), ("compiled", 1e-12)):
            with self.subTest(how):
                results = self.on_ranks(train_with, how, self.recorded(9, 24, SAMPLES, 3))
                self.assertLess(largest_difference(results, train_alone_with(how, whole_steps(results))), tolerance)

    def test_inputs_whose_first_dimension_is_not_of_samples(self):
        """Of sequences as long as the part that a rank had in the step before."""
        results = self.on_ranks(train_time_major, self.recorded_as([12, 12, 0], [11, 13, 0], [12, 12, 0]))
        self.assertLess(largest_difference(results, train_alone(whole_steps(results))), 1e-12)

    def test_before_the_first_batch_gradients_are_averaged(self):
        for weighted, plain in self.on_ranks(train_before_loading):
            torch.testing.assert_close(weighted, plain, rtol=1e-12, atol=0)

    def test_after_the_last_batch_gradients_are_averaged(self):
        for weighted, plain in self.on_ranks(train_after_loading):
            torch.testing.assert_close(weighted, plain, rtol=1e-12, atol=0)

    def test_once_a_pass_was_left_gradients_are_averaged(self):
        """After a step, and in the middle of one."""
        for how, accumulation in (("hook", 1), ("hook", 2), ("fsdp", 1)):
            with self.subTest(how, accumulation=accumulation):
                for weighted, plain in self.on_ranks(train_after_leaving, how, accumulation):
                    torch.testing.assert_close(weighted, plain, rtol=1e-12, atol=0)

    def test_a_last_batch_that_was_asked_for_ahead_of_its_use(self):
        results, net = self.on_ranks(train_ahead), Net()
        alone = train_alone(whole_steps(results), net, torch.optim.SGD(net.parameters(), lr=0.01))
        self.assertLess(largest_difference(results, alone), 1e-12)

    def test_a_mean_over_all_samples(self):
        for value in self.on_ranks(evaluate, self.recorded(9, 24, SAMPLES, 3)):
            self.assertAlmostEqual(value, (SAMPLES - 1) / 2, places=9)

    def test_hooks_and_batches_of_the_users_own(self):
        for train_so in (train_with_hook, train_on_own_batches):
            with self.subTest(train_so.__name__):
                results = self.on_ranks(train_so, self.recorded(9, 24, SAMPLES, 3))
                self.assertLess(largest_difference(results, train_alone(whole_steps(results))), 1e-12)


def train_drawing_ahead(passes):
    workers = dist.get_rank()  # each another number
    return train({"global_batch_size": 24, "num_workers": workers, "prefetch_factor": 3 if workers else None}, "hook", passes)


def train_batch_norm(recorded, is_evaluated):
    """The first step in which every rank has two samples: running statistics after it, what each rank saw, how many samples each had
    and which they were. The model may be in evaluation mode between steps, and its wrapper stay in it."""
    loader = motley.DataLoader(Data(), 24, batch_split=recorded)
    model = motley.weight_gradients(DDP(Net(norm=True)), loader)
    norm = model.module.layers[1]
    model.train(not is_evaluated)
    for indices, inputs, targets in loader:
        if min(loader.split) < 2:
            continue
        model.module.train()
        loss = mean_loss(model, inputs, targets)
        seen = norm.running_mean / 0.1, (norm.running_var - 0.9) / 0.1
        loss.backward()
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (seen, indices.tolist()))
        return (norm.running_mean, norm.running_var, [part[0] for part in parts], list(loader.split),
                list(itertools.chain(*(part[1] for part in parts))))
    raise AssertionError("no step gave every rank two samples")


def train_batch_norm_on_own_batches(sizes):
    """Running statistics at the end; and those of a layer that keeps its own."""
    rank, data, begin = dist.get_rank(), Data(), 0
    net, frozen = Net(norm=True), torch.nn.BatchNorm1d(16, momentum=0.0).double()
    net.layers.insert(2, frozen)
    model = motley.weight_gradients(DDP(net), samples=len)
    for step in sizes:
        mine = slice(begin + sum(step[:rank]), begin + sum(step[:rank + 1]))
        mean_loss(model, data.inputs[mine], data.targets[mine]).backward()
        begin += sum(step)
    norm = net.layers[1]
    return norm.running_mean, norm.running_var, torch.cat([frozen.running_mean, frozen.running_var]).tolist()


def train_batch_norm_averaged():
    """Running statistics without a momentum after four steps of two micro-batches each, and the samples that this rank used in each."""
    loader = motley.DataLoader(Data(48), 24, gradient_accumulation_steps=2, batch_split=[3, 2, 1])
    net = Net(norm=True)
    norm = net.layers[1]
    norm.momentum = None
    model = motley.weight_gradients(DDP(net), loader)
    used, mine = [], []
    for _ in range(2):
        for indices, inputs, targets in loader:
            (mean_loss(model, inputs, targets) / loader.micro_batches).backward()
            mine += indices.tolist()
            if loader.step_ends:
                used.append(mine)
                mine = []
    return {"used": used, "mean": norm.running_mean, "variance": norm.running_var}


def train_batch_norm_to_the_end():
    """The splits of a pass whose last batch is too small for every rank to have two samples of it."""
    loader = motley.DataLoader(Data(24 + 3), 24)
    model = motley.weight_gradients(DDP(Net(norm=True)), loader)
    splits = []
    for _, inputs, targets in loader:
        mean_loss(model, inputs, targets).backward()
        splits.append(loader.split)
    return splits


def renew_twice():
    """The gradients of a batch before and after a reducer was made anew, for which it took two attempts."""
    loader = motley.DataLoader(Data(), 24, batch_split=[3, 2, 1])
    model = motley.weight_gradients(DDP(Net()), loader)
    _, inputs, targets = next(iter(loader))
    gradients = []
    for attempt in ("none", "fails", "succeeds"):
        if attempt == "fails":
            with unittest.mock.patch.object(DDP, "_build_params_for_reducer", side_effect=RuntimeError("a rank was lost")), \
                    contextlib.suppress(RuntimeError):
                model._motley_weight.renew()
            continue
        if attempt == "succeeds":
            model._motley_weight.renew()
        model.zero_grad()
        mean_loss(model, inputs, targets).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    return gradients


STEP_THAT_OVERFLOWS = 3


def run_steps(how, net, batches):
    """Trains on (inputs, targets, whether this is the step that overflows); the weights at the end."""
    model = torch.compile(net, backend="aot_eager") if how == "compiled" else net
    # AdamW's first steps are the signs of gradients, which rounding to bfloat16 turns where they are near zero.
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1) if how == "autocast" else torch.optim.AdamW(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=how == "scaler", init_scale=2.0**10)
    for inputs, targets, overflows in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how == "autocast"):
            loss = mean_loss(model, inputs, targets)
        scaler.scale(loss * float("inf") if overflows and how == "scaler" else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return weights(net)


def train_with(how, recorded):
    """The samples of each step, and the weights at the end. Only a rank with the most samples sees the overflow: all skip that step."""
    loader = motley.DataLoader(Data(), 24, batch_split=recorded)
    net = Net().float() if how == "autocast" else Net()
    model = motley.weight_gradients(DDP(net), loader)
    used = []

    def batches():
        for step, (indices, inputs, targets) in enumerate(loader):
            used.append(indices.tolist() if loader.samples else [])
            kind = torch.float32 if how == "autocast" else torch.float64
            yield inputs.to(kind), targets.to(kind), step == STEP_THAT_OVERFLOWS and loader.split[dist.get_rank()] == max(loader.split)

    trained = run_steps(how, model, batches())
    return {"used": used, "weights": trained}


def train_alone_with(how, steps):
    net, data = Net(), Data()
    if how == "autocast":
        net, data.inputs, data.targets = net.float(), data.inputs.float(), data.targets.float()
    return run_steps(how, net, ((data.inputs[step], data.targets[step], number == STEP_THAT_OVERFLOWS)
                                for number, step in enumerate(steps)))


class TimeMajor(Net):
    """Of [12, samples, features], of which the last time step counts."""

    def forward(self, inputs):
        return super().forward(inputs[-1])


def train_time_major(recorded):
    loader = motley.DataLoader(Data(), 24, batch_split=recorded)
    net = TimeMajor()
    model = motley.weight_gradients(DDP(net), loader)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    used = []
    for indices, inputs, targets in itertools.islice(loader, 3):
        optimizer.zero_grad()
        mean_loss(model, inputs.expand(12, -1, -1), targets).backward()
        optimizer.step()
        used.append(indices.tolist() if loader.samples else [])
    return {"used": used, "weights": weights(net)}


def train_before_loading():
    """Gradients of a batch of the script's own, with weights that no loader has set yet, and those of PyTorch alone."""
    data, gradients = Data(), []
    mine = slice(8 * dist.get_rank(), 8 * dist.get_rank() + 8)
    for prepare in (lambda model: motley.weight_gradients(model, motley.DataLoader(data, 24)), lambda model: model):
        model = prepare(DDP(Net()))
        mean_loss(model, data.inputs[mine], data.targets[mine]).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    return gradients


def train_after_loading():
    """Gradients of a batch of the script's own, after a pass over a loader, in whose last batch a rank had no samples, and those of
    PyTorch alone."""
    data, gradients = Data(25), []
    mine = slice(8 * dist.get_rank(), 8 * dist.get_rank() + 8)
    loader = motley.DataLoader(data, 24, batch_split=[3, 2, 1])
    weighted = motley.weight_gradients(DDP(Net()), loader)
    for _, inputs, targets in loader:
        mean_loss(weighted, inputs, targets).backward()
    assert 0 in loader.split
    for model in (weighted, DDP(Net())):
        model.zero_grad()
        mean_loss(model, data.inputs[mine], data.targets[mine]).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    return gradients


def train_after_leaving(how, accumulation):
    """Gradients of a batch of the script's own, once a pass over a loader was left with its first batch, and those of PyTorch alone."""
    from torch.distributed.fsdp import fully_shard
    data, gradients, wrap = Data(48), [], fully_shard if how == "fsdp" else DDP
    mine = slice(8 * dist.get_rank(), 8 * dist.get_rank() + 8)
    loader = motley.DataLoader(data, 24, gradient_accumulation_steps=accumulation, batch_split=[3, 2, 1])
    weighted = motley.weight_gradients(wrap(Net()), loader)
    for _, inputs, targets in loader:
        mean_loss(weighted, inputs, targets).backward()
        break
    for model in (weighted, wrap(Net())):
        model.zero_grad()
        mean_loss(model, data.inputs[mine], data.targets[mine]).backward()
        gradients.append(torch.cat([whole(parameter.grad).flatten() for parameter in model.parameters()]))
    return gradients


def train_ahead():
    """A pass of two steps of two micro-batches each, of which each batch is used once the next one has been asked for, with a split that
    stays the same."""
    loader = motley.DataLoader(torch.utils.data.Subset(Data(), range(48)), 24, gradient_accumulation_steps=2, batch_split=[6, 4, 2])
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    model = motley.weight_gradients(DDP(net), loader)
    used, mine, batches = [], [], iter(loader)
    batch, ends = next(batches), [False, True, False, True]
    for is_last in ends:
        upcoming = next(batches, None)
        indices, inputs, targets = batch
        model.require_backward_grad_sync = is_last
        (mean_loss(model, inputs, targets) / 2).backward()
        mine += indices.tolist()
        if is_last:
            used.append(mine)
            mine = []
            optimizer.step()
            optimizer.zero_grad()
        batch = upcoming
    return {"used": used, "weights": weights(net)}


def evaluate(recorded):
    loader = motley.DataLoader(Data(), 24, shuffle=False, batch_split=recorded)
    mean = motley.Mean(loader)
    with torch.no_grad():
        for indices, _, _ in loader:
            mean.update(indices.double().mean())
    return mean.compute()


def train_with_hook(recorded):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    loader = motley.DataLoader(Data(), 24, batch_split=recorded)
    net = Net()
    model = motley.weight_gradients(DDP(net), loader, hook=(None, allreduce_hook))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    used = []
    for indices, inputs, targets in loader:
        optimizer.zero_grad()
        mean_loss(model, inputs, targets).backward()
        optimizer.step()
        used.append(indices.tolist() if loader.samples else [])
    return {"used": used, "weights": weights(net)}


def train_on_own_batches(_):
    """Batches of a size of each rank's own, from no loader of Motley."""
    rank, ranks, data = dist.get_rank(), dist.get_world_size(), Data()
    net = Net()
    model = motley.weight_gradients(DDP(net), samples=lambda batch: numpy.int64(len(batch)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    used = []
    for step in range(8):
        mine = list(range(rank + ranks * step, SAMPLES, 8 * ranks * (rank + 1)))
        optimizer.zero_grad()
        mean_loss(model, data.inputs[mine], data.targets[mine]).backward()
        optimizer.step()
        used.append(mine)
    return {"used": used, "weights": weights(net)}


# ---- What is refused

def with_other_argument(name, *values):
    rank = dist.get_rank()
    options = {"global_batch_size": 24, name: values[rank]}
    size = options.pop("size", SAMPLES)
    next(iter(motley.DataLoader(Data(size), **options)))


def without_weighting():
    loader = motley.DataLoader(Data(), 24, batch_split=[3, 1])
    model = DDP(Net())
    for _, inputs, targets in loader:
        mean_loss(model, inputs, targets).backward()


def evaluated_with_gradients():
    for _, inputs, _ in motley.DataLoader(Data(), 24, batch_split=[3, 1]):
        with torch.no_grad():
            inputs.mean()


def delayed():
    net = Net()
    model = DDP(net, delay_all_reduce_named_params=[("layers.4.bias", net.layers[4].bias)], param_to_hook_all_reduce=net.layers[4].weight)
    motley.weight_gradients(model, motley.DataLoader(Data(), 24))


def copied():
    model = motley.weight_gradients(DDP(Net()), motley.DataLoader(Data(), 24))
    copy.deepcopy(model.module)
    copy.deepcopy(model)


def weighted_twice():
    loader = motley.DataLoader(Data(), 24)
    model = motley.weight_gradients(DDP(Net()), loader)
    motley.weight_gradients(model, loader)


def with_two_hooks():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    model = DDP(Net())
    model.register_comm_hook(None, allreduce_hook)
    motley.weight_gradients(model, motley.DataLoader(Data(), 24))


def weighed_and_weighted():
    loader = motley.DataLoader(Data(), 24)
    model = motley.weight_gradients(DDP(Net()), loader)
    _, inputs, targets = next(iter(loader))
    loader.weigh(mean_loss(model, inputs, targets))


def accumulated_without_the_loader():
    model = motley.weight_gradients(DDP(Net()), loader := motley.DataLoader(Data(), 24))
    for _, inputs, targets in loader:
        with model.no_sync():
            mean_loss(model, inputs, targets).backward()


def drawn_ahead():
    model = motley.weight_gradients(DDP(Net()), loader := motley.DataLoader(Data(), 24))
    batches = iter(loader)
    ahead = next(batches)
    for batch in batches:
        _, inputs, targets = ahead
        mean_loss(model, inputs, targets).backward()
        ahead = batch


def joined():
    model = motley.weight_gradients(DDP(Net()), motley.DataLoader(Data(), 24))
    with model.join():
        pass


def sharded_models_that_differ():
    loader = motley.DataLoader(Data(), 24)
    motley.weight_gradients(torch.distributed.fsdp.fully_shard(torch.nn.Linear(4 + dist.get_rank(), 1)), loader)
    next(iter(loader))


def not_parallel():
    motley.weight_gradients(Net(), motley.DataLoader(Data(), 24))


def shard_over_a_part(whole_group):
    """Two by two ranks, of which those of a row share a batch: the gradients of a rank's shards, or what is said."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("column", "row"))
    model = fully_shard(Net(), mesh=mesh["row"])
    loader = motley.DataLoader(Data(), 24, batch_split=[1, 1, 1, 1] if whole_group else [3, 1],
                               process_group=None if whole_group else mesh["row"].get_group())
    motley.weight_gradients(model, loader)
    indices, inputs, targets = next(iter(loader))
    mean_loss(model, inputs, targets).backward()
    return indices.tolist(), torch.cat([whole(parameter.grad).flatten() for parameter in model.parameters()])


def shard_over_others():
    """As many as the loader has, but others."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("column", "row"))
    loader = motley.DataLoader(Data(), 24, process_group=mesh["column"].get_group())
    motley.weight_gradients(fully_shard(Net(), mesh=mesh["row"]), loader)


def average_over_others(with_all):
    """DistributedDataParallel over two of four ranks, and a loader of all of them or of two others."""
    rank = dist.get_rank()
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    loader = motley.DataLoader(Data(), 24, process_group=None if with_all else pairs[2 + rank % 2])
    motley.weight_gradients(DDP(Net(), process_group=pairs[rank // 2]), loader)


def shard_over_one():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (4, 1), mesh_dim_names=("copies", "shards"))
    motley.weight_gradients(fully_shard(Net(), mesh=mesh), motley.DataLoader(Data(), 24))


class ParallelOverParts(RanksTest):
    """fully_shard on meshes that are not the world in one row, and DistributedDataParallel over a part of the ranks."""

    count = 4

    def test_of_a_part_of_the_ranks(self):
        results = self.on_ranks(shard_over_a_part, False)
        used = results[0][0] + results[1][0]
        self.assertEqual([len(indices) for indices, _ in results], [18, 6, 18, 6])
        net, data = Net(), Data()
        mean_loss(net, data.inputs[used], data.targets[used]).backward()
        expected = torch.cat([parameter.grad.flatten() for parameter in net.parameters()])
        for _, gradients in results:
            torch.testing.assert_close(gradients, expected, rtol=1e-12, atol=1e-15)

    def test_other_ranks_than_the_loaders_are_refused(self):
        for with_all in (True, False):
            for rank, message in enumerate(self.refused_on_ranks(average_over_others, with_all)):
                averaged, own = [[0, 1], [2, 3]][rank // 2], [0, 1, 2, 3] if with_all else [rank % 2, rank % 2 + 2]
                self.assertEqual(message, f"the model's gradients are averaged over ranks {averaged}, and the loader splits a batch among "
                                          f"ranks {own}: give it the process group of the former, motley.DataLoader(..., process_group=)")

    def test_what_cannot_be_weighted_is_refused(self):
        for message in self.refused_on_ranks(shard_over_a_part, True):
            self.assertRegex(message, r"averaged over ranks \[(0, 1|2, 3)\], and the loader splits a batch among ranks \[0, 1, 2, 3\]")
        for message in self.refused_on_ranks(shard_over_others):
            self.assertRegex(message, r"over ranks \[(0, 1|2, 3)\], and the loader splits a batch among ranks \[(0, 2|1, 3)\]: give it the")
        for message in self.refused_on_ranks(shard_over_one):
            self.assertIn("each rank has the whole model, which fully_shard then reduces where nothing can be weighted", message)


class Refusals(RanksTest):
    def test_ranks_that_differ(self):
        for name, values, words in (("seed", (1, 2), "ranks differ in seed: rank 0 has 1, rank 1 has 2"),
                                    ("size", (203, 204), "dataset's length: rank 0 has 203, rank 1 has 204"),
                                    ("shuffle", (True, False), "ranks differ in shuffle")):
            with self.subTest(name):
                for message in self.refused_on_ranks(with_other_argument, name, *values):
                    self.assertIn(words, message)

    def test_wrong_uses(self):
        for use, words in ((without_weighting, "motley.weight_gradients"), (weighted_twice, "once a model"),
                           (with_two_hooks, "hook=(state, hook)"), (weighed_and_weighted, "not both"), (joined, "join()"),
                           (accumulated_without_the_loader, "gradient_accumulation_steps"), (drawn_ahead, "num_workers load ahead"),
                           (not_parallel, "DistributedDataParallel"), (evaluated_with_gradients, "within torch.no_grad()"),
                           (delayed, "leave out delay_all_reduce_named_params"), (copied, "accepted: the network itself, model.module"),
                           (sharded_models_that_differ, "ranks differ in their parameters: rank 0 has 'weight' of shape (1, 4)")):
            with self.subTest(use.__name__):
                for message in self.refused_on_ranks(use):
                    self.assertIn(words, message)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(3))


def make_plan(global_batch_size, *stages):
    """Of a model with a layer a stage."""
    layers = [f"layer{number}" for number in range(len(stages))]
    return {"version": 2, "model": "layers", "layers": layers, "global_batch_size": global_batch_size, "stages": [
        {"first_layer": layer, "last_layer": layer, "replicas": replicas,
         "gradient_sync": "ring" if sum(one.get("count", 1) for one in replicas) > 1 else "none"}
        for layer, replicas in zip(layers, stages)]}


class OneProcess(unittest.TestCase):
    def refused(self, words, *arguments, **named):
        with self.assertRaises(ValueError) as caught:
            motley.DataLoader(*arguments, **named)
        self.assertIn(words, str(caught.exception))

    def test_wrong_arguments(self):
        data = Data()
        self.refused("say global_batch_size", data, batch_size=64)
        self.refused("motley.DataLoader does that", data, 64, sampler=torch.utils.data.SequentialSampler(data))
        self.refused("in_order is False; True is accepted", data, 64, num_workers=2, in_order=False)
        self.refused("global_batch_size is None", data)
        self.refused("global_batch_size is 0", data, 0)
        self.refused("global_batch_size is 64.0", data, 64.0)
        self.assertEqual(len(motley.DataLoader(data, torch.tensor(64))), len(motley.DataLoader(data, 64)))  # as NumPy's integers
        self.refused("seed is 1000000000000000000000; an integer of at least 0 and at most 9223372036854775807", data, 64, seed=10**21)
        self.refused("max_local_batch_size is 1000000000000000000000; an integer of at least 1", data, 64, max_local_batch_size=10**21)
        self.refused("has no length", Stream(), 4)
        self.refused("num_workers is '2'; an integer of at least 0", data, 64, num_workers="2")
        self.refused("does not divide global_batch_size", data, 64, gradient_accumulation_steps=5)
        self.refused("does not divide the last batch", data, 64, gradient_accumulation_steps=4)
        self.refused("one of them", data, 64, gradient_accumulation_steps=4, micro_batch_size=4)
        self.refused("batch_split[1] is 'a'; a number of at least 0 is accepted", data, 64, batch_split=[1, "a"])
        self.refused("batch_split[0] is -1; a number", data, 64, batch_split=[-1, 2])
        self.refused("batch_split[0] is nan; a number", data, 64, batch_split=[float("nan"), 2])
        self.refused("batch_split is [0, 0]; a list of proportions, a number a rank and not all 0", data, 64, batch_split=[0, 0])
        self.refused("batch_split is 'fast'", data, 64, batch_split="fast")
        stage = [{"type": "cpu"}]
        self.refused("a plan of 2 stages; one of a single stage is accepted", data, 64, batch_split=make_plan(64, stage, stage))
        self.refused("a plan for batches of 32 samples, and global_batch_size is 64", data, 64, batch_split=make_plan(32, stage))
        self.refused("nowhere.json", data, 64, batch_split=pathlib.Path("nowhere.json"))
        self.refused("plan: field 'model' is missing", data, 64, batch_split={"version": 2})
        self.refused("fewer than one batch", data, 512, drop_last=True)
        self.refused("writer is a str; a TensorBoard SummaryWriter or a W&B run", data, 64, writer="runs")
        self.refused("process_group is a list; what torch.distributed.new_group gives", data, 64, process_group=[0, 1])
        with self.assertRaisesRegex(ValueError, "loader is a DataLoader; a motley.DataLoader is accepted"):
            motley.Mean(torch.utils.data.DataLoader(data))
        with self.assertRaisesRegex(ValueError, "max_local_batch_size of all ranks together is 63, less than global_batch_size, 64"):
            next(iter(motley.DataLoader(data, 64, max_local_batch_size=63)))
        with self.assertRaisesRegex(ValueError, "min_local_batch_size of all ranks together is 65, more than global_batch_size, 64"):
            next(iter(motley.DataLoader(data, 64, min_local_batch_size=65)))

    def test_a_pass_without_other_ranks(self):
        loader = motley.DataLoader(Data(), 64, gradient_accumulation_steps=4, drop_last=True)
        self.assertEqual(len(loader), 12)
        seen = [indices.tolist() for indices, _, _ in loader]
        self.assertEqual([len(indices) for indices in seen], [16] * 12)
        self.assertEqual(len(set(itertools.chain(*seen))), 192)

    def test_orders_and_states(self):
        loader = motley.DataLoader(Data(), 64, seed=9)
        passes = [[indices.tolist() for indices, _, _ in loader] for _ in range(2)]
        self.assertNotEqual(passes[0], passes[1])
        again = motley.DataLoader(Data(), 64, seed=9)
        again.set_epoch(1)
        self.assertEqual([indices.tolist() for indices, _, _ in again], passes[1])
        batches = iter(motley.DataLoader(Data(), 64, seed=9))
        other = motley.DataLoader(Data(), 64, seed=9)
        for position, (indices, _, _) in enumerate(other):
            self.assertEqual(indices.tolist(), passes[0][position])
            if position == 1:
                break
        state = json.loads(json.dumps(other.state_dict()))
        resumed = motley.DataLoader(Data(), 64)
        resumed.load_state_dict(state)
        self.assertEqual([indices.tolist() for indices, _, _ in resumed], passes[0][2:])
        self.assertEqual([indices.tolist() for indices, _, _ in resumed], passes[1])
        del batches

    def test_two_passes_at_once(self):
        loader = motley.DataLoader(Data(), 64)
        first, second = iter(loader), iter(loader)
        next(first)
        next(second)
        with self.assertRaisesRegex(RuntimeError, "^another pass over the loader has begun since"):
            next(first)
        self.assertEqual(len(list(second)), 3)

    def test_a_pass_that_is_left_in_the_middle_of_a_step(self):
        loader = motley.DataLoader(Data(), 64, gradient_accumulation_steps=4, drop_last=True)
        next(iter(loader))
        self.assertEqual(loader.state_dict()["cursor"], 0)
        self.assertEqual(len(list(loader)), 12)

    def test_a_state_of_another_dataset(self):
        state = motley.DataLoader(Data(), 64).state_dict()
        with self.assertRaises(ValueError) as caught:
            motley.DataLoader(Data(100), 64).load_state_dict(state)
        self.assertIn("size is 203, here it is 100", str(caught.exception))

    def test_a_state_whose_last_batch_cannot_be_accumulated(self):
        loader = motley.DataLoader(Data(40), 10)
        next(iter(loader))
        state = loader.state_dict()
        with self.assertRaisesRegex(ValueError, "^the state leaves a last batch of 14 samples of its epoch, which 4 does not divide: say "
                                                "drop_last=True"):
            motley.DataLoader(Data(40), 16, gradient_accumulation_steps=4).load_state_dict(state)
        short = motley.DataLoader(Data(40), 16, gradient_accumulation_steps=4, drop_last=True)
        short.load_state_dict(state)
        self.assertEqual([len(indices) for indices, _, _ in short], [4] * 4)

    def test_a_step_that_was_taken_back_and_then_done(self):
        """As a loader is told where ranks are lost one after the other."""
        for size, steps in ((40, 4), (10, 1)):  # the step is one of several of its pass, or its last
            loader, other = motley.DataLoader(Data(size), 10), motley.DataLoader(Data(size), 10)
            batches = iter(loader)
            next(batches)
            state = loader.state_dict()
            loader._go_back_to(0)
            self.assertEqual((loader.epoch, loader.state_dict()["cursor"]), (0, 0))
            loader._go_back_to(1)
            self.assertEqual(loader.state_dict(), state)
            rest = [indices.tolist() for indices, _, _ in batches]
            self.assertEqual(rest, [indices.tolist() for indices, _, _ in other][1:])
            self.assertEqual((len(rest), loader.epoch), (steps - 1, 1))

    def test_a_damaged_state_changes_nothing(self):
        loader = motley.DataLoader(Data(), 64, seed=9)
        state, first = loader.state_dict(), next(iter(motley.DataLoader(Data(), 64, seed=9)))[0]
        for field, value, words in (("seed", "x", "seed is 'x'; an integer of at least 0"), ("seed", -1, "seed is -1; an integer"),
                                    ("epoch", None, "epoch is None; an integer"), ("cursor", 1.5, "cursor is 1.5; an integer"),
                                    ("cursor", 203, "cursor is 203; an integer of at least 0 and at most 202"),
                                    ("step", -1, "step is -1; an integer"), ("batch_split", 5, "batch_split is 5; a text")):
            with self.subTest(field=field, value=value), self.assertRaisesRegex(ValueError, f"^the state's {words}"):
                loader.load_state_dict(state | {"epoch": 3} | {field: value})
        with self.assertRaisesRegex(ValueError, "its size is None, here it is 203"):
            loader.load_state_dict({"version": 1})
        self.assertTrue(torch.equal(next(iter(loader))[0], first))
        with self.assertRaisesRegex(ValueError, "^the state's batch_split is 'x': .*; a text that state_dict"):
            loader.load_state_dict(state | {"batch_split": "x", "epoch": 3})
        self.assertEqual(loader.epoch, 0)
        later = motley.DataLoader(Data(), 64)
        later.load_state_dict(state | {"batch_split": '{"version": 1'})
        with self.assertRaisesRegex(ValueError, "^the state's batch_split is .*; a text that state_dict"):
            next(iter(later))

    def test_values_that_are_no_numbers(self):
        loader = motley.DataLoader(Data(), 64, run_directory="unused")
        loader._yielded = 1
        for call in (loader.record, motley.Mean(loader).update):
            for value, words in (("x", "is 'x'; a number, or a tensor of one value"), (None, "is None; a number"),
                                 (torch.ones(3), r"is a tensor of shape \(3,\); a number")):
                with self.assertRaisesRegex(ValueError, words):
                    call(value)
        with self.assertRaisesRegex(ValueError, "^epoch is 'x'; an integer"):
            loader.set_epoch("x")
        for use in (motley.DataLoader.mean, motley.DataLoader.weigh):
            begun = motley.DataLoader(Data(), 64)
            begun._join()
            with self.assertRaisesRegex(RuntimeError, "yielded no batch yet"):
                use(begun, torch.ones(()))

    def test_what_weight_gradients_refuses(self):
        loader = motley.DataLoader(Data(), 64)
        for arguments, words in (({"model": None}, "model is a NoneType; a DistributedDataParallel"), ({"hook": 3}, "hook is 3; a pair"),
                                 ({"hook": (None, 3)}, r"hook is \(None, 3\); a pair"),
                                 ({"loader": None, "samples": 5}, "samples is 5; a function that counts a batch")):
            with self.subTest(words), self.assertRaisesRegex(ValueError, f"^{words}"):
                motley.weight_gradients(**{"model": Net(), "loader": loader} | arguments)

    def test_another_loader_of_its_batches(self):
        loader = motley.DataLoader(Data(), 64)
        with self.assertRaises(RuntimeError) as caught:
            next(iter(torch.utils.data.DataLoader(Data(), batch_sampler=loader.batch_sampler)))
        self.assertIn("its load_state_dict goes on", str(caught.exception))

    def test_an_iterator_that_is_not_used_leaves_the_position(self):
        loader = motley.DataLoader(Data(), 64)
        next(batches := iter(loader))
        state = loader.state_dict()
        del batches
        resumed = motley.DataLoader(Data(), 64)
        resumed.load_state_dict(state)
        iter(resumed)
        self.assertEqual(len(list(resumed)), len(resumed) - 1)
        self.assertEqual(resumed.epoch, 1)

    def test_a_framework_that_is_missing_is_named(self):
        with unittest.mock.patch.dict(sys.modules, {"transformers": None}):
            sys.modules.pop("motley.integrations.transformers", None)
            with self.assertRaises(ImportError) as caught:
                importlib.import_module("motley.integrations.transformers")
        self.assertIn("pip install transformers accelerate", str(caught.exception))

    def test_in_order(self):
        loader = motley.DataLoader(Data(), 64, shuffle=False, num_workers=2)
        seen = itertools.chain(*(indices.tolist() for indices, _, _ in loader))
        self.assertEqual(list(seen), list(range(SAMPLES)))


if __name__ == "__main__":
    unittest.main()
