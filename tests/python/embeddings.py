"""motley.nn's embeddings against one process with torch.nn.EmbeddingBag and the same row optimizers, written down once more in torch.

Both compute in float32. After two passes rows and weights differ by less than BOUND, as gradients are summed in another order.
"""
import contextlib
import copy
import dataclasses
import functools
import math
import pathlib
import pickle
import tempfile
import unittest
import warnings

import torch
import torch.distributed as dist

import motley
from data_parallel import random_splits
from parameter_server import TIMEOUT, make_token, running_server
from ranks import RanksTest

BOUND = 2e-5
SAMPLES, BATCH, STEPS = 90, 20, 10  # two passes


@dataclasses.dataclass
class TorchRecConfig:
    """The fields of TorchRec's EmbeddingBagConfig, which sets init_fn itself."""

    num_embeddings: int = 7
    embedding_dim: int = 4
    name: str = "rec"
    data_type: str = "FP32"
    feature_names: list[str] = dataclasses.field(default_factory=lambda: ["item"])
    weight_init_max: float | None = None
    weight_init_min: float | None = None
    init_fn: object = functools.partial(torch.nn.init.uniform_, a=-0.5, b=0.5)
    pooling: str = "sum"

    def get_weight_init_max(self):
        return math.sqrt(1 / self.embedding_dim) if self.weight_init_max is None else self.weight_init_max


TABLES = [motley.nn.EmbeddingBagConfig(name="wide", embedding_dim=9, num_embeddings=40, feature_names=["user", "friends"], pooling="mean"),
          motley.nn.EmbeddingBagConfig(name="narrow", embedding_dim=2, num_embeddings=7, feature_names=["item"], weight_init_max=0.5)]
OPTIMIZERS = {"sgd": motley.optim.RowSGD(lr=0.5), "adagrad": motley.optim.RowAdagrad(lr=0.1, eps=1e-6),
              "adam": motley.optim.RowAdam(lr=0.02, betas=(0.8, 0.9), eps=1e-4)}


class Jagged:
    """What TorchRec's KeyedJaggedTensor has that is used."""

    def __init__(self, keys, values, lengths):
        self._keys, self._values, self._lengths = keys, values, lengths

    def keys(self):
        return self._keys

    def values(self):
        return self._values

    def lengths(self):
        return self._lengths


class Clicks(torch.utils.data.Dataset):
    """A sample: a user, none to three friends, an item, and what it comes to."""

    def __init__(self):
        generator = torch.Generator().manual_seed(2)
        self.samples = []
        for _ in range(SAMPLES):
            friends = torch.randint(40, (int(torch.randint(4, (), generator=generator)),), generator=generator)
            user, item = torch.randint(40, (), generator=generator), torch.randint(7, (), generator=generator)
            self.samples.append((user, friends, item, torch.randn(1, generator=generator)))

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index, self.samples[index]


def collate(samples):
    users, friends, items, targets = zip(*(sample for _, sample in samples))
    lengths = torch.tensor([1] * len(users) + [len(each) for each in friends] + [1] * len(items))
    jagged = Jagged(["user", "friends", "item"], torch.cat([torch.stack(users), *friends, torch.stack(items)]), lengths)
    return [index for index, _ in samples], jagged, torch.stack(targets)


