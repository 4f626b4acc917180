"""PyTorch's DistributedDataParallel on Gloo as a peer for networks with embedding lookups (docs/explanation/embeddings.md): each rank
has the whole table as EmbeddingBag(sparse=True), and all gather each other's gradients of rows. Devices are emulated:
after its real work a rank sleeps until its device would have done each layer, forward and backward; gradients of a
layer may leave before the layer's sleep.

    gloo_clicks.py RANK RANKS HOST:PORT INTERFACE STEPS SAMPLES NETWORK LAYERS

SAMPLES a rank and step, of 13 numbers and 26 ids; NETWORK is ctrdnn, 2emb, matchnet or nce; LAYERS is a JSON file of
[{"name", "forward", "backward"}] in seconds of a rank's samples. All ranks begin a step together. Rank 0 prints the
median seconds of a step, the first left out.
"""

import json
import math
import os
import statistics
import sys
import time

rank, ranks, rendezvous, interface, steps, samples, network, file = sys.argv[1:]
os.environ["GLOO_SOCKET_IFNAME"] = interface
samples = int(samples)

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

FEATURES, CATEGORIES, ROWS = 13, 26, 1_000_001
USER, NEGATIVES, CONTEXT, SMALL = 12, 20, 4, 5
WIDTH = 128 if network == "nce" else 10
seconds = {layer["name"]: (layer["forward"], layer["backward"]) for layer in json.load(open(file))}


def sleep_until(moment):
    time.sleep(max(0.0, moment - time.perf_counter()))


class Mark(torch.autograd.Function):
    """Does nothing but call back when backward comes by."""

    @staticmethod
    def forward(ctx, values, function):
        ctx.function = function
        return values.view_as(values)

    @staticmethod
    def backward(ctx, gradient):
        ctx.function()
        return gradient, None


class Rows(nn.Module):
    """A row for each id: EmbeddingBag with bags of one."""

    def __init__(self, rows, width):
        super().__init__()
        self.bag = nn.EmbeddingBag.from_pretrained(torch.zeros(rows, width), freeze=False, mode="sum", sparse=True)

    def forward(self, ids):
        return self.bag(ids.reshape(-1, 1)).view(ids.shape[0], -1)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        width = FEATURES + CATEGORIES * WIDTH
        self.layers = nn.ModuleDict({"lookup": Rows(ROWS, WIDTH)})
        if network == "matchnet":
            self.linear("user_fc", [USER * WIDTH, 400, 400, 50])
            self.linear("item_fc", [width - USER * WIDTH, 400, 400, 50])
            self.negatives = nn.Parameter(torch.rand(50, WIDTH))
            self.linear("negative_fc", [NEGATIVES * WIDTH, 400, 50])
        elif network == "nce":
            self.linear("fc", [FEATURES + CONTEXT * WIDTH, 2 * WIDTH, WIDTH])
        else:
            hidden = [400, 400, 50 if network == "2emb" else 400]
            self.linear("fc", [width, *hidden])
            if network == "2emb":
                self.layers["small_lookup"] = Rows(100, WIDTH)
                self.layers["small_fc"] = nn.Linear(SMALL * WIDTH, 128)
            self.layers["output"] = nn.Linear(hidden[-1] + (128 if network == "2emb" else 0), 2)

    def linear(self, prefix, widths):
        for number in range(1, len(widths)):
            self.layers[f"{prefix}{number}"] = nn.Linear(widths[number - 1], widths[number])

    def paced(self, name, values, function=None):
        """The layer's result, with the sleeps of its device around."""
        forward, backward = seconds[name]
        begin = time.perf_counter()
        began = []
        if values.requires_grad:
            values = Mark.apply(values, lambda: sleep_until(began.pop() + backward))
            at_output = lambda: began.append(time.perf_counter())
        else:  # nobody asks for its input's gradient, so its own gradient comes after its sleep
            at_output = lambda: time.sleep(backward)
        result = Mark.apply((function or self.layers[name])(values), at_output)
        sleep_until(begin + forward)
        return result

    def tower(self, prefix, values, layers, last_is_linear=False):
        for number in range(1, layers + 1):
            values = self.paced(f"{prefix}{number}", values)
            if number < layers or not last_is_linear:
                values = functional.relu(values)
        return values

    def forward(self, features, ids):
        rows = self.paced("lookup", ids)
        if network == "matchnet":
            user = self.tower("user_fc", rows[:, : USER * WIDTH], 3)
            item = self.tower("item_fc", torch.cat([features, rows[:, USER * WIDTH :]], 1), 3)
            positive = self.paced("match", item, lambda item: functional.cosine_similarity(user, item).unsqueeze(1))
            chosen = functional.embedding(item.detach().topk(NEGATIVES, 1)[1], self.negatives).flatten(1)
            negative = self.tower("negative_fc", chosen, 2)
            other = self.paced("compare", negative, lambda negative: functional.cosine_similarity(user, negative))
            return torch.cat([other.unsqueeze(1), positive], 1)
        if network == "nce":
            context = torch.cat([features, rows[:, : CONTEXT * WIDTH]], 1)
            hidden = self.tower("fc", context, 2, last_is_linear=True).unsqueeze(2)
            words = rows[:, CONTEXT * WIDTH :].reshape(samples, -1, WIDTH)
            return self.paced("candidates", hidden, lambda hidden: torch.bmm(words, hidden).squeeze(2))
        hidden = self.tower("fc", torch.cat([features, rows], 1), 3)
        if network == "2emb":
            small = self.paced("small_lookup", ids[:, :SMALL] % 100)
            hidden = torch.cat([hidden, functional.relu(self.paced("small_fc", small))], 1)
        return self.paced("output", hidden)


torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo", init_method="tcp://" + rendezvous, rank=int(rank), world_size=int(ranks))
# All begin with the same weights, which need not cross slow links for it.
model = nn.parallel.DistributedDataParallel(Network(), gradient_as_bucket_view=True, init_sync=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(int(rank))
features = torch.randn(samples, FEATURES)
ids = torch.exp(torch.rand(samples, CATEGORIES) * math.log(ROWS)).long().clamp(max=ROWS - 1)  # Zipf's law
classes = torch.randint(0, 2, (samples,))
times = []
for _ in range(int(steps)):
    dist.barrier()
    begin = time.perf_counter()
    optimizer.zero_grad()
    functional.cross_entropy(model(features, ids), classes).backward()
    optimizer.step()
    times.append(time.perf_counter() - begin)
if rank == "0":
    print(statistics.median(times[1:]), flush=True)
dist.barrier()
dist.destroy_process_group()
