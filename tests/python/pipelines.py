"""motley.pipeline against one process that trains the same model with plain PyTorch."""
import copy
import itertools
import pathlib
import sys
import unittest

import torch
import torch.distributed as dist
from torch import nn

import motley
from motley._pipeline import _Layout
from ranks import RanksTest, run_scripts

BATCH, FEATURES, STEPS = 24, 5, 4


class Skip(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.inner(x))


class Net(nn.Module):
    """Own forward with functions in between, a buffer, a frozen parameter and one that is not used."""

    def __init__(self, norm=False, dropout=0.0):
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(FEATURES, 12)
        self.norm = nn.BatchNorm1d(12) if norm else nn.LayerNorm(12)
        self.body = nn.Sequential(Skip(12), nn.Sequential(Skip(12), nn.Dropout(dropout)))
        self.last = nn.Linear(12, 3)
        self.unused, self.frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.full((12,), 0.5), requires_grad=False)
        self.register_buffer("shift", torch.linspace(-1, 1, 12))
        self.double()

    def forward(self, x):
        rows = x.size(0)
        x = torch.relu(self.norm(self.first(x)) + self.shift)
        return self.last(self.body(x) * self.frozen).view(rows, 3)


SHAPES = ["12x5, 12", "12, 12", "", "", "12x12, 12", "12x12, 12", "", "12", "3x12, 3", ""]
LAYERS = ["first", "norm", "add", "relu", "body.0", "body.1.0", "body.1.1", "mul", "last", "view"]


def make_batch(step, rows=BATCH):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(rows, FEATURES, dtype=torch.float64, generator=generator), torch.randint(3, (rows,), generator=generator)


def make_plan(cuts=(), replicas=(1,), micro_batches=4, schedule="1f1b", recompute=False, layers=LAYERS, batch=BATCH):
    """Stages that begin at these layers; a number of replicas, or their fractions, for each."""
    begins = [0, *(layers.index(name) for name in cuts), len(layers)]
    stages = []
    for number, (begin, end) in enumerate(itertools.pairwise(begins)):
        own = replicas[number]
        entries = ([{"type": "cpu", "count": own}] if isinstance(own, int)
                   else [{"type": "cpu", "count": 1, "batch_fraction": part} for part in own])
        count = own if isinstance(own, int) else len(own)
        stages.append({"first_layer": layers[begin], "last_layer": layers[end - 1], "replicas": entries,
                       "gradient_sync": "ring" if count > 1 else "none", "recompute": recompute})
    return {"version": 2, "model": "Net", "layers": list(layers), "global_batch_size": batch, "micro_batches": micro_batches,
            "pipeline_schedule": schedule, "stages": stages}


def make_optimizer(parameters, norm=False):
    """AdamW would make steps of what is left by rounding of the gradients that BatchNorm makes zero."""
    parameters = list(parameters)
    make = torch.optim.SGD if norm else torch.optim.AdamW
    return make(parameters, lr=0.01, weight_decay=0.1) if parameters else None


def mean_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def train_alone(steps=STEPS, sizes=(BATCH,), make=Net, **options):
    net = make(**options)
    optimizer, losses = make_optimizer(net.parameters()), []
    for step in range(steps):
        inputs, targets = make_batch(step, sizes[step % len(sizes)])
        optimizer.zero_grad()
        loss = mean_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, net.state_dict()


def make_group(count):
    """A group of the first ranks, and whether this is one; all ranks call it."""
    if count == dist.get_world_size():
        return None, True
    group = dist.new_group(list(range(count)))
    return group, dist.get_rank() < count


def train(plan, count, steps=STEPS, sizes=(BATCH,), own_seed=False, gives="all", make=Net, **options):
    """A rank trains: its losses, the whole state on rank 0, and what it says of itself."""
    group, takes_part = make_group(count)
    if not takes_part:
        return None
    net = make(**options)
    if own_seed and dist.get_rank():
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(dist.get_rank())
    before = sum(parameter.numel() for parameter in net.parameters())
    pipe = motley.pipeline(net, plan, loss_fn=mean_loss, example_inputs=make_batch(0, 3)[0], process_group=group)
    optimizer, losses = make_optimizer(pipe.parameters(), options.get("norm")), []
    for step in range(steps):
        inputs, targets = make_batch(step, sizes[step % len(sizes)])
        if gives == "needed":
            inputs, targets = (inputs if pipe.stage == 0 else None), (targets if pipe.stage + 1 == pipe.stages else None)
        if optimizer is not None:
            optimizer.zero_grad()
        losses.append(pipe.step(inputs, targets).item())
        if optimizer is not None:
            optimizer.step()
    own = sum(parameter.numel() for parameter in pipe.parameters())
    real = sum(parameter.numel() for parameter in net.parameters() if not parameter.is_meta)
    return losses, pipe.gather_state_dict(), {"stage": pipe.stage, "stages": pipe.stages, "layers": pipe.layers, "own": own, "real": real,
                                              "before": before, "names": list(pipe.state_dict())}