def make_dense():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(20, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def read_tables(embeddings):
    """All rows, as evaluation sees them."""
    embeddings.eval()
    ids = torch.arange(40)
    pooled = embeddings({"user": ids, "friends": ids, "item": ids % 7})
    embeddings.train()
    return pooled["user"].clone(), pooled["item"][:7].clone()


def train(name, options, prefetches=False, steps=STEPS, checkpoints=None, start=None, **arguments):
    """A rank trains; what it used in each step, and the tables before and after. It writes a checkpoint after each of some steps, given
    as {step: path}, and goes on from one that is given as start."""
    loader = motley.DataLoader(Clicks(), collate_fn=collate, **options)
    embeddings = motley.nn.EmbeddingBagCollection(TABLES, optimizer=OPTIMIZERS[name], seed=4, loader=loader, timeout=TIMEOUT,
                                                  features=(lambda batch: batch[1]) if prefetches else None, **arguments)
    dense = make_dense()
    optimizer = motley.optim.ParameterServerOptimizer(torch.optim.AdamW(dense.parameters(), lr=0.01, eps=1e-4), loader=loader,
                                                      timeout=TIMEOUT)
    embeddings.step_with(optimizer)
    parts = {"embeddings": embeddings, "dense": dense, "optimizer": optimizer, "loader": loader}
    if start is not None:
        saved = torch.load(start, weights_only=True)
        for part, state in saved.items():
            parts[part].load_state_dict(state)
    before, used, mine = read_tables(embeddings), [], []
    while len(used) < steps:
        for indices, jagged, targets in loader:
            loss = ((dense(embeddings(jagged).values()) - targets) ** 2).mean() / loader.micro_batches
            loss.backward()
            mine += indices if loader.samples else []
            if loader.step_ends:
                optimizer.step()
                optimizer.zero_grad()
                used.append(mine)
                mine = []
                if path := (checkpoints or {}).get(len(used)):
                    states = {part: each.state_dict() for part, each in parts.items()}
                    if loader._ranks.rank == 0:
                        torch.save(states, path)
                if len(used) == steps:
                    break
    weights = torch.cat([parameter.detach().flatten() for parameter in dense.parameters()])
    return {"used": used, "before": before, "after": read_tables(embeddings), "weights": weights.clone()}


class RowReference:
    """A row optimizer over a whole table, rows that a batch did not use left alone."""

    def __init__(self, bag, options):
        self.bag, self.options = bag, options
        rows, dimension = bag.weight.shape
        self.sums, self.counts = torch.zeros(rows, 1), torch.zeros(rows, 1)
        self.first, self.second = torch.zeros(rows, dimension), torch.zeros(rows, dimension)

    @torch.no_grad()
    def step(self, used):
        rows, weight, gradient, options = used.unique(), self.bag.weight, self.bag.weight.grad, self.options
        g = gradient[rows]
        if isinstance(options, motley.optim.RowSGD):
            weight[rows] -= options.lr * g
        elif isinstance(options, motley.optim.RowAdagrad):
            self.sums[rows] += (g * g).mean(1, keepdim=True)
            weight[rows] -= options.lr * g / (self.sums[rows].sqrt() + options.eps)
        else:
            first, second = options.betas
            self.counts[rows] += 1
            self.first[rows] += (1 - first) * (g - self.first[rows])
            self.second[rows] += (1 - second) * (g * g - self.second[rows])
            unbiased = self.second[rows] / (1 - second ** self.counts[rows])
            weight[rows] -= options.lr / (1 - first ** self.counts[rows]) * self.first[rows] / (unbiased.sqrt() + options.eps)
        self.bag.weight.grad = None


def train_alone(name, batches, before):
    wide, narrow = (torch.nn.EmbeddingBag.from_pretrained(rows.clone(), freeze=False, mode=mode)
                    for rows, mode in zip(before, ("mean", "sum")))
    rows, data, dense = [RowReference(bag, OPTIMIZERS[name]) for bag in (wide, narrow)], Clicks(), make_dense()
    optimizer = torch.optim.AdamW(dense.parameters(), lr=0.01, eps=1e-4)
    for indices in batches:
        users, friends, items, targets = zip(*(data.samples[index] for index in indices))
        ends = torch.tensor([len(each) for each in friends]).cumsum(0)
        offsets = ends - torch.tensor([len(each) for each in friends])
        users, friends, items = torch.stack(users), torch.cat(friends), torch.stack(items)
        pooled = torch.cat([wide(users.unsqueeze(1)), wide(friends, offsets), narrow(items.unsqueeze(1))], dim=1)
        optimizer.zero_grad()
        ((dense(pooled) - torch.stack(targets)) ** 2).mean().backward()
        optimizer.step()
        rows[0].step(torch.cat([users, friends]))
        rows[1].step(items)
    return (wide.weight.detach(), narrow.weight.detach()), torch.cat([parameter.detach().flatten() for parameter in dense.parameters()])


class Embeddings(RanksTest):
    count = 2

    def options(self, **more):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "splits.jsonl"
        path.write_text(random_splits(STEPS, BATCH, SAMPLES, self.count))
        return {"global_batch_size": BATCH, "seed": 8, "batch_split": f"replay:{path}"} | more

    def assert_trained_as_alone(self, name, answers):
        batches = [sum(parts, []) for parts in zip(*(answer["used"] for answer in answers))]
        tables, weights = train_alone(name, batches, answers[0]["before"])
        for answer in answers:
            self.assertLess((answer["weights"] - weights).abs().max().item(), BOUND)
            for before, after, expected in zip(answer["before"], answer["after"], tables):
                self.assertLess((after - expected).abs().max().item(), BOUND)
                self.assertGreater((after - before).abs().max().item(), 100 * BOUND, "the rows did not change")

    def test_every_row_optimizer_with_random_splits(self):
        for name in OPTIMIZERS:
            with self.subTest(name):
                self.assert_trained_as_alone(name, self.on_ranks(train, name, self.options()))

    def test_micro_batches_and_prefetching(self):
        """Rows that were asked for ahead are those of the step, also where micro-batches and workers of the loader are between."""
        for more in ({}, {"global_batch_size": 20, "gradient_accumulation_steps": 2, "drop_last": True, "batch_split": [3, 1]},
                     {"batch_split": "equal", "num_workers": 1}):
            with self.subTest(more):
                self.assert_trained_as_alone("adagrad", self.on_ranks(prefetch, self.options(**more)))

    def test_cold_rows(self):
        """Rows that the server's memory does not hold, a few of forty here, are on its disk."""
        with tempfile.TemporaryDirectory() as folder:
            answers = self.on_ranks(train_cold, self.options(), folder)
        self.assert_trained_as_alone("adam", answers)

    def test_going_on_from_a_state_dict(self):
        """One process from the first of two ranks' checkpoints, and two ranks from that one's."""
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder, f"{step}.pt") for step in (3, 5, 7)]
            options = self.options(batch_split="equal")
            first = self.on_ranks(train_part, options, folder, 6, {3: paths[0], 5: paths[1]}, None)
            alone = train_part(options, folder, 4, {4: paths[2]}, paths[0])
            last = self.on_ranks(train_part, options, folder, STEPS - 7, None, paths[2])
            again = train_part(options, folder, 1, None, paths[1])
        for rank, answer in enumerate(last):
            others = [alone["used"] if rank == 0 else [[]] * 4]
            answer["used"] = sum([first[rank]["used"][:3], *others, answer["used"]], [])
            answer["before"] = first[rank]["before"]
        self.assert_trained_as_alone("adam", last)
        for after, expected in zip(again["after"], first[0]["after"]):
            self.assertLess((after - expected).abs().max().item(), BOUND)

    def test_embedding_bag(self):
        """As torch's, over its forms of input."""
        for pairs in self.on_ranks(compare_bags):
            for ours, torchs in pairs:
                torch.testing.assert_close(ours, torchs, rtol=1e-6, atol=1e-7)

    def test_a_state_dict_needs_a_directory(self):
        first, second = self.on_ranks(save_without_directory)
        self.assertIn("give the embeddings embedding_dir='DIR'", first)
        self.assertEqual(second["step"], 0)

    def test_what_could_not_be_loaded_leaves_no_rows(self):
        for said, is_back in self.on_ranks(use_after_lost_directory):
            self.assertIn("sparse-00000003.json", said[0])
            self.assertEqual(len(said), 4)
            for message in said[1:]:
                self.assertIn("the embeddings have no rows any more, as the state that they were to load was not there", message)
            self.assertTrue(is_back)

    def test_wrong_input(self):
        for what, words in WRONG.items():
            with self.subTest(what.__name__):
                for message in self.refused_on_ranks(what):
                    self.assertIn(words, message)


