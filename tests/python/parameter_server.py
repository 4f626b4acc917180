"""motley.optim.ParameterServerOptimizer against one process that steps torch's own optimizer on whole batches.

Servers work in float32, and so does the reference. After some 20 steps weights, of which the largest are near 1, differ by less
than BOUND: the ranks' gradients are summed in another order.
"""
import contextlib
import copy
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist

import motley
from data_parallel import FEATURES, SAMPLES, random_splits
from motley import _motley
from ranks import RanksTest

BOUND = 2e-5
BATCH, STEPS = 23, 18  # two passes
TIMEOUT = 20  # seconds of any wait

SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
OPTIMIZERS = {
    "sgd": (SGD, {"lr": 0.1, "weight_decay": 0.02}),
    "momentum": (SGD, {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.02}),
    "nesterov": (SGD, {"lr": 0.05, "momentum": 0.8, "nesterov": True}),
    "adam": (ADAM, {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.01}),
    "adamw": (ADAMW, {"lr": 0.01, "eps": 1e-4, "weight_decay": 0.3}),
}


class Data(torch.utils.data.Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
        self.targets = torch.randn(SAMPLES, 1, generator=generator)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index, self.inputs[index], self.targets[index]


def make_net(seed=5):
    torch.manual_seed(seed)
    nn = torch.nn
    net = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    net[2].weight = nn.Parameter(net[2].weight.detach().t())  # not contiguous
    return net


def make_groups(net):
    """Two groups, as is usual: weights with and biases without weight decay; the biases at another rate."""
    return [{"params": [parameter for parameter in net.parameters() if parameter.dim() > 1]},
            {"params": [parameter for parameter in net.parameters() if parameter.dim() == 1], "weight_decay": 0.0, "lr": 0.02}]


def make_scheduler(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 4) * 0.95**step)


def mean_loss(net, inputs, targets):
    return ((net(inputs) - targets) ** 2).mean()


def weights(net):
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


class Alone:
    """One process, the same steps, each batch whole; resumes from a state where there is one."""

    def __init__(self, name, state=None, max_grad_norm=None):
        kind, options = OPTIMIZERS[name]
        self.net, self.max_grad_norm = make_net(), max_grad_norm
        if state:
            self.net.load_state_dict(state["net"])
        self.optimizer = kind(make_groups(self.net), **options)
        self.scheduler = make_scheduler(self.optimizer)
        if state:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
            self.scheduler.load_state_dict(state["scheduler"])

    def train(self, batches):
        data = Data()
        for indices in batches:
            self.optimizer.zero_grad()
            mean_loss(self.net, data.inputs[indices], data.targets[indices]).backward()
            if self.max_grad_norm:
                torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.max_grad_norm)
            self.optimizer.step()
            self.scheduler.step()
        return weights(self.net)


def train(name, options, steps=STEPS, state=None, order="model first", zeroes=True, **arguments):
    """A rank trains, with zero_grad() after each step or without; what it used in each step, its weights at the end, and all states."""
    kind, settings = OPTIMIZERS[name]
    loader = motley.DataLoader(Data(), **options)
    net = make_net(5 if dist.get_rank() == 0 else 99)  # rank 0's weights count
    optimizer = motley.optim.ParameterServerOptimizer(
        kind(make_groups(net), **settings), loader=loader, bucket_cap_mb=0.001, timeout=TIMEOUT, **arguments)
    scheduler = make_scheduler(optimizer)
    if state is not None:
        loader.load_state_dict(state["loader"])
        if order == "model first":
            net.load_state_dict(state["net"])
            optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        else:
            optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
            net.load_state_dict(state["net"])
        scheduler.load_state_dict(state["scheduler"])
    used, mine = [], []
    while len(used) < steps:
        for indices, inputs, targets in loader:
            loss = mean_loss(net, inputs, targets) / loader.micro_batches
            if loader.samples:
                mine += indices.tolist()
            else:
                loss = loss * float("nan")  # a stand-in's gradients count nothing, whatever they are
            loss.backward()
            if loader.step_ends:
                optimizer.step()
                if zeroes:
                    optimizer.zero_grad()
                scheduler.step()
                used.append(mine)
                mine = []
                if len(used) == steps:
                    break
    return {"used": used, "weights": weights(net).clone(),
            "state": {"net": {key: value.clone() for key, value in net.state_dict().items()}, "loader": loader.state_dict(),
                      "optimizer": copy.deepcopy(optimizer.state_dict()), "scheduler": scheduler.state_dict()}}