def accumulate_twice(plan):
    net = Net()
    pipe = motley.pipeline(net, plan, loss_fn=mean_loss, example_inputs=make_batch(0)[0])
    for step in range(2):
        pipe.step(*make_batch(step))
    return {name: parameter.grad for name, parameter in pipe.named_parameters()}


def resume(plan, state):
    pipe = motley.pipeline(Net(), plan, loss_fn=mean_loss, example_inputs=make_batch(0)[0])
    pipe.load_state_dict(state)
    return pipe.step(*make_batch(9)).item()


def refuse(model, plan, **given):
    arguments = {"loss_fn": mean_loss, "example_inputs": make_batch(0)[0]} | given
    motley.pipeline(model, plan, **arguments)


class PipelineEquality(RanksTest):
    count = 3

    def check(self, plan, count, **options):
        alone = {key: value for key, value in options.items() if key in ("steps", "sizes", "norm", "make")}
        losses, state = train_alone(**alone)
        defaults = {"steps": STEPS, "sizes": (BATCH,), "own_seed": False, "gives": "all", "make": Net}
        answers = self.on_ranks(train, plan, count, *(options.get(key, default) for key, default in defaults.items()))
        answers = [answer for answer in answers if answer is not None]
        self.assertEqual(len(answers), count)
        for own, _, _ in answers:
            self.assertLess(max(abs(a - b) for a, b in zip(own, losses, strict=True)), 1e-12)
        gathered = answers[0][1]
        self.assertEqual(list(gathered), list(state))
        for name, value in state.items():
            self.assertLess((gathered[name] - value).abs().max(), 1e-12, name)
        alone.get("make", Net)().load_state_dict(gathered)  # strict
        return [answer[2] for answer in answers]

    def test_two_stages(self):
        for schedule in ("1f1b", "gpipe"):
            with self.subTest(schedule):
                ranks = self.check(make_plan(["body.1.0"], (1, 1), schedule=schedule), 2)
                self.assertEqual([rank["stage"] for rank in ranks], [0, 1])
                self.assertEqual(list(itertools.chain(*(rank["layers"] for rank in ranks))), LAYERS)
                self.assertEqual(sum(rank["own"] for rank in ranks), ranks[0]["before"])
                self.assertEqual([rank["real"] for rank in ranks], [rank["own"] for rank in ranks])  # nothing else is held
                self.assertEqual(sorted(itertools.chain(*(rank["names"] for rank in ranks))), sorted(Net().state_dict()))

    def test_two_stages_of_two_and_one(self):
        self.check(make_plan(["body.1.0"], (2, 1)), 3)
        self.check(make_plan(["add"], (1, 2), schedule="gpipe"), 3)

    def test_three_stages(self):
        self.check(make_plan(["body.0", "mul"], (1, 1, 1), micro_batches=6), 3)

    def test_shares_that_differ(self):
        self.check(make_plan(["body.0"], ([0.7, 0.3], 1), micro_batches=5), 3)
        self.check(make_plan(["body.0"], (1, [0.15, 0.85]), micro_batches=8), 3)

    def test_replicas_without_rows(self):
        self.check(make_plan(["body.0"], ([0.97, 0.03], 1), micro_batches=12), 3)
        self.check(make_plan(["body.0"], (1, [0.999, 0.001])), 3)

    def test_one_stage_of_two(self):
        self.check(make_plan((), ([0.6, 0.4],)), 2)

    def test_stages_that_recompute(self):
        self.check(make_plan(["body.0"], (2, 1), recompute=True), 3)

    def test_batches_of_several_sizes(self):
        self.check(make_plan(["body.0"], (2, 1), micro_batches=7), 3, sizes=(BATCH, 10, 3))

    def test_ranks_give_what_they_need_and_replicas_begin_alike(self):
        self.check(make_plan(["norm", "mul"], (1, 1, 1)), 3, gives="needed")
        answers = self.on_ranks(train, make_plan((), (3,)), 3, STEPS, (BATCH,), True)
        _, state = train_alone()
        for name, value in state.items():
            self.assertLess((answers[0][1][name] - value).abs().max(), 1e-12, name)

    def test_a_parameter_that_stages_share(self):
        """At every stage that reads it, with the gradient of all; also where the ranks' models begin with other values."""
        layers = ["first", "middle", "last"]
        for cuts, replicas in ((["middle"], (1, 1)), (["middle"], (2, 1)), (["last"], (1, [0.3, 0.7])), (["middle", "last"], (1, 1, 1))):
            for own_seed in (False, True):
                with self.subTest(replicas, own_seed=own_seed):
                    plan = make_plan(cuts, replicas, layers=layers)
                    if own_seed:
                        states = self.on_ranks(step_with_own_seed, plan, _Layout(plan).ranks)
                        states = [state for state in states if state is not None]
                        holders = [state["first.weight"] for state in states if "first.weight" in state]
                        self.assertGreater(len(holders), 1)
                        self.assertTrue(all(torch.equal(holder, holders[0]) for holder in holders))
                    else:
                        self.check(plan, _Layout(plan).ranks, make=Tied)

    def test_tensors_that_bypass_stages(self):
        """Two tensors cross each cut, of which one goes on unchanged."""
        for cuts, replicas, options in (
                (["b..add"], (1, 1), {}), (["b..add"], (2, 1), {"schedule": "gpipe"}), (["b..add"], (1, [0.3, 0.7]), {"micro_batches": 5}),
                (["b..add", "c..mul"], (1, 1, 1), {"micro_batches": 6}), (["a", "c..mul"], (1, 1, 1), {"recompute": True})):
            with self.subTest(cuts=cuts, replicas=replicas):
                plan = make_plan(cuts, replicas, layers=BYPASSING_LAYERS, **options)
                self.check(plan, _Layout(plan).ranks, make=Bypassing)
        plan = make_plan(["b..add", "c..mul"], (1, 1, 1), layers=BYPASSING_LAYERS)
        inputs, targets = make_batch(1, 7)
        expected = mean_loss(Bypassing()(inputs), targets)
        for loss in self.on_ranks(evaluate_bypassing, plan):
            self.assertLess(abs(loss - expected), 1e-12)

    def test_gradients_of_two_steps_add_up(self):
        net = Net()
        for step in range(2):
            inputs, targets = make_batch(step)
            mean_loss(net(inputs), targets).backward()
        found = {}
        for gradients in self.on_ranks(accumulate_twice, make_plan(["body.0"], (2, 1))):
            for name, gradient in gradients.items():
                found.setdefault(name, []).append(gradient)
        for name, parameter in net.named_parameters():
            for gradient in found[name]:
                if parameter.grad is None:
                    self.assertIsNone(gradient, name)
                else:
                    self.assertLess((gradient - parameter.grad).abs().max(), 1e-12, name)

    def test_batch_norm_normalises_micro_batches(self):
        """As one process does that takes the micro-batches one after the other."""
        plan = make_plan(["body.0", "mul"], (1, 1, 1), micro_batches=4)
        net = Net(norm=True)
        optimizer = make_optimizer(net.parameters(), norm=True)
        for step in range(STEPS):
            inputs, targets = make_batch(step)
            optimizer.zero_grad()
            for part, wanted in zip(inputs.chunk(4), targets.chunk(4)):
                (mean_loss(net(part), wanted) / 4).backward()
            optimizer.step()
        answers = self.on_ranks(train_with_norm, plan, 3)
        for name, value in net.state_dict().items():
            self.assertLess((answers[0][1][name] - value).abs().max(), 1e-12, name)
        recomputed = self.on_ranks(train_with_norm, make_plan(["body.0", "mul"], (1, 1, 1), recompute=True), 3)
        for name, value in net.state_dict().items():
            self.assertLess((recomputed[0][1][name] - value).abs().max(), 1e-12, name)

    def test_running_statistics_of_replicas_are_their_mean(self):
        states = self.on_ranks(states_with_norm, make_plan(["add"], ([0.75, 0.25], 1), micro_batches=2))
        self.assertTrue(torch.equal(states[0]["norm.running_mean"], states[1]["norm.running_mean"]))
        net, plan = Net(norm=True), make_plan(["add"], ([0.75, 0.25], 1), micro_batches=2)
        layout, expected = _Layout(plan), 0
        for rank in range(2):
            own = copy.deepcopy(net)
            for micro_batch in layout.cut(BATCH):
                begin, end = layout.rows(rank, micro_batch)
                own(make_batch(0)[0][micro_batch.begin + begin:micro_batch.begin + end])
            expected = expected + own.norm.running_mean * (0.75, 0.25)[rank]
        self.assertLess((states[0]["norm.running_mean"] - expected).abs().max(), 1e-12)

    def test_recomputed_dropout_leaves_out_the_same(self):
        plans = [make_plan(["mul"], (1, 1), recompute=recompute, micro_batches=3) for recompute in (False, True)]
        kept, recomputed = (self.on_ranks(train_with_dropout, plan, 2) for plan in plans)
        self.assertNotAlmostEqual(kept[0][0][0], train_alone()[0][0])  # something is left out
        for name, value in kept[0][1].items():
            self.assertLess((value - recomputed[0][1][name]).abs().max(), 1e-12, name)

    def test_a_checkpoint_goes_on(self):
        _, state = train_alone()
        net = Net()
        net.load_state_dict(state)
        inputs, targets = make_batch(9)
        losses = self.on_ranks(resume, make_plan(["body.0"], (2, 1)), state)
        self.assertLess(max(abs(loss - mean_loss(net(inputs), targets).item()) for loss in losses), 1e-12)

    def test_an_evaluation_is_that_of_one_process(self):
        for plan in (make_plan(["body.0"], ([0.7, 0.3], 1), micro_batches=2), make_plan(["add", "last"], (1, 1, 1)),
                     make_plan(["norm"], (1, 2), recompute=True)):
            for rows in (1, 7, 50):
                with self.subTest(stages=len(plan["stages"]), rows=rows):
                    answers = self.on_ranks(evaluate, plan, rows)
                    net = Leaky()
                    net.load_state_dict(answers[0]["state"])
                    with torch.no_grad():
                        expected = measure(net.eval()(make_batch(1, rows)[0]), make_batch(1, rows)[1])
                    for answer in answers:
                        self.assertLess((answer["means"] - expected).abs().max(), 1e-12)
                        self.assertLess(abs(answer["loss"] - expected[0]), 1e-12)
                        self.assertEqual(answer["loss"].shape, ())
                        self.assertTrue(answer["is_unchanged"])

    def test_joined_layers_of_a_plan(self):
        layers = ["first..relu", "body.0", "body.1.0..mul", "last..view"]
        shapes = ["12x5, 12, 12, 12", "12x12, 12", "12x12, 12, 12", "3x12, 3"]
        self.check(make_plan(["body.1.0..mul"], (2, 1), layers=layers) | {"parameter_shapes": shapes}, 3)


