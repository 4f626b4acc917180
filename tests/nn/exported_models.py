"""Writes the networks of the tests as torch.export has them, and what PyTorch itself computes with them.

  exported_models.py FOLDER           NAME.pt2 for each network, NAME.pt with the reference for those that have one
  exported_models.py FOLDER gpt2      only GPT-2 of the package transformers, which is not everywhere

A reference is a dictionary: inputs, the outputs in training and in evaluation, the gradients of sum(output * weights) in training, and the
buffers after one forward pass in training, all in float64.
"""

import copy
import pathlib
import sys

import torch
from torch import nn

SEED = 5  # of the random numbers of forward


class Scaled(nn.Module):
    """A linear layer of one's own, of several operators."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return torch.add(torch.matmul(x, self.weight.t()), self.bias)


Scaled.__name__ = Scaled.__qualname__ = "Linear"


class Net(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.fc1 = nn.Linear(12, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.drop = nn.Dropout(0.5)
        self.fc2 = nn.Linear(hidden, 3)

    def forward(self, x):
        return self.fc2(self.drop(torch.relu(self.norm(self.fc1(x.flatten(1))))))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                                      nn.Dropout2d(0.3), nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8, track_running_stats=False), nn.GELU())
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(32, 10), nn.ReLU(), nn.Dropout(0.5), nn.Linear(10, 4))

    def forward(self, x):
        return self.classifier(self.features(x))


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(Residual(8, 8, 1), Residual(8, 8, 1))
        self.layer2 = nn.Sequential(Residual(8, 16, 2), Residual(16, 16, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 4)

    def forward(self, x):
        x = self.layer2(self.layer1(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.positions = nn.Parameter(torch.randn(1, 5, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.encoder(x)[:, 0])


class Attend(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))

    def forward(self, x, mask):
        y = self.norm(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(x)


class Language(nn.Module):
    """Token ids to values before softmax: a mask that is made in forward, a constant, statistics without gradients, tied weights."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(20, 8)
        self.position = nn.Embedding(16, 8)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Attend(8) for _ in range(2))
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.token.weight
        self.register_buffer("scale", torch.full((1,), 1.5), persistent=False)

    def forward(self, ids):
        length = ids.shape[1]
        x = self.drop(self.token(ids) + self.position(torch.arange(length, device=ids.device))) * self.scale
        mask = torch.zeros(length, length, device=ids.device)
        mask.masked_fill_(torch.ones(length, length, device=ids.device).triu(1).bool(), float("-inf"))
        for block in self.blocks:
            x = block(x, mask)
        with torch.no_grad():
            size = x.to(self.token.weight.dtype).square().mean(-1, keepdim=True)
        with torch.autocast(x.device.type, enabled=False):
            x = x * torch.rsqrt(size + 1e-6)
        return self.head(x) + torch.tensor([0.5])


class Sparse(nn.Module):
    """A table whose gradient is sparse in PyTorch."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(20, 8, sparse=True)
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        return self.head(self.token(ids).mean(1))


class Positions(nn.Module):
    """Angles that need all digits of float32, as rotary embeddings have them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", 10000 ** (-torch.arange(0, 4) / 4))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            angles = x.float() @ self.frequencies[None, :].float()
        return torch.sin(angles) * self.scale


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.InstanceNorm2d(3, affine=True, track_running_stats=True)

    def forward(self, x):
        return self.norm(x)


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = Features()
        self.classifier = Scaled(6, 3)

    def forward(self, x):
        return self.classifier(torch.tanh(self.features(x.flatten(1))))


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = Scaled(12, 8)
        self.b = Scaled(8, 6)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = Scaled(4, 4), Scaled(4, 4), Scaled(4, 2)

    def forward(self, x):
        y = self.first(x)
        return self.last(self.second(torch.relu(y)) + y)