def join_batches(answers):
    return [sum(parts, []) for parts in zip(*(answer["used"] for answer in answers))]


class Case(RanksTest):
    count = 3

    def options(self, **more):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "splits.jsonl"
        path.write_text(random_splits(STEPS, BATCH, SAMPLES, self.count))
        return {"global_batch_size": BATCH, "seed": 11, "batch_split": f"replay:{path}"} | more

    def assert_trained_as_alone(self, answers, expected):
        for answer in answers:
            self.assertTrue(torch.equal(answer["weights"], answers[0]["weights"]), "ranks differ")
        self.assertLess((answers[0]["weights"] - expected).abs().max().item(), BOUND)


class ParameterServerEquality(Case):
    def test_every_optimizer_with_random_splits(self):
        for name in OPTIMIZERS:
            with self.subTest(name):
                answers = self.on_ranks(train, name, self.options())
                self.assert_trained_as_alone(answers, Alone(name).train(join_batches(answers)))

    def test_the_state_is_torchs(self):
        """State and weights go to torch's plain optimizer in one process and to other ranks, and training goes on as if uninterrupted."""
        for name in OPTIMIZERS:
            for order in ("model first", "optimizer first"):
                with self.subTest(name, order=order):
                    options = self.options()
                    begun = self.on_ranks(train, name, options, 7)
                    alone = Alone(name)
                    alone.train(join_batches(begun))
                    for answer in begun:
                        self.assert_states_equal(answer["state"]["optimizer"], alone.optimizer.state_dict())
                    resumed = self.on_ranks(train, name, options, STEPS - 7, begun[0]["state"], order)
                    self.assert_trained_as_alone(resumed, Alone(name, begun[1]["state"]).train(join_batches(resumed)))
                    self.assert_trained_as_alone(resumed, alone.train(join_batches(resumed)))

    def assert_states_equal(self, ours, torchs):
        self.assertEqual(ours["param_groups"], torchs["param_groups"])
        self.assertEqual(ours["state"].keys(), torchs["state"].keys())
        for index, state in torchs["state"].items():
            self.assertEqual(ours["state"][index].keys(), state.keys())
            for key, value in state.items():
                torch.testing.assert_close(ours["state"][index][key], value, rtol=0, atol=BOUND)

    def test_clipping(self):
        for name in ("momentum", "adamw"):
            with self.subTest(name):
                answers = self.on_ranks(train, name, self.options())
                clipped = self.on_ranks(clip, name, self.options(), 0.05)
                self.assert_trained_as_alone(clipped, Alone(name, max_grad_norm=0.05).train(join_batches(clipped)))
                self.assertGreater((clipped[0]["weights"] - answers[0]["weights"]).abs().max().item(), 1e-3, "nothing was clipped")

    def test_accumulation_by_the_loader(self):
        answers = self.on_ranks(train, "adamw", self.options(global_batch_size=24, gradient_accumulation_steps=4, drop_last=True,
                                                             batch_split=[1, 2, 3]), 16)
        self.assert_trained_as_alone(answers, Alone("adamw").train(join_batches(answers)))

    def test_no_sync(self):
        answers = self.on_ranks(accumulate)
        self.assert_trained_as_alone(answers, Alone("nesterov").train([list(range(36))] * 6))

    def test_two_servers_over_tcp(self):
        with contextlib.ExitStack() as stack:
            token = make_token(stack)
            servers = [stack.enter_context(running_server(token)) for _ in range(2)]
            answers = self.on_ranks(remotely, self.options(), [server.address for server in servers], token)
        self.assert_trained_as_alone(answers, Alone("adamw").train(join_batches(answers)))

    def test_two_optimizers_at_one_server(self):
        for answers in zip(*self.on_ranks(two_optimizers)):
            for answer in answers:
                self.assertTrue(torch.equal(answer, answers[0]))

    def test_parameters_without_gradients(self):
        """Those of a branch that a step did not take count as zero, and frozen ones stay as they are."""
        for moved, frozen in self.on_ranks(partly):
            self.assertTrue(moved)
            self.assertTrue(frozen)

    def test_once_a_pass_was_left_ranks_count_alike(self):
        """In a step on batches of the script's own."""
        answers, alone = self.on_ranks(step_after_leaving), make_net()
        alone.load_state_dict(answers[0]["before"])
        data = Data()
        mean_loss(alone, data.inputs[:36], data.targets[:36]).backward()
        torch.optim.SGD(alone.parameters(), lr=0.1).step()
        self.assert_trained_as_alone(answers, weights(alone))

    def test_what_is_kept_outlives_the_optimizer(self):
        for before, after in self.on_ranks(outlive):
            self.assertTrue(torch.equal(before, after))