class EmbeddingsOfOneProcess(unittest.TestCase):
    def test_wrong_arguments(self):
        table = TABLES[1]
        for arguments, words in (
                ({"tables": None}, "tables is None; a list of motley.nn.EmbeddingBagConfig"),
                ({"tables": [5]}, r"tables is \[5\]; a list"), ({"tables": []}, r"tables is \[\]; a list"),
                ({"tables": [dataclasses.replace(table, name="")]}, r"tables\[0\]\.name is ''; a text"),
                ({"tables": [dataclasses.replace(table, num_embeddings="9")]}, "table 'narrow': num_embeddings is '9'; an integer"),
                ({"tables": [dataclasses.replace(table, embedding_dim=10**6)]}, "table 'narrow': embedding_dim is 1000000; .* 32768"),
                ({"tables": [dataclasses.replace(table, weight_init_max=-1)]}, "table 'narrow': weight_init_max is -1; a number"),
                ({"tables": [dataclasses.replace(table, feature_names=[])]}, r"table 'narrow': feature_names is \[\]; a list of names"),
                ({"tables": [TorchRecConfig(weight_init_max=1.0, weight_init_min=0.0)]}, "table 'rec': weight_init_min is 0.0; .*, -1.0,"),
                ({"tables": [TorchRecConfig(init_fn=torch.nn.init.zeros_)]}, "table 'rec': init_fn is <function zeros_"),
                ({"tables": [TorchRecConfig(data_type="FP16")]}, "table 'rec': data_type is 'FP16'; FP32"),
                ({"seed": -1}, "seed is -1; an integer of at least 0"), ({"memory_bytes": "4 GB"}, "memory_bytes is '4 GB'; an integer"),
                ({"timeout": -1}, "timeout is -1; a number above 0"),
                ({"timeout": 1e300}, r"timeout is 1e\+300; seconds above 0 and at most 1e9"),
                ({"server": 5}, "server is 5; 'HOST:PORT'"), ({"token_file": 5}, "token_file is 5; the path of a file"),
                ({"embedding_dir": 5}, "embedding_dir is 5; the path of a folder"),
                ({"process_group": "x"}, "process_group is a str; what"),
                ({"loader": 5}, "loader is an int; a motley.DataLoader")):
            with self.subTest(words), self.assertRaisesRegex(ValueError, f"^{words}"):
                motley.nn.EmbeddingBagCollection(**{"tables": TABLES} | arguments)
        with self.assertRaisesRegex(ValueError, "^betas are 0.9; two numbers"):
            motley.optim.RowAdam(betas=0.9)
        with self.assertRaisesRegex(ValueError, "^ids are 'x'; a tensor of integers is accepted"):
            motley.nn.EmbeddingBag(5, 3)("x")

    def test_rows_of_torchrecs_config_begin_as_there(self):
        tables = motley.nn.EmbeddingBagCollection([TorchRecConfig(num_embeddings=1000)], timeout=TIMEOUT)
        rows = tables({"item": torch.arange(1000)})["item"]
        self.assertLessEqual(rows.abs().max(), 0.5)
        self.assertGreater(rows.abs().max(), 0.49)

    def test_a_forgotten_step_is_said_once(self):
        bag = motley.nn.EmbeddingBag(5, 3)
        with self.assertWarnsRegex(UserWarning, r"a third batch begins, and no step\(\) has followed the gradients of embedding rows"):
            for _ in range(3):
                bag(torch.tensor([[1, 2]])).sum().backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            bag(torch.tensor([[1, 2]])).sum().backward()
            stepped = motley.nn.EmbeddingBag(5, 3)
            for _ in range(4):  # gradients of two batches are added up
                for _ in range(2):
                    stepped(torch.tensor([[1, 2]])).sum().backward()
                stepped.step()

    def test_features_come_back_in_the_order_of_the_tables(self):
        embeddings = motley.nn.EmbeddingBagCollection(TABLES)
        ids = {"user": torch.tensor([1, 2]), "friends": torch.tensor([[3, 4], [5, 6]]), "item": torch.tensor([0, 6])}
        expected = embeddings(ids)
        self.assertEqual((expected.keys(), expected.length_per_key()), (["user", "friends", "item"], [9, 9, 2]))
        jagged = Jagged(["item", "friends", "user"], torch.tensor([0, 6, 3, 4, 5, 6, 1, 2]), torch.tensor([1, 1, 2, 2, 1, 1]))
        for turned in (embeddings(dict(reversed(ids.items()))), embeddings(jagged)):
            self.assertEqual((turned.keys(), turned.length_per_key()), (expected.keys(), expected.length_per_key()))
            self.assertTrue(torch.equal(turned.values(), expected.values()))

    def test_gradients_that_a_scaler_scales_are_refused(self):
        for is_enabled in (False, True):
            rows, layer = motley.nn.EmbeddingBag(5, 3), torch.nn.Linear(3, 1)
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            rows.step_with(optimizer)
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=is_enabled)
            scaler.scale(layer(rows(torch.tensor([[1, 2]]))).sum()).backward()
            with (self.assertRaisesRegex(RuntimeError, "GradScaler scales the gradients of embedding rows") if is_enabled
                  else contextlib.nullcontext()):
                scaler.step(optimizer)

    def test_copies_are_refused(self):
        for copies in (copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, r"cannot be copied or pickled; accepted: their state_dict\(\)"):
                copies(motley.nn.EmbeddingBag(5, 3))

    def test_a_damaged_state_changes_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            bag = motley.nn.EmbeddingBag(5, 3, embedding_dir=folder)
            bag(torch.tensor([[1, 2]])).sum().backward()
            bag.step()
            state, before = bag.state_dict()["rows._extra_state"], bag(torch.arange(5).unsqueeze(1)).detach()
            for field, value, words in (("step", -1, "step of the embeddings' state is -1; an integer of at least 0"),
                                        ("step", True, "step of the embeddings' state is True"), ("job", 5, "the state of embeddings is"),
                                        ("servers", 0, "servers of the embeddings' state is 0; an integer of at least 1")):
                with self.subTest(field=field, value=value), self.assertRaisesRegex(ValueError, words):
                    bag.load_state_dict({"rows._extra_state": state | {field: value}})
            self.assertTrue(torch.equal(bag(torch.arange(5).unsqueeze(1)), before))