class Bypassing(nn.Module):
    """Blocks that others of its tensors bypass, within each other."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.last = nn.Linear(FEATURES, 12), nn.Linear(12, 3)
        self.a, self.b, self.c = (nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(3))
        self.double()

    def forward(self, x):
        x = self.first(x)
        y = self.a(x)
        return self.last(self.c(self.b(y) + y) * x)


BYPASSING_LAYERS = ["first", "a", "b..add", "c..mul", "last"]


def evaluate_bypassing(plan):
    pipe = motley.pipeline(Bypassing(), plan, loss_fn=mean_loss, example_inputs=make_batch(0)[0])
    return pipe.evaluate(*make_batch(1, 7))


class Leaky(Net):
    """What it leaves out in training is drawn by a function, too, and running statistics serve in evaluation."""

    def __init__(self):
        super().__init__(norm=True, dropout=0.5)

    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


def measure(outputs, targets):
    return torch.stack([mean_loss(outputs, targets), (outputs.argmax(1) == targets).double().mean()])


def evaluate(plan, rows):
    layers = [*LAYERS, "dropout"]
    stages = [*plan["stages"][:-1], plan["stages"][-1] | {"last_layer": "dropout"}]
    pipe = motley.pipeline(Leaky(), plan | {"layers": layers, "stages": stages}, loss_fn=mean_loss, example_inputs=make_batch(0)[0])
    pipe.step(*make_batch(0))
    kept, random = copy.deepcopy(pipe.state_dict()), torch.get_rng_state()
    gradients = [parameter.grad for parameter in pipe.parameters()]
    inputs, targets = make_batch(1, rows)
    answer = {"means": pipe.evaluate(inputs, targets, measure), "loss": pipe.evaluate(inputs, targets)}
    is_unchanged = all(torch.equal(value, pipe.state_dict()[name]) for name, value in kept.items() if isinstance(value, torch.Tensor))
    is_unchanged &= torch.equal(random, torch.get_rng_state()) and all(part.training for part in pipe._model.modules())
    is_unchanged &= all(one is parameter.grad for one, parameter in zip(gradients, pipe.parameters()))
    return answer | {"state": pipe.gather_state_dict(), "is_unchanged": is_unchanged}


def train_with_norm(plan, count):
    return train(plan, count, norm=True)


def train_with_dropout(plan, count):
    torch.manual_seed(3)
    return train(plan, count, dropout=0.5)


def states_with_norm(plan):
    pipe = motley.pipeline(Net(norm=True), plan, loss_fn=mean_loss, example_inputs=make_batch(0)[0])
    pipe.step(*make_batch(0))
    return pipe.state_dict()


def step_with_own_seed(plan, count):
    group, takes_part = make_group(count)
    if not takes_part:
        return None
    net = Tied()
    with torch.no_grad():
        net.first.weight.add_(dist.get_rank())
    pipe = motley.pipeline(net, plan, loss_fn=mean_loss, example_inputs=make_batch(0)[0], process_group=group)
    optimizer = torch.optim.AdamW(list(pipe.parameters()), lr=0.01) if list(pipe.parameters()) else None
    pipe.step(*make_batch(0))
    if optimizer is not None:
        optimizer.step()
    return pipe.state_dict()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.middle, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.last.weight = self.first.weight
        self.double()

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


class Branching(nn.Module):
    """What it computes depends on its mode."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(FEATURES, 3), nn.Linear(3, 3)
        self.double()

    def forward(self, x):
        return self.two(self.one(x)) if self.training else self.one(x)