def clip(name, options, norm):
    return train(name, options, zeroes=False, max_grad_norm=norm)


def remotely(options, servers, token):
    return train("adamw", options, server=servers, token_file=token)


def accumulate():
    """Without a loader ranks count alike: equal parts of a batch, in three passes of four samples."""
    kind, settings = OPTIMIZERS["nesterov"]
    net, data, rank = make_net(), Data(), dist.get_rank()
    optimizer = motley.optim.ParameterServerOptimizer(kind(make_groups(net), **settings), bucket_cap_mb=0.001, timeout=TIMEOUT)
    scheduler = make_scheduler(optimizer)
    for _ in range(6):
        for micro in range(3):
            begin = 12 * rank + 4 * micro
            with optimizer.no_sync() if micro < 2 else contextlib.nullcontext():
                (mean_loss(net, data.inputs[begin:begin + 4], data.targets[begin:begin + 4]) / 3).backward()
        optimizer.step(lambda: None)
        scheduler.step()
    return {"weights": weights(net).clone()}


def step_after_leaving():
    """A step on an equal part of 36 samples, once a pass over a loader was left: the network before, and its weights after it."""
    loader, net, data, rank = motley.DataLoader(Data(), BATCH, batch_split=[3, 2, 1]), make_net(), Data(), dist.get_rank()
    optimizer = motley.optim.ParameterServerOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), loader=loader, timeout=TIMEOUT)
    for _, inputs, targets in loader:
        mean_loss(net, inputs, targets).backward()
        optimizer.step()
        break
    before = {key: value.clone() for key, value in net.state_dict().items()}
    mean_loss(net, data.inputs[12 * rank:12 * rank + 12], data.targets[12 * rank:12 * rank + 12]).backward()
    optimizer.step()
    return {"before": before, "weights": weights(net).clone()}


def two_optimizers():
    nets = [make_net(), make_net(6)]
    optimizers = [motley.optim.ParameterServerOptimizer(torch.optim.Adam(net.parameters()), timeout=TIMEOUT) for net in nets]
    assert optimizers[0]._server is optimizers[1]._server
    data = Data()
    for _ in range(3):
        for net, optimizer in zip(nets, optimizers):
            mean_loss(net, data.inputs, data.targets).backward()
            optimizer.step()
    return [weights(net).clone() for net in nets]