class EmbeddingServerLost(RanksTest):
    def test_every_rank_is_told(self):
        with contextlib.ExitStack() as stack:
            token = make_token(stack)
            server = stack.enter_context(running_server(token))
            self.on_ranks(look_up_first, server.address, token)
            server.kill()
            for message in self.refused_on_ranks(look_up_again):
                self.assertIn(f"server at {server.address} was lost", message)


def prefetch(options):
    return train("adagrad", options, prefetches=True)


def train_cold(options, folder):
    return train("adam", options, embedding_dir=folder, memory_bytes=9000)


def train_part(options, folder, steps, checkpoints, start):
    return train("adam", options, steps=steps, checkpoints=checkpoints, start=start, embedding_dir=folder)


def save_without_directory():
    try:
        return motley.nn.EmbeddingBag(5, 3, timeout=TIMEOUT).state_dict()["rows._extra_state"]
    except RuntimeError as problem:
        return str(problem)


def foreign_state():
    motley.nn.EmbeddingBag(5, 3, timeout=TIMEOUT).load_state_dict({"rows._extra_state": {"step": 3}})


def lost_directory():
    with tempfile.TemporaryDirectory() as folder:
        bag = motley.nn.EmbeddingBag(5, 3, embedding_dir=folder, timeout=TIMEOUT)
        bag.load_state_dict({"rows._extra_state": {"job": "torch-1", "step": 3, "servers": 1}})