class Shifted(nn.Module):
    """The same buffer in two layers."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm1d(5), nn.BatchNorm1d(5)])
        self.double()
        self.norms[1].running_mean = self.norms[0].running_mean

    def forward(self, x):
        return self.norms[1](self.norms[0](x))


def refuse_steps(plan):
    """What a step says of wrong arguments on each rank, before anything is sent."""
    pipe = motley.pipeline(Net(), plan, loss_fn=mean_loss, example_inputs=make_batch(0)[0])
    inputs, targets = make_batch(0)
    said = []
    for arguments in ((None, None), (inputs[:, :2], targets), ((inputs, inputs), targets), (inputs, targets[:5]), (inputs, "text")):
        try:
            pipe.step(*arguments)
        except ValueError as problem:
            said.append(str(problem))
    return said


class PipelineRefusals(RanksTest):
    count = 2

    def test_what_does_not_fit(self):
        plan, other = make_plan(["body.0"], (1, 1)), make_plan(["norm"], (1, 1))
        other["layers"][4] = other["stages"][1]["last_layer"] = "elsewhere"
        other["stages"][1]["last_layer"] = "view"
        other["model"] = "OtherNet"
        for model, given, arguments, words in (
                (Net(), other, {}, r"plan: it is of the model 'OtherNet', and this is 'Net': after 4 layers that are alike the plan has "
                                   r"'elsewhere', and the model 'body\.0'; accepted"),
                (nn.Linear(FEATURES, 3).double(), plan, {"name": "small"}, r"'Net', and this is 'small': .*no single tensor"),
                (Net(), make_plan(["body.0"], (2, 1)), {}, r"plan: it has 3 devices, and the number of ranks is 2; accepted"),
                (Net(), plan | {"micro_batches": 0}, {}, r"^rank 0: plan: .*micro_batches.*0"),
                (Net(), plan | {"parameter_shapes": [shapes.replace("12", "16") for shapes in SHAPES]}, {},
                 r"plan: its layer 'first' has parameters of the shapes 16x5, 16, and that of this model 12x5, 12; accepted"),
                (Net(), plan | {"parameter_shapes": ["12"]}, {}, r"field 'parameter_shapes' is an array of 1; accepted is an array of 10"),
                (Net(), "nowhere.json", {}, r"nowhere\.json"),
                (Net(), plan, {"device": "nowhere"}, r"device: 'nowhere': .*; accepted: a device that is here"),
                (Net(), plan, {"loss_fn": 3}, r"^rank 0: loss_fn: an int; accepted: a function"),
                (Net(), plan, {"timeout": 0}, r"^rank 0: timeout: 0; accepted: seconds"),
                (Net(), plan, {"example_inputs": 3}, r"^rank 0: example_inputs: an int; accepted: a tensor"),
                (len, plan, {}, r"^rank 0: model: a builtin_function_or_method; accepted"),
                (Shifted(), make_plan(["norms.1"], (1, 1), layers=["norms.0", "norms.1"]),
                 {}, r"layers 'norms\.0', 'norms\.1' of 'Shifted' share the buffer 'norms\.0\.running_mean' and are in the stages 0 and")):
            with self.subTest(words):
                for message in self.refused_on_ranks(refuse_model, model, given, arguments):
                    self.assertRegex(message, words)

    def test_an_argument_of_one_rank(self):
        for messages, words in ((self.refused_on_ranks(refuse_on_last, {"loss_fn": 3}), "^rank 1: loss_fn: an int; accepted: a function"),
                                (self.refused_on_ranks(refuse_on_last, {"example_inputs": make_batch(0)[0][:, :3]}),
                                 "mat1 and mat2 shapes cannot be multiplied")):
            for message in messages:
                self.assertRegex(message, words)

    def test_models_that_differ(self):
        weight = r"'0\.weight' of shape \({}, 5\) and type float64"
        for widths, words in (((12, 16), f"rank 0 has {weight.format(12)}, rank 1 has {weight.format(16)}"),
                              ((12, 12, 3), r"rank 0 has no parameter more, rank 1 has '2\.weight' of shape \(3, 12\)")):
            for message in self.refused_on_ranks(refuse_widths, widths):
                self.assertRegex(message, f"^ranks differ in their parameters: {words}.*; accepted: the same on every rank")

    def test_batches_of_different_sizes(self):
        for message in self.refused_on_ranks(step_with_other_rows, make_plan(["body.0"], (1, 1))):
            self.assertRegex(message, r"ranks have batches of different sizes, or call .* \(rank 1 has 24 rows\)")

    def test_wrong_batches(self):
        first, last = self.on_ranks(refuse_steps, make_plan(["body.0"], (1, 1)))
        for message, words in zip(first, (r"^inputs: None; accepted", r"^inputs\[0\]: samples of shape \(2,\); accepted: \(5,\)",
                                          r"^inputs: Tensor, Tensor; accepted: .* 1,", r"they have 5 and 24 rows", r"^targets: a str"),
                                  strict=True):
            self.assertRegex(message, words)
        self.assertRegex(last[0], "^targets: None; accepted")


def refuse_model(model, plan, arguments):
    if isinstance(model, nn.Module):
        model = copy.deepcopy(model)  # it came in memory that the ranks share
    refuse(model, plan, **arguments)


def step_with_other_rows(plan):
    """Rank 1 is given targets of 24 rows, rank 0 inputs of 12."""
    pipe = motley.pipeline(Net(), plan, loss_fn=mean_loss, example_inputs=make_batch(0)[0], timeout=30)
    inputs, targets = make_batch(0)
    pipe.step(*((None, targets) if dist.get_rank() else (inputs[:12], None)))


def refuse_on_last(arguments):
    refuse(Net(), make_plan(["body.0"], (1, 1)), **(arguments if dist.get_rank() else {}))


def refuse_widths(widths):
    """Rank 0's model has the first width, rank 1's the second, and another layer where there is a third."""
    model = nn.Sequential(nn.Linear(FEATURES, widths[dist.get_rank()]), nn.Tanh()).double()
    if dist.get_rank() and len(widths) == 3:
        model.append(nn.Linear(widths[1], widths[2]).double())
    refuse(model, make_plan(["1"], (1, 1), layers=["0", "1"]))


SCRIPT = """
import os, sys
sys.path.insert(0, os.environ["TESTS"])
import torch, torch.distributed as dist, motley
from datetime import timedelta
from pipelines import Net, make_batch, make_plan, mean_loss
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=os.environ["INIT"], rank=rank, world_size=3, timeout=timedelta(seconds=20))
class Dies(torch.nn.Module):
    def forward(self, x):
        if rank == int(os.environ["DIES"]) and pipe is not None and pipe._steps == 1:
            os._exit(9)
        return x