def partly():
    net = make_net()
    net[0].bias.requires_grad_(False)
    optimizer = motley.optim.ParameterServerOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), timeout=TIMEOUT)
    frozen, first = net[0].bias.clone(), net[0].weight.clone()
    data = Data()
    for _ in range(2):
        (net[4].weight.sum() if dist.get_rank() else mean_loss(net, data.inputs, data.targets)).backward()
        optimizer.step()
    return not torch.equal(net[0].weight, first), torch.equal(net[0].bias, frozen)


def outlive():
    net = make_net()
    optimizer = motley.optim.ParameterServerOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), timeout=TIMEOUT)
    mean_loss(net, Data().inputs, Data().targets).backward()
    optimizer.step()
    kept, before = net[0].weight.detach(), net[0].weight.detach().clone()
    del optimizer
    net[0].weight.data.add_(1)  # its own memory by now
    return before, kept


def do_wrong(what):
    what(make_net())


def wrong_kind(net):
    motley.optim.ParameterServerOptimizer(torch.optim.RMSprop(net.parameters()))


def wrong_type(net):
    motley.optim.ParameterServerOptimizer(torch.optim.SGD(net.double().parameters()))


def wrong_option(net):
    motley.optim.ParameterServerOptimizer(torch.optim.AdamW(net.parameters(), amsgrad=True))


def wrong_norm(net):
    motley.optim.ParameterServerOptimizer(torch.optim.SGD(net.parameters()), max_grad_norm=0)


def wrong_loader(net):
    motley.optim.ParameterServerOptimizer(torch.optim.SGD(net.parameters()), loader=torch.utils.data.DataLoader(Data()))


def frozen_group(net):
    motley.optim.ParameterServerOptimizer(torch.optim.SGD(net.requires_grad_(False).parameters()))


def own_hook(net):
    net[0].weight.register_post_accumulate_grad_hook(lambda _: None)
    motley.optim.ParameterServerOptimizer(torch.optim.SGD(net.parameters()))


def different_rates(net):
    motley.optim.ParameterServerOptimizer(torch.optim.AdamW(net.parameters(), weight_decay=0.1 * dist.get_rank()))


def different_shapes(_):
    motley.optim.ParameterServerOptimizer(torch.optim.SGD(torch.nn.Linear(3 + dist.get_rank(), 1).parameters()))


def different_named_shapes(_):
    motley.optim.ParameterServerOptimizer(torch.optim.SGD(torch.nn.Linear(3 + dist.get_rank(), 1).named_parameters()))


def different_kinds(net):
    kind = torch.optim.SGD if dist.get_rank() else torch.optim.Adam
    motley.optim.ParameterServerOptimizer(kind(net.parameters()))


def wrong_numbers(net):
    motley.optim.ParameterServerOptimizer(torch.optim.SGD(net.parameters()), timeout="soon")


def wrong_on_one_rank(net):
    motley.optim.ParameterServerOptimizer(torch.optim.SGD(net.parameters()), bucket_cap_mb=1 - dist.get_rank())


def differs_from_two_steps(net, other):
    """How far a network's weights are from those of another one once PyTorch's own AdamW has made two steps of it."""
    alone = torch.optim.AdamW(other.parameters(), lr=0.1)
    for _ in range(2):
        alone.zero_grad()
        mean_loss(other, Data().inputs, Data().targets).backward()
        alone.step()
    return float((weights(net) - weights(other)).abs().max())


def load_damaged():
    """What is said of states that are damaged, and whether training goes on afterwards as if nothing had been loaded."""
    net = make_net()
    optimizer = begin(net)
    state, said = optimizer.state_dict(), []

    def change(**settings):
        return state | {"param_groups": [state["param_groups"][0] | settings]}

    first = state["state"][0]
    for damaged in ("text", {}, state | {"param_groups": []}, change(lr="x"), change(lr=float("nan")), change(betas=(0.9, 2)),
                    change(params=[0]), state | {"state": state["state"] | {0: first | {"exp_avg": torch.zeros(1)}}},
                    state | {"state": state["state"] | {0: first | {"step": "x"}}}):
        try:
            optimizer.load_state_dict(damaged)
        except ValueError as problem:
            said.append(str(problem))
    mean_loss(net, Data().inputs, Data().targets).backward()
    optimizer.step()
    other = make_net()
    return said, differs_from_two_steps(net, other)