def use_after_lost_directory():
    """What is said of rows that are gone, and rows of another state."""
    with tempfile.TemporaryDirectory() as folder:
        bag = motley.nn.EmbeddingBag(5, 3, embedding_dir=folder, timeout=TIMEOUT)
        state, rows = bag.state_dict(), bag(torch.tensor([[1]])).detach()
        said = []
        for use in (lambda: bag.load_state_dict({"rows._extra_state": {"job": "torch-1", "step": 3, "servers": 1}}),
                    lambda: bag(torch.tensor([[1]])), bag.step, bag.state_dict):
            try:
                use()
            except (RuntimeError, ValueError) as problem:
                said.append(str(problem))
        bag.load_state_dict(state)
        return said, torch.equal(bag(torch.tensor([[1]])), rows)


def compare_bags(device="cpu"):
    """Of input on a device."""
    ids, offsets, weights = torch.tensor([3, 1, 3, 0, 4]), torch.tensor([0, 2, 2]), torch.tensor([1.0, 2, -1, 0.5, 3])
    pairs = []
    for mode in ("sum", "mean", "max"):
        ours = motley.nn.EmbeddingBag(5, 3, mode, optimizer=motley.optim.RowSGD(lr=0.1), weight_init_max=1.0, timeout=TIMEOUT)
        with torch.no_grad():
            rows = ours(torch.arange(5).unsqueeze(1)).clone()
        torchs = torch.nn.EmbeddingBag.from_pretrained(rows, freeze=False, mode=mode)
        forms = [(ids, offsets), (torch.stack([ids, ids]), None)] + [(ids, offsets, weights)] * (mode == "sum")
        for form in forms:
            outputs = [ours(*(part if part is None else part.to(device) for part in form)), torchs(*form)]
            outputs[0].square().sum().backward()
            outputs[1].square().sum().backward()
            ours.step()
            with torch.no_grad():
                torchs.weight -= 0.1 * torchs.weight.grad
                torchs.weight.grad = None
                pairs += [outputs, (ours(torch.arange(5).unsqueeze(1)).clone(), torchs.weight.detach().clone())]
    return [(ours.detach(), torchs.detach()) for ours, torchs in pairs]