pipe = None
net = Net()
net.body[1][1] = Dies()
pipe = motley.pipeline(net, make_plan(["norm", os.environ["CUT"]], (1, 1, 1)), loss_fn=mean_loss, example_inputs=make_batch(0)[0])
for step in range(3):
    pipe.step(*make_batch(step))
    print("finished", step, flush=True)
    if os.environ["EVALUATES"] == "yes":
        pipe.evaluate(*make_batch(step))
        print("evaluated", step, flush=True)
"""


class Losses(unittest.TestCase):
    def test_a_rank_that_is_killed(self):
        for dies, cut, evaluates in ((1, "last", "no"), (2, "body.0", "no"), (1, "last", "yes")):
            with self.subTest(dies=dies, evaluates=evaluates):
                ends = run_scripts(SCRIPT, 3, DIES=dies, CUT=cut, EVALUATES=evaluates, TESTS=pathlib.Path(__file__).parent)
                self.assertEqual(ends[dies][0], 9)
                for rank, (code, text) in enumerate(ends):
                    self.assertIn("finished 0", text)
                    self.assertNotRegex(text, "finished 1|evaluated 0")
                    if rank != dies:
                        self.assertEqual(code, 1, text)
                        at = "evaluation before step" if evaluates == "yes" else "step"
                        self.assertRegex(text, rf"RuntimeError: {at} 1, (micro-batch \d, \w+ward|loss): rank {dies} ended")


FAILING_SCRIPT = """
import os, sys
sys.path.insert(0, os.environ["TESTS"])
import torch, torch.distributed as dist, motley
from datetime import timedelta
from pipelines import Net, make_batch, make_plan, mean_loss
rank, where = int(os.environ["RANK"]), os.environ["WHERE"]
dist.init_process_group("gloo", init_method=os.environ["INIT"], rank=rank, world_size=3, timeout=timedelta(seconds=60))
pipe = None
def fail(place):
    if place == where and rank == int(os.environ["FAILS"]) and pipe is not None and pipe._steps == 1:
        raise KeyError("a\\x1b[2J" + "b" * 5000)