def begin(net, timeout=TIMEOUT, **arguments):
    optimizer = motley.optim.ParameterServerOptimizer(torch.optim.AdamW(net.parameters(), lr=0.1), timeout=timeout, **arguments)
    mean_loss(net, Data().inputs, Data().targets).backward()
    optimizer.step()
    return optimizer


def cycled_betas(net):
    optimizer = begin(net)
    mean_loss(net, Data().inputs, Data().targets).backward()
    optimizer.param_groups[0]["betas"] = (0.5, 0.9)
    optimizer.step()


def late_rate(net, optimizer=None):
    optimizer = optimizer or begin(net)
    mean_loss(net, Data().inputs, Data().targets).backward()
    optimizer.param_groups[0]["lr"] = 0.2
    optimizer.step()


def two_backward_passes(net, optimizer=None):
    optimizer = optimizer or begin(net)
    mean_loss(net, Data().inputs, Data().targets).backward()
    mean_loss(net, Data().inputs, Data().targets).backward()
    optimizer.step()


def late_clipping(net, optimizer=None):
    optimizer = optimizer or begin(net)
    mean_loss(net, Data().inputs, Data().targets).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    optimizer.step()


def go_on_after_failure(what):
    """What is said of a step that failed in the middle and of all uses after it; and how far from torch's the optimizer steps once it
    has been given a state."""
    net, other = make_net(), make_net()
    optimizer = begin(net)
    state, before, said = optimizer.state_dict(), {key: value.clone() for key, value in net.state_dict().items()}, []
    for use in (lambda: what(net, optimizer), lambda: mean_loss(net, Data().inputs, Data().targets).backward(), optimizer.step,
                optimizer.state_dict, optimizer.no_sync().__enter__):
        try:
            use()
        except (RuntimeError, ValueError) as problem:
            said.append(str(problem))
    optimizer.load_state_dict(state)
    net.load_state_dict(before)
    optimizer.zero_grad()
    mean_loss(net, Data().inputs, Data().targets).backward()
    optimizer.step()
    return said, differs_from_two_steps(net, other)


def late_no_sync(net):
    optimizer = begin(net)
    mean_loss(net, Data().inputs, Data().targets).backward()
    with optimizer.no_sync():
        pass


def late_group(net):
    begin(net).add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})


def thawed(net):
    net[0].bias.requires_grad_(False)
    optimizer = begin(net)
    net[0].bias.requires_grad_(True)
    mean_loss(net, Data().inputs, Data().targets).backward()
    optimizer.step()


def frozen_later(net):
    optimizer = begin(net)
    net[0].bias.requires_grad_(False)
    mean_loss(net, Data().inputs, Data().targets).backward()
    optimizer.step()


def copied(net):
    copy.deepcopy(begin(net))


def scaled(net):
    optimizer = motley.optim.ParameterServerOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), timeout=TIMEOUT)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(mean_loss(net, Data().inputs, Data().targets)).backward()
    scaler.step(optimizer)


def mixed_steps(net):
    state = torch.optim.Adam(net.parameters()).state_dict()
    for index, parameter in enumerate(net.parameters()):
        zeros = torch.zeros_like(parameter)
        state["state"][index] = {"step": torch.tensor(float(1 + index % 2)), "exp_avg": zeros, "exp_avg_sq": zeros}
    optimizer = motley.optim.ParameterServerOptimizer(torch.optim.Adam(net.parameters()), timeout=TIMEOUT)
    optimizer.load_state_dict(state)
    mean_loss(net, Data().inputs, Data().targets).backward()
    optimizer.step()


def wrapped(net):
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = motley.optim.ParameterServerOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), timeout=TIMEOUT)
    mean_loss(model, Data().inputs, Data().targets).backward()
    optimizer.step()