class NoChain(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = Scaled(4, 4)

    def forward(self, x):
        return self.left(x) * x


class Inplace(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = Scaled(4, 4), Scaled(4, 2)

    def forward(self, x):
        return self.last(torch.relu_(self.first(x)))


class AnyLength(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = Scaled(1, 2)

    def forward(self, x):
        return self.last(x.sum(1, keepdim=True))


class Parts(nn.Module):
    """A residual block, a buffer, and a tensor that nothing reads. Tied, its last layer reads tensors of the first."""

    def __init__(self, tied):
        super().__init__()
        self.first = nn.Parameter(torch.randn(6, 6, dtype=torch.float64))
        self.second = nn.Parameter(torch.randn(6, 6, dtype=torch.float64))
        self.third = self.first if tied else nn.Parameter(torch.randn(6, 6, dtype=torch.float64))
        self.unused = nn.Parameter(torch.randn(2, dtype=torch.float64))
        self.register_buffer("shift", torch.randn(6, dtype=torch.float64))
        self.tied = tied

    def forward(self, x):
        x = torch.matmul(x, self.first)
        if self.tied:
            x = x + self.shift
        x = torch.relu(x)
        x = torch.matmul(x, self.second) + x
        x = torch.tanh(x)
        return torch.matmul(x, self.third) + self.shift


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3) * 0.1)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return torch.matmul(x, self.weight.t()) + self.bias * self.frozen


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x, y):
        return x * y * self.scale, x + y


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: self.layer(y), lambda y: self.layer(-y), (x,))


def export(net, args, path, dims=({0: "batch"},), free_batch=True):
    names = {}
    shapes = tuple({dim: names.setdefault(name, torch.export.Dim(name)) for dim, name in one.items()} for one in dims)
    if len(shapes) == 1:
        shapes = shapes * len(args)
    program = torch.export.export(net.train(), args, dynamic_shapes=shapes if free_batch else None, strict=False)
    torch.export.save(program, path)


def reference(net, inputs):
    """Of the module in float64, with random numbers from the seed SEED, on other samples than it was exported with."""
    net = copy.deepcopy(net).double()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    kept = {"input": inputs}
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    torch.manual_seed(SEED)
    output = net.train()(inputs)
    output = getattr(output, "logits", output)
    kept["train"] = output.detach()
    kept["weights"] = torch.randn_like(output)
    (output * kept["weights"]).sum().backward()
    gradients = {name: parameter.grad for name, parameter in net.named_parameters() if parameter.grad is not None}
    kept.update({f"gradient.{name}": gradient.to_dense() for name, gradient in gradients.items()})
    kept.update({f"buffer.{name}": value.clone() for name, value in net.named_buffers()})
    for name, value in net.named_buffers():
        value.copy_(buffers[name])
    with torch.no_grad():
        output = net.eval()(inputs)
    kept["eval"] = getattr(output, "logits", output)
    return kept


def write(folder, name, net, inputs, **more):
    torch.manual_seed(3)
    export(net, (inputs(4),), folder / f"{name}.pt2", **more)
    torch.save(reference(net, inputs(3)), folder / f"{name}.pt")


def images(*shape):
    return lambda samples: torch.randn(samples, *shape)


def write_gpt2(folder):
    import transformers

    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, use_cache=False)
    net = transformers.GPT2LMHeadModel(config)

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, ids):
            return self.net(ids).logits

    write(folder, "gpt2", Logits(), lambda samples: torch.randint(50, (samples, 12)))


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    if sys.argv[2:] == ["gpt2"]:
        write_gpt2(folder)
        return
    write(folder, "net", Net(), images(3, 2, 2))
    write(folder, "images", Images(), images(3, 8, 8))
    write(folder, "resnet", ResNet(), images(3, 8, 8))
    write(folder, "vit", ViT(), images(3, 8, 8))
    write(folder, "language", Language(), lambda samples: torch.randint(20, (samples, 7)))
    for name, net, shape in (("chain", Chain(), (3, 4)), ("skip", Skip(), (4,)), ("no_chain", NoChain(), (4,)),
                             ("inplace", Inplace(), (4,)), ("frozen", Frozen(), (3,)), ("positions", Positions(), (1,)),
                             ("normalised", Normalised(), (3, 4, 4))):
        export(net, (torch.randn(5, *shape),), folder / f"{name}.pt2")
    export(AnyLength(), (torch.randn(5, 6),), folder / "any_length.pt2", dims=({0: "batch", 1: "length"},))
    export(Several(), (torch.randn(5), torch.randn(5)), folder / "several.pt2")
    for tied in (False, True):
        export(Parts(tied), (torch.randn(5, 6, dtype=torch.float64),), folder / f"parts_{'tied' if tied else 'untied'}.pt2")
    write(folder, "sparse", Sparse(), lambda samples: torch.randint(20, (samples, 7)))
    # What is refused.
    export(Frozen(), (torch.randn(5, 3),), folder / "fixed_batch.pt2", free_batch=False)
    export(Branches(), (torch.randn(5, 4),), folder / "branches.pt2")
    torch.save({"weight": torch.ones(2)}, folder / "weights.pt2")
    torch.jit.script(Frozen()).save(folder / "script.pt2")
    (folder / "done").touch()


if __name__ == "__main__":
    main()