def look_up_first(server, token):
    global kept
    kept = motley.nn.EmbeddingBag(5, 3, server=server, token_file=token, timeout=TIMEOUT)
    look_up_again()


def look_up_again():
    kept(torch.tensor([[1, 2]])).sum().backward()
    kept.step()


def wrong_id():
    motley.nn.EmbeddingBag(5, 3, timeout=TIMEOUT)(torch.tensor([[1, 5]]))


def negative_id():
    motley.nn.EmbeddingBag(5, 3, timeout=TIMEOUT)(torch.tensor([[-1]]))


def fractional_id():
    motley.nn.EmbeddingBag(5, 3, timeout=TIMEOUT)(torch.tensor([[1.0]]))


def bare_tensor():
    motley.nn.EmbeddingBagCollection(TABLES, timeout=TIMEOUT)(torch.tensor([1]))


def wrong_rate():
    motley.optim.RowSGD(lr=0)


def never_stepped():
    loader = motley.DataLoader(Clicks(), 4, collate_fn=list)
    rows = motley.nn.EmbeddingBag(5, 3, loader=loader, timeout=TIMEOUT)
    for _ in loader:
        rows(torch.tensor([[1]])).sum().backward()


def wrong_mode():
    motley.nn.EmbeddingBag(5, 3, "median")


def wrong_optimizer():
    motley.nn.EmbeddingBagCollection(TABLES, optimizer=torch.optim.SGD([torch.zeros(1)]))


def features_alone():
    motley.nn.EmbeddingBagCollection(TABLES, features=lambda batch: batch)


def late_features():
    loader = motley.DataLoader(Clicks(), 4, collate_fn=collate)
    next(iter(loader))
    motley.nn.EmbeddingBagCollection(TABLES, loader=loader, features=lambda batch: batch[1], timeout=TIMEOUT)


def wrong_features():
    motley.nn.EmbeddingBagCollection(TABLES, timeout=TIMEOUT)({"user": torch.tensor([1])})


def shared_feature():
    motley.nn.EmbeddingBagCollection([motley.nn.EmbeddingBagConfig(2, 5, name, ["one"]) for name in ("a", "b")])


def same_name():
    motley.nn.EmbeddingBagCollection([motley.nn.EmbeddingBagConfig(2, 5, "a", [feature]) for feature in ("one", "two")], timeout=TIMEOUT)


def no_rows():
    motley.nn.EmbeddingBag(0, 3)


def wrong_on_one_rank():
    motley.nn.EmbeddingBag(5, 3, seed=-dist.get_rank(), timeout=TIMEOUT)


def different_tables():
    motley.nn.EmbeddingBag(5, 3 + dist.get_rank(), timeout=TIMEOUT)


WRONG = {
    wrong_id: "table 'rows' was asked for id 5; 0 to 4 is accepted",
    negative_id: "table 'rows' was asked for id -1; 0 to 4 is accepted",
    fractional_id: "table 'rows' was asked for ids of type torch.float32; integers are accepted",
    bare_tensor: "features are a Tensor; a dict of ids by feature, or a KeyedJaggedTensor, is accepted",
    wrong_rate: "lr is 0; a number above 0 is accepted",
    never_stepped: "the loader begins a step, and no step() has followed the gradients of embedding rows",
    wrong_mode: "'sum', 'mean' and 'max' are accepted",
    wrong_optimizer: "optimizer is a SGD; motley.optim.RowSGD",
    features_alone: "it needs loader=",
    late_features: "the loader's first pass has begun; make the embeddings before it",
    wrong_features: "features are ['user']; the tables have ['friends', 'item', 'user']",
    shared_feature: "feature 'one' is looked up in two tables",
    same_name: "tables[1].name is 'a'; a text that no other table has",
    no_rows: "num_embeddings is 0; an integer of at least 1",
    different_tables: "ranks differ in their tables (name, num_embeddings, embedding_dim): rank 0 has [('rows', 5, 3)], rank 1 has "
                      "[('rows', 5, 4)]; accepted",
    wrong_on_one_rank: "rank 1: seed is -1; an integer of at least 0",
    foreign_state: "accepted: what their state_dict() said, with the fields job, step and servers",
    lost_directory: "sparse-00000003.json",
}


if __name__ == "__main__":
    unittest.main()