class Fails(torch.nn.Module):
    def forward(self, x):
        fail("layer")
        return x
def loss(outputs, targets):
    fail("loss")
    return mean_loss(outputs, targets)
net = Net()
net.body[1][1] = Fails()
replicas = (1, 1, 1) if os.environ["STAGES"] == "3" else (2, 1)
plan = make_plan(["norm", "last"] if len(replicas) == 3 else ["last"], replicas)
pipe = motley.pipeline(net, plan, loss_fn=loss, example_inputs=make_batch(0)[0])
for step in range(3):
    fail("script")
    pipe.step(*make_batch(step))
    print("finished", step, flush=True)
"""


class PipelineFailures(unittest.TestCase):
    def test_an_exception_of_one_rank_is_told_to_the_others(self):
        for fails, where, stages in ((2, "loss", 3), (1, "script", 3), (1, "layer", 2)):
            with self.subTest(fails=fails, where=where, stages=stages):
                ends = run_scripts(FAILING_SCRIPT, 3, FAILS=fails, WHERE=where, STAGES=stages, TESTS=pathlib.Path(__file__).parent)
                for rank, (code, text) in enumerate(ends):
                    self.assertEqual(code, 1, text)
                    self.assertIn("finished 0", text)
                    self.assertNotIn("finished 1", text)
                    if rank != fails:
                        self.assertRegex(text, rf"RuntimeError: (step 1, .*: )?rank {fails} failed: KeyError: 'a[\\]+x1b\[2Jb{{300,500}}\n")


class Alone(unittest.TestCase):
    def test_without_torch_distributed(self):
        net = Net()
        pipe = motley.pipeline(net, make_plan(micro_batches=3), loss_fn=mean_loss, example_inputs=make_batch(0)[0])
        loss = pipe.step(*make_batch(0))
        other = Net()
        inputs, targets = make_batch(0)
        expected = mean_loss(other(inputs), targets)
        expected.backward()
        self.assertLess(abs(loss.item() - expected.item()), 1e-12)
        for name, parameter in other.named_parameters():
            own = dict(pipe.named_parameters())[name].grad
            self.assertEqual(own is None, parameter.grad is None, name)
            if own is not None:
                self.assertLess((own - parameter.grad).abs().max(), 1e-12, name)
        with self.assertRaisesRegex(ValueError, r"^state: 'unused' is missing; accepted: a tensor of shape \(2,\)"):
            pipe.load_state_dict({})

    def test_evaluations_that_are_refused(self):
        pipe = motley.pipeline(Net(), make_plan(), loss_fn=mean_loss, example_inputs=make_batch(0)[0])
        for fn, found in ((lambda outputs, targets: 3.0, "float"), (lambda outputs, targets: outputs, r"tensor of shape \(6, 3\)"),
                          (lambda outputs, targets: outputs[:0, 0], r"tensor of shape \(0,\)")):
            with self.assertRaisesRegex(ValueError, f"^fn: it gave a {found}; accepted: a function that gives a tensor of one value"):
                pipe.evaluate(*make_batch(0), fn)
        lengths = iter((1, 2))
        with self.assertRaisesRegex(ValueError, r"^fn: it gave a tensor of shape \(2,\); accepted: .* shape \(1,\), as before"):
            pipe.evaluate(*make_batch(0), lambda outputs, targets: torch.ones(next(lengths)))
        branching = motley.pipeline(Branching(), make_plan(layers=["one", "two"]) | {"model": "Branching"}, loss_fn=mean_loss,
                                    example_inputs=make_batch(0)[0])
        branching.step(*make_batch(0))
        with self.assertRaisesRegex(ValueError, "^evaluate: in training it has the layer 'one' where it has 'Branching' in .*; accepted"):
            branching.evaluate(*make_batch(0))

    def test_rows_add_up_to_the_shares(self):
        layout = _Layout(make_plan(["norm"], ([0.5, 0.2, 0.3], 1)) | {"micro_batches": 10})
        for batch in (1, 7, 40, 100):
            micro_batches = layout.cut(batch)
            self.assertEqual(sum(micro_batch.size for micro_batch in micro_batches), batch)
            for micro_batch in micro_batches:
                ends = [layout.rows(rank, micro_batch) for rank in range(3)]
                self.assertEqual([begin for begin, _ in ends] + [micro_batch.size], [0] + [end for _, end in ends])
        total = [sum(end - begin for begin, end in (layout.rows(rank, one) for one in layout.cut(100))) for rank in range(3)]
        self.assertEqual(total, [50, 20, 30])

    def test_a_schedule_does_everything_once(self):
        for schedule, stages, count in itertools.product(("1f1b", "gpipe"), (1, 3), (1, 2, 5)):
            layout = _Layout(make_plan(["norm", "add"][:stages - 1], (1,) * stages, schedule=schedule))
            for stage in range(stages):
                tasks = list(layout.tasks(stage, count))
                self.assertEqual(sorted(tasks), sorted(itertools.product((False, True), range(count))))
                alive = most = 0
                for number, (is_forward, _) in enumerate(tasks):
                    alive += 1 if is_forward else -1
                    most = max(most, alive)
                    self.assertGreaterEqual(alive, 0, number)
                self.assertEqual(most, count if schedule == "gpipe" else min(count, stages - stage))

    @unittest.skipUnless(torch.cuda.is_available(), "there is no CUDA device")
    def test_on_a_gpu(self):
        net = Net()
        pipe = motley.pipeline(net, make_plan(micro_batches=3), loss_fn=mean_loss, example_inputs=make_batch(0)[0], device="cuda")
        loss = pipe.step(*make_batch(0))
        inputs, targets = make_batch(0)
        self.assertLess(abs(loss.item() - mean_loss(Net()(inputs), targets).item()), 1e-9)
        self.assertTrue(all(parameter.is_cuda for parameter in pipe.parameters()))


if __name__ == "__main__":
    sys.exit(unittest.main())
