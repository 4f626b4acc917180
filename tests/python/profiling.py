"""motley.profile against what PyTorch itself says of the same modules: layers, sizes, and outputs of the layers one after the other."""
import copy
import itertools
import json
import pathlib
import subprocess
import tempfile
import unittest

import torch
from harness import BINARY
from torch import nn

import motley
from motley._layers import as_tuple, cut
from motley._profile import fit_line

together = "importing takes longer than most tests"

TWO_CORES = {"version": 2, "device_types": [{"name": "cpu", "kind": "cpu", "count": 2, "memory": "4 GB"}],
             "nodes": [{"name": "here", "devices": [{"type": "cpu", "count": 2}]}],
             "links": [{"from": "here", "to": "here", "bandwidth": "1 GB/s", "latency": "50 us"}]}


def make_cnn():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 13 * 13, 10))


class Block(nn.Module):
    def __init__(self, width, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width // stride, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Sequential(nn.Conv2d(width // stride, width, 1, stride, bias=False), nn.BatchNorm2d(width)) if stride > 1 else None

    def forward(self, x):
        skipped = x if self.down is None else self.down(x)
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + skipped)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(Block(8), Block(8))
        self.layer2 = nn.Sequential(Block(16, 2), Block(16))
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 5)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(self.pool(x), 1))


class Language(nn.Module):
    """Token and position embeddings, blocks, numbers from shapes that are used far from where they come from, and a condition."""

    def __init__(self, norm_first=False):
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 16), nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=norm_first)
        self.blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.scale = nn.Parameter(torch.ones(16))
        self.head = nn.Linear(16, 20)

    def forward(self, ids):
        rows, length = ids.shape
        assert length <= 12
        x = self.tokens(ids) + self.places(torch.arange(length, device=ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device)
        x = self.blocks(x, mask=mask, is_causal=True) * self.scale
        return self.head(x).view(rows, length, 20)


class Own(nn.Module):
    """Parameters of its own, a function of parameters alone, dropout as a function, two inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.weight, self.last = nn.Linear(4, 6), nn.Parameter(torch.randn(6, 6)), nn.Linear(6, 3)
        self.register_buffer("shift", torch.arange(6.0))

    def forward(self, x, y):
        x = self.first(x + y)
        rows = x.size(0)
        x = torch.nn.functional.dropout(x, 0.3, self.training)
        x = x @ (self.weight / self.weight.norm()) + self.shift
        for _ in range(2):
            x = torch.relu(x)
        return self.last(x).reshape(rows, -1)


class Tangled(nn.Module):
    """Every part reads the input."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.a(x) * x) + x


class UNet(nn.Module):
    """Skip connections bypass blocks, one within the other."""

    def __init__(self):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.2))
        self.up2 = nn.Sequential(nn.Conv2d(16, 4, 3, padding=1), nn.Upsample(scale_factor=2))
        self.up1 = nn.Sequential(nn.Conv2d(8, 2, 3, padding=1), nn.Flatten())

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(first)
        x = self.up2(torch.cat([self.middle(second), second], 1))
        return self.up1(torch.cat([x, first], 1))


class Bypassed(nn.Module):
    """One layer but for its submodules without submodules."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.c(self.b(self.a(x)) * x) + x


class Random(nn.Module):
    """What it computes depends on more than its input."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.a(x)
        return self.b(x * float(torch.rand(1)))