def sparse(net):
    rows = torch.nn.EmbeddingBag(5, 3, sparse=True)
    optimizer = motley.optim.ParameterServerOptimizer(torch.optim.SGD([*net.parameters(), *rows.parameters()], lr=0.1), timeout=TIMEOUT)
    (mean_loss(net, Data().inputs, Data().targets) + rows(torch.tensor([[1, 2]])).sum()).backward()
    optimizer.step()


WRONG = {
    wrong_kind: "torch.optim.rmsprop.RMSprop; torch.optim.SGD, Adam and AdamW are",
    wrong_type: "parameter 0 of group 0 is torch.float64; a server takes float32",
    wrong_option: "AdamW(amsgrad=True) is not among",
    wrong_norm: "max_grad_norm is 0; a number above 0",
    wrong_loader: "loader is a DataLoader; a motley.DataLoader is accepted",
    frozen_group: "parameter group 0 has no parameter that requires a gradient",
    own_hook: "parameter 0 of group 0 has a hook",
    wrong_numbers: "timeout is 'soon'; a number above 0 is accepted",
    wrong_on_one_rank: "rank 1: bucket_cap_mb is 0; a number above 0 is accepted",
    different_rates: "ranks differ in weight_decay of parameter group 0: rank 0 has 0.0, rank 1 has 0.1; accepted: the same on every rank",
    different_kinds: "ranks differ in optimizer: rank 0 has 'Adam', rank 1 has 'SGD'; accepted",
    different_shapes: "ranks differ in their parameters: rank 0 has 'parameter 0 of group 0' of shape (1, 3) and type float32, rank 1 has "
                      "'parameter 0 of group 0' of shape (1, 4) and type float32; accepted",
    different_named_shapes: "rank 0 has 'weight' of shape (1, 3) and type float32, rank 1 has 'weight' of shape (1, 4)",
    cycled_betas: "betas of parameter group 0 is (0.5, 0.9) now and was (0.9, 0.999)",
    late_rate: "lr of parameter group 0 is 0.2 now and was 0.1 when backward sent the gradients",
    two_backward_passes: "gradients from a second backward pass",
    late_clipping: "was changed after backward, which had sent it already: clip by max_grad_norm=",
    late_no_sync: "step() comes first",
    late_group: "give the optimizer all groups before",
    thawed: "parameter 1 of group 0 requires a gradient now and required none when the server was given the parameters; accepted",
    frozen_later: "parameter 1 of group 0 requires no gradient now and required one when",
    copied: "which a copy or a pickle would lose; accepted: its state_dict()",
    scaled: "train in bfloat16",
    sparse: "the model has an EmbeddingBag with sparse=True, and a server takes whole gradients: say",
    wrapped: "the model is wrapped in DistributedDataParallel, which would average",
    mixed_steps: "different numbers of steps (1, 2)",
}