class Secluded(nn.Module):
    """Gradients end in the middle of its forward."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            x = self.a(x)
        return self.b(x)


MODELS = {
    "cnn": (make_cnn, lambda rows: (torch.randn(rows, 1, 28, 28),), ["0", "1", "2", "3", "4", "5"]),
    "resnet": (ResNet, lambda rows: (torch.randn(rows, 3, 8, 8),),
               ["conv1", "bn1..relu", "layer1.0", "layer1.1", "layer2.0", "layer2.1", "pool", "flatten", "fc"]),
    "language": (Language, lambda rows: (torch.randint(20, (rows, 7)),), None),
    "own": (Own, lambda rows: (torch.randn(rows, 4), torch.randn(rows, 4)),
            ["add", "first", "dropout", "matmul", "add#2", "relu", "relu#2", "last", "reshape"]),
    "unet": (UNet, lambda rows: (torch.randn(rows, 1, 8, 8),),
             ["down1.0", "down1.1", "down2", "middle..cat", "up2..cat", "up1.0", "up1.1"]),
    "bypassed": (Bypassed, lambda rows: (torch.randn(rows, 4),), ["a", "b..mul", "c..add"]),
    "lstm": (lambda: nn.Sequential(nn.Linear(4, 8), nn.LSTM(8, 8, batch_first=True)), lambda rows: (torch.randn(rows, 5, 4),), ["0", "1"]),
}


def list_tensors(value):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


class Cutting(unittest.TestCase):
    def test_layers_compute_what_the_module_does(self):
        for name, (make, inputs, expected) in MODELS.items():
            with self.subTest(name):
                torch.manual_seed(1)
                model = make().train()
                state = copy.deepcopy(model.state_dict())
                chain = cut(model, inputs(3), "model")
                self.assertEqual(chain.note, "")
                if expected is not None:
                    self.assertEqual([layer.name for layer in chain.layers], expected)
                for key, value in model.state_dict().items():
                    self.assertTrue(torch.equal(value, state[key]), f"{key} was changed")
                values = given = inputs(5)  # not a batch that it was cut with
                other = copy.deepcopy(model)
                torch.manual_seed(2)
                for layer in chain.layers:
                    values = layer.forward(*as_tuple(values))
                torch.manual_seed(2)
                for one, two in zip(list_tensors(values), list_tensors(other(*given)), strict=True):
                    self.assertTrue(torch.equal(one, two))

    def test_each_parameter_is_in_a_layer(self):
        for name, (make, inputs, _) in MODELS.items():
            with self.subTest(name):
                model = make()
                chain = cut(model, inputs(3), "model")
                found = list(itertools.chain(*(layer.tensors for layer in chain.layers)))
                self.assertEqual(sorted(found), sorted([*dict(model.named_parameters()), *dict(model.named_buffers())]))

    def test_what_cannot_be_cut_is_one_layer_and_says_why(self):
        hooked = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        hooked.register_forward_hook(lambda *_: None)
        for model, why in ((Tangled(), "no single tensor"), (Random(), "depends on more|cannot be traced"), (Secluded(), "gradient"),
                           (hooked, "hooks"), (nn.Linear(4, 4), "no single tensor")):
            with self.subTest(type(model).__name__):
                chain = cut(model, (torch.randn(3, 4),), "model")
                self.assertEqual([layer.name for layer in chain.layers], ["model"])
                self.assertRegex(chain.note, why)

    def test_a_block_whose_rows_are_not_first_is_not_cut(self):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0)  # sequence first

        class Turned(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.layer, self.second = nn.Linear(8, 8), layer, nn.Linear(8, 8)

            def forward(self, x):
                return self.second(self.layer(self.first(x).transpose(0, 1)).transpose(0, 1))

        names = [one.name for one in cut(Turned(), (torch.randn(3, 5, 8),), "model").layers]
        self.assertEqual(names, ["first", "transpose", "second"])


class Profiling(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.inputs = make_cnn(), torch.randn(4, 1, 28, 28)
        cls.before = copy.deepcopy(cls.model.state_dict())
        random = torch.get_rng_state()
        cls.profile = motley.profile(cls.model, cls.inputs, loss=nn.functional.cross_entropy, example_targets=torch.tensor([1, 2, 3, 4]),
                                     batch_sizes=[1, 4, 8], seconds=0.5, scale={"slow": 3}, name="small")
        cls.is_random_left = torch.equal(torch.get_rng_state(), random)

    def test_layers_and_sizes_are_those_of_the_modules(self):
        layers = self.profile.data["graph"]["layers"]
        self.assertEqual([layer["name"] for layer in layers], [*dict(self.model.named_children()), "step"])
        self.assertEqual([layer["kind"] for layer in layers],
                         ["convolution", "normalization", "activation", "pooling", "other", "fully-connected", "loss"])
        value = self.inputs
        for layer, module in zip(layers, copy.deepcopy(self.model)):
            value = module(value)
            self.assertEqual(layer["activation_bytes"], value[0].nbytes)
            self.assertEqual(layer.get("parameters", 0) * 4, sum(parameter.nbytes for parameter in module.parameters()))
        self.assertEqual(self.profile.data["graph"]["input_bytes"], self.inputs[0].nbytes)

    def test_times_are_positive_and_their_lines_rise(self):
        for device in self.profile.data["devices"]:
            for layer in device["layers"][:-1]:
                for way in ("forward", "backward"):
                    line = {"fixed": 0, "per_sample": 0} | layer[way]
                    self.assertGreater(sum(line.values()), 0)
                    self.assertGreaterEqual(min(line.values()), 0)
        here, slow = self.profile.data["devices"]
        self.assertEqual((here["type"], here["origin"], slow["type"], slow["origin"]), ("cpu", "measured", "slow", "scaled"))
        for part, value in here["layers"][0]["backward"].items():
            self.assertAlmostEqual(slow["layers"][0]["backward"][part], 3 * value)
        sizes = {measurement["batch_size"] for measurement in here["layers"][0]["measurements"]}
        self.assertLessEqual(sizes, {1, 4, 8})
        self.assertGreater(here["layers"][0]["update_seconds"], 0)
        self.assertEqual(here["layers"][2].get("update_seconds", 0), 0)

    def test_it_says_how_quiet_the_machine_was(self):
        noise = self.profile.data["devices"][0]["noise"]
        self.assertGreaterEqual(noise["pass_spread"], 0)
        self.assertGreater(noise["drift"], -1)
        for part in ("others_fraction", "stolen_fraction"):
            self.assertTrue(0 <= noise[part] <= 1, noise)
        self.assertIn("how quiet it was: ", str(self.profile))

    def test_the_model_is_left_as_it_was(self):
        for key, value in self.model.state_dict().items():
            self.assertTrue(torch.equal(value, self.before[key]), key)
        self.assertTrue(all(parameter.grad is None for parameter in self.model.parameters()))
        self.assertTrue(self.is_random_left)

    def test_a_layer_that_does_not_train_stays_so(self):
        model = make_cnn()
        model[1].eval()
        motley.profile(model, self.inputs, batch_sizes=[4], seconds=0.05)
        self.assertEqual([layer.training for layer in model], [True, False, True, True, True, True])

    def test_it_prints_a_table(self):
        lines = str(self.profile).splitlines()
        self.assertRegex(lines[0], r"^small: 7 layers, forward \+ backward of a batch of \d+$")
        self.assertRegex(lines[2], r"^0 +convolution +80 +21\.6 +\S+ \+ \S+ +\S+ \+ \S+$")
        self.assertLess(len(lines), 15)
        self.assertEqual(len(self.profile.rows()), 14)

    def test_plans_are_made_of_it_and_the_program_reads_it(self):
        plan = motley.plan(self.profile, TWO_CORES, global_batch_size=32)
        self.assertEqual(plan.data["layers"], list(dict(self.model.named_children())))
        self.assertEqual(plan.data["parameter_shapes"], [
            ", ".join("x".join(map(str, parameter.shape)) for parameter in layer.parameters()) for layer in self.model.children()])
        with tempfile.TemporaryDirectory() as folder:
            self.profile.save(pathlib.Path(folder, "profile.json"))
            pathlib.Path(folder, "cluster.yaml").write_text(json.dumps(TWO_CORES))
            done = subprocess.run([BINARY, "plan", "--profile", "profile.json", "--cluster", "cluster.yaml", "--global-batch-size", "32",
                                   "--output", "plan.json"], cwd=folder, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(pathlib.Path(folder, "plan.json").read_text())["layers"], plan.data["layers"])
            self.assertEqual(motley.Profile.load(pathlib.Path(folder, "profile.json")), self.profile)

    def test_profiles_of_several_machines_are_combined(self):
        """Put together again, the parts of a profile are the profile."""
        whole = self.profile.data
        parts = [motley.Profile(json.dumps(whole | {"devices": [device], "links": links}))
                 for device, links in zip(whole["devices"], (whole["links"], []))]
        combined = parts[0].combine(parts[1])
        self.assertEqual(combined.data, whole)
        plans = [motley.plan(profile, TWO_CORES, global_batch_size=32) for profile in (combined, self.profile)]
        self.assertEqual(plans[0].stages, plans[1].stages)
        other = json.loads(parts[1].json)
        other["graph"]["layers"][0]["parameters"] = 7
        for profile, words in ((parts[0], "the device type 'cpu' is in two profiles"),
                               (motley.Profile(json.dumps(other)), "accepted: profiles of one model")):
            with self.assertRaisesRegex(ValueError, words):
                parts[0].combine(profile)

    def test_a_module_of_one_layer(self):
        profile = motley.profile(Tangled(), torch.randn(2, 4), batch_sizes=[2], seconds=0.01, device_type="core")
        self.assertEqual([layer["name"] for layer in profile.data["graph"]["layers"]], ["Tangled", "step"])
        self.assertIn("no single tensor", str(profile))
        self.assertEqual(profile.data["devices"][0]["type"], "core")

    def test_the_arrays_of_the_optimizers_state_are_counted(self):
        for make, arrays in ((torch.optim.SGD, 0), (None, 1), (torch.optim.AdamW, 2), (lambda p: torch.optim.Adam(p, amsgrad=True), 3)):
            profile = motley.profile(nn.Linear(4, 4), torch.randn(2, 4), optimizer=make, batch_sizes=[2], seconds=0.01)
            self.assertEqual(profile.data["state_arrays"], arrays)

    def test_what_crosses_a_cut_adds_up(self):
        profile = motley.profile(UNet(), torch.randn(2, 1, 8, 8), batch_sizes=[2], seconds=0.01)
        layers = {layer["name"]: layer["activation_bytes"] for layer in profile.data["graph"]["layers"]}
        first, second = 4 * 8 * 8, 8 * 4 * 4
        self.assertEqual([layers[name] for name in ("down1.1", "down2", "middle..cat", "up2..cat", "up1.0")],
                         [4 * first, 4 * (first + second), 4 * (first + 2 * second), 4 * 2 * first, 4 * 2 * 8 * 8])

    def test_what_is_kept_for_backward_is_counted_once(self):
        profile = motley.profile(nn.Sequential(nn.Linear(4, 8), nn.Sequential(ThreeTimes(), nn.Linear(8, 2))), torch.randn(2, 4),
                                 batch_sizes=[2], seconds=0.01)
        layers = {layer["name"]: layer.get("inner_bytes") for layer in profile.data["graph"]["layers"]}
        self.assertEqual(layers["1.0"], 2 * 8 * 4)  # of three outputs the last is that of the layer

    def test_bad_input(self):
        model, inputs = self.model, self.inputs
        for call, words in (
                (lambda: motley.profile(len, inputs), r"^model: a builtin_function_or_method; accepted: a torch\.nn\.Module"),
                (lambda: motley.profile(model, [1, 2]), r"^example_inputs: an int; accepted: a tensor"),
                (lambda: motley.profile(model, ()), r"^example_inputs: an empty tuple; accepted"),
                (lambda: motley.profile(model, torch.tensor(1.0)), r"^example_inputs\[0\]: its shape is \(\); accepted: a row a sample"),
                (lambda: motley.profile(model, inputs.to("meta")), r"^example_inputs\[0\]: it is on 'meta', and the model on 'cpu'"),
                (lambda: motley.profile(copy.deepcopy(model).to("meta"), inputs), r"^model: .*'meta'"),
                (lambda: motley.profile(model, inputs, device="x"), r"^device: 'x': .*; accepted: a device that is here, such as 'cpu'"),
                (lambda: motley.profile(model, inputs, scale=5), r"^scale: 5; accepted: factors by the names of device types"),
                (lambda: motley.profile(model, inputs, loss=5), r"^loss: 5; accepted: a function of outputs"),
                (lambda: motley.profile(model, inputs, optimizer=5), r"^optimizer: 5; accepted: a function of parameters"),
                (lambda: motley.profile(model, inputs, device="cuda:0"), r"^device: 'cuda:0', but the model is on 'cpu'; accepted"),
                (lambda: motley.profile(model, inputs, seconds=-1), r"^seconds: -1; accepted: a number above 0"),
                (lambda: motley.profile(model, inputs, batch_sizes=[4, 4]), r"^batch_sizes: \[4, 4\]; accepted: integers from 1"),
                (lambda: motley.profile(model, inputs, scale={"gpu": 0}), r"^scale\['gpu'\]: 0; accepted: a number above 0"),
                (lambda: motley.profile(model, inputs, example_targets=torch.ones(3)), r"^example_targets: .*; accepted: tensors of 4"),
                (lambda: motley.profile(model, inputs, loss=lambda out: out, seconds=1), r"^loss: .*; accepted: .*one value"),
                (lambda: motley.profile(model, inputs, optimizer=list, seconds=1), r"^optimizer: it gave a list; accepted"),
                (lambda: motley.profile(model, inputs, optimizer=torch.optim.LBFGS, seconds=1), r"^optimizer: it gave an LBFGS, which")):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                call()

    @unittest.skipUnless(torch.cuda.is_available(), "there is no CUDA device")
    def test_a_gpu(self):
        profile = motley.profile(make_cnn().cuda(), self.inputs.cuda(), batch_sizes=[4, 64], seconds=1)
        self.assertEqual(profile.data["devices"][0]["type"], "cuda")
        for layer in profile.data["devices"][0]["layers"][:-1]:
            self.assertGreater(sum(layer["forward"].values()), 0)


class ThreeTimes(nn.Module):
    def forward(self, x):
        return torch.tanh(torch.tanh(torch.tanh(x)))


class Lines(unittest.TestCase):
    def test_a_line_through_points_on_one(self):
        line = fit_line([(rows, 0.5 + 0.25 * rows) for rows in (1, 4, 16, 64)])
        self.assertAlmostEqual(line["fixed"], 0.5)
        self.assertAlmostEqual(line["per_sample"], 0.25)

    def test_one_point_that_is_far_off_counts_for_little(self):
        line = fit_line([(1, 0.75), (4, 1.5), (16, 45.0), (32, 8.5), (64, 16.5)])
        self.assertAlmostEqual(line["fixed"] + 10 * line["per_sample"], 3.0, delta=0.3)

    def test_neither_part_is_below_zero(self):
        for points in ([(1, 1.0), (4, 16.0), (16, 256.0)], [(1, 5.0), (4, 4.0), (16, 3.0)], [(8, 2.0)]):
            line = fit_line(points)
            self.assertGreaterEqual(min(line.values()), 0)
            self.assertGreater(line["fixed"] + line["per_sample"], 0)


if __name__ == "__main__":
    unittest.main()