class ParameterServerInput(RanksTest):
    def test_what_is_wrong_is_refused_on_every_rank(self):
        for what, words in WRONG.items():
            with self.subTest(what.__name__):
                for message in self.refused_on_ranks(do_wrong, what):
                    self.assertIn(words, message)

    def test_after_a_step_that_failed_only_a_state_is_of_use(self):
        for what in (late_rate, late_clipping, two_backward_passes):
            with self.subTest(what.__name__):
                for (first, *later), difference in self.on_ranks(go_on_after_failure, what):
                    self.assertIn(WRONG[what], first)
                    self.assertEqual(len(later), 3)
                    for message in later:
                        self.assertRegex(message, "^the optimizer is of no use any more since a step failed: ")
                        self.assertIn(first, message)
                    self.assertLess(difference, 1e-5)

    def test_a_damaged_state_changes_nothing(self):
        for said, difference in self.on_ranks(load_damaged):
            for message, words in zip(said, (
                    "state_dict is a str without param_groups", "state_dict is a dict without",
                    "state_dict has parameter groups of [] parameters", "lr of parameter group 0 is 'x'; a number of at least 0",
                    "lr of parameter group 0 is nan; a number", "betas of parameter group 0 are (0.9, 2); two numbers",
                    "state_dict has parameter groups of [1] parameters; as many as",
                    "exp_avg of parameter 0 is a tensor of shape (1,); a tensor of shape",
                    "step of parameter 0 is 'x'; a number"), strict=True):
                self.assertIn(words, message)
            self.assertLess(difference, 1e-5)

    def test_tokens(self):
        """A wrong token, one that others can read, none, and a server that is not there."""
        with contextlib.ExitStack() as stack:
            right, wrong, readable = (make_token(stack) for _ in range(3))
            os.chmod(readable, 0o644)
            server = stack.enter_context(running_server(right)).address
            self.assertEqual(self.on_ranks(use_token, server, right), ["served"] * 2)
            for address, token, words in ((server, wrong, "the secret"), (server, readable, "mode"), (server, None, "MOTLEY_TOKEN_FILE"),
                                          ("nowhere", right, "nowhere"), ("127.0.0.1:1", right, "127.0.0.1:1")):
                with self.subTest(words):
                    for message in self.refused_on_ranks(use_token, address, token):
                        self.assertIn(words, message)


def use_token(server, token):
    begin(make_net(), server=server, token_file=token, timeout=5)
    return "served"


class LostServer(RanksTest):
    """Each on ranks of its own, as a lost server or rank ends what they do together."""

    def test_every_rank_is_told(self):
        with contextlib.ExitStack() as stack:
            token = make_token(stack)
            server = stack.enter_context(running_server(token))
            self.on_ranks(begin_and_keep, server.address, token)
            server.kill()
            for message in self.refused_on_ranks(go_on):
                self.assertIn(f"server at {server.address} was lost", message)


class LostRank(RanksTest):
    count = 3

    def test_a_killed_rank_is_named(self):
        self.on_ranks(begin_and_keep)
        for rank, (_, pipe) in enumerate(self.ranks):
            pipe.send((die, ()) if rank == 1 else (go_on, ()))
        for rank in (0, 2):
            pipe = self.ranks[rank][1]
            self.assertTrue(pipe.poll(TIMEOUT), "no answer")
            is_good, (kind, message, _) = pipe.recv()
            self.assertFalse(is_good)
            self.assertEqual(kind, "RuntimeError")
            self.assertIn("rank 1", message)


class RankThatLeaves(RanksTest):
    def test_one_whose_script_fails_is_named(self):
        """It leaves in order, as its optimizer goes."""
        self.on_ranks(begin_and_keep)
        with self.assertRaises(Exception) as caught:
            self.on_ranks(fail_on_last)
        (_, _, message, _), (_, kind, _, _) = caught.exception.failures
        self.assertIn("rank 1", message)
        self.assertEqual(kind, "ZeroDivisionError")


def begin_and_keep(server=None, token=None):
    global kept
    net = make_net()
    kept = net, begin(net, server=server, token_file=token)


def go_on():
    net, optimizer = kept
    mean_loss(net, Data().inputs, Data().targets).backward()
    optimizer.step()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def fail_on_last():
    global kept
    if dist.get_rank() == 1:
        kept = None
        raise ZeroDivisionError
    go_on()


def make_token(stack):
    path = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "token"
    _motley.Secret.generate().write(str(path))
    return str(path)


@contextlib.contextmanager
def running_server(token):
    """A server in a process of its own."""
    script = ("import sys; from motley import _motley; "
              f"server = _motley.ParameterServer(_motley.Secret.from_file({token!r}, ''), '127.0.0.1:0', ''); "
              "sys.stdout.write(server.address + '\\n'); sys.stdout.flush(); sys.stdin.read()")
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        process.address = process.stdout.readline().strip()
        yield process
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    unittest.main()
