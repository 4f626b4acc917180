"""Embeddings whose rows a parameter server has, in memory and on disk, so that tables may be larger than any rank's memory.

A forward pass asks the server for the rows of the batch's ids, all tables at once, and computes with them as with a leaf of the
graph. When backward has given that leaf its gradient, a hook sends it to the server, weighted by this rank's samples. step()
says that this rank has sent all of a step; the server then applies the gradients of all ranks together, once, and the next
forward pass waits for that. Rows of the next batch may be asked for while this one is computed.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import torch
import torch.distributed as dist
import torch.nn.functional as F

from .. import _motley
from .._arguments import name_type, read_integer, read_number, read_seconds
from .._loader import DataLoader
from .._ranks import Ranks
from .._server import Server, check_server, use_server
from ..optim._row_optimizers import RowAdagrad, RowAdam, RowSGD

RowOptimizer: TypeAlias = "RowSGD | RowAdagrad | RowAdam"
_MODES = ("sum", "mean", "max")
_NEVER_STEPPED = ("no step() has followed the gradients of embedding rows, which move no row until then: call step() of the embeddings "
                  "after backward, or once embeddings.step_with(optimizer)")


@dataclasses.dataclass
class EmbeddingBagConfig:
    """A table, in TorchRec's words; its own EmbeddingBagConfig is taken as well.

    Attributes:
        embedding_dim: values of a row.
        num_embeddings: ids are 0 to num_embeddings - 1. A row takes memory at the server once it has been updated.
        name: differs from table to table.
        feature_names: what is looked up in it; several features may share a table.
        pooling: "sum" or "mean" of the rows of a sample.
        weight_init_max: rows begin uniformly distributed between its negative and it.
    """

    embedding_dim: int
    num_embeddings: int
    name: str
    feature_names: list[str]
    pooling: str = "sum"
    weight_init_max: float = 0.01


class KeyedTensor:
    """Pooled embeddings by feature, as TorchRec's KeyedTensor has them."""

    def __init__(self, keys: list[str], length_per_key: list[int], values: torch.Tensor) -> None:
        self._keys, self._lengths, self._values = keys, length_per_key, values

    def keys(self) -> list[str]:
        return self._keys

    def length_per_key(self) -> list[int]:
        return self._lengths

    def values(self) -> torch.Tensor:
        """[samples, sum of length_per_key], one feature beside the other."""
        return self._values

    def __getitem__(self, key: str) -> torch.Tensor:
        return self.to_dict()[key]

    def to_dict(self) -> dict[str, torch.Tensor]:
        return dict(zip(self._keys, torch.split(self._values, self._lengths, dim=1)))


@dataclasses.dataclass
class _Bags:
    """The ids of one feature: those of sample i are values[offsets[i]:offsets[i + 1]]; without offsets each sample has one."""

    values: torch.Tensor
    offsets: torch.Tensor | None
    weights: torch.Tensor | None = None


@dataclasses.dataclass
class _Asked:
    """Rows that were asked for before their forward pass; they come once all ranks have finished a step."""

    ids: torch.Tensor
    after: int
    ticket: int


class _Tables:
    """Tables at a server, and the rows that were asked for."""

    def __init__(self, options: Sequence[_motley.TableOptions], dimensions: Sequence[int], server: Server, timeout: float) -> None:
        self.samples = 1  # of this rank in the step
        self._pushed = 0  # gradients since the last step()
        self._steps_are_called = False
        self._dimensions, self._timeout, self._server = list(dimensions), timeout, server
        self._saved: tuple[str, int] | None = None  # the job and step that were written last
        self._client = _motley.EmbeddingTables(server.session, server.addresses, server.token, server.next_suffix(), options, timeout)
        self._ahead: dict[int, _Asked] = {}  # by table
        weakref.finalize(self, _leave, self._client, server)

    def __getstate__(self) -> NoReturn:
        raise TypeError("embeddings whose rows a server has cannot be copied or pickled; accepted: their state_dict(), and copies of the "
                        "other modules")

    def look_up(self, ids: list[torch.Tensor], trains: bool) -> list[torch.Tensor]:
        """The rows of a list of ids for each table; in training leaves, whose gradients go to the server."""
        if trains and not self._steps_are_called and self._pushed >= 2 * len(self._dimensions):
            self._steps_are_called = True  # said once, as a script may add up the gradients of many batches
            warnings.warn(f"a third batch begins, and {_NEVER_STEPPED}", stacklevel=4)
        tickets = [(trains and self._take_ahead(table, each)) or self._client.start_pull(table, each, False)
                   for table, each in enumerate(ids)]
        leaves = []
        for table, (each, ticket) in enumerate(zip(ids, tickets)):
            rows: Any = self._receive(table, each, ticket)
            if trains:
                rows.requires_grad_(True).register_post_accumulate_grad_hook(functools.partial(self._push, table, each))
            leaves.append(rows)
        return leaves

    def _receive(self, table: int, ids: torch.Tensor, ticket: int) -> torch.Tensor:
        rows = torch.empty(ids.numel(), self._dimensions[table])
        self._client.wait(ticket, rows, self._timeout)
        return rows

    def _push(self, table: int, ids: torch.Tensor, leaf: torch.Tensor) -> None:
        assert leaf.grad is not None
        self._client.push(table, ids, leaf.grad.contiguous(), float(self.samples))
        leaf.grad = None
        self._pushed += 1

    def _take_ahead(self, table: int, ids: torch.Tensor) -> int | None:
        """The ticket of these rows, if they were asked for and are due."""
        asked = self._ahead.get(table)
        if asked is None or asked.after > self._client.step:
            return None
        del self._ahead[table]
        if torch.equal(asked.ids, ids):
            return asked.ticket
        self._receive(table, asked.ids, asked.ticket)  # the batch was another one
        return None

    def ask_ahead(self, ids: list[torch.Tensor], is_next_step: bool) -> None:
        for table, each in enumerate(ids):
            if table not in self._ahead:
                ticket = self._client.start_pull(table, each, is_next_step)
                self._ahead[table] = _Asked(each, self._client.step + int(is_next_step), ticket)

    def begin_step(self, samples: int) -> None:
        if self._pushed:
            raise RuntimeError(f"the loader begins a step, and {_NEVER_STEPPED}")
        self.samples = samples

    def save(self) -> dict[str, Any]:
        """Has the servers write the rows as they are after the last step, by rank 0; where they are, on any rank."""
        moment = self._client.job, self._client.step
        if self._server.ranks.rank == 0 and self._saved != moment:
            if not self._server.has_directory:
                raise RuntimeError("rank 0's own server has no directory to write the embedding rows of a state_dict to: give the "
                                   "embeddings embedding_dir='DIR'")
            self._client.save(self._timeout)
            self._saved = moment
        return {"job": moment[0], "step": moment[1], "servers": len(self._server.addresses)}

    def load(self, state: Any) -> None:
        job, step, servers = self._server.ranks.agree(lambda: _read_state(state))
        self._client.reopen(self._server.next_suffix(), job, step, servers, self._timeout)
        self._ahead.clear()
        self._pushed = 0

    def step(self) -> None:
        self._pushed, self._steps_are_called = 0, True
        self._client.finish_step(float(self.samples), self._timeout)


def _read_state(state: Any) -> tuple[str, int, int]:
    match state:
        case {"job": str(job), "step": step, "servers": servers}:
            return (job, read_integer("step of the embeddings' state", step, 0, 2**63 - 1),
                    read_integer("servers of the embeddings' state", servers, 1))
    raise ValueError(f"the state of embeddings is {state!r}; accepted: what their state_dict() said, with the fields job, step and servers")


def _refuse_scaler(optimizer: torch.optim.Optimizer) -> None:
    """Rows have their gradients as backward gave them. An optimizer does not say by what it is stepped: all of the program's are asked."""
    for scaler in [each for each in gc.get_objects() if issubclass(type(each), torch.amp.GradScaler)]:
        if id(optimizer) in getattr(scaler, "_per_optimizer_states", ()):  # it has none where it is not enabled
            raise RuntimeError("torch.amp.GradScaler scales the gradients of embedding rows, which the server has before they could be "
                               "divided again: train in bfloat16 (torch.autocast), which needs no scaler")


def _leave(client: _motley.EmbeddingTables, server: Server) -> None:
    client.leave()
    server.release()


class EmbeddingBagCollection(torch.nn.Module):
    """Tables of any number and width, and the pooled rows of a batch's features.

        embeddings = motley.nn.EmbeddingBagCollection(
            tables=[motley.nn.EmbeddingBagConfig(name="users", embedding_dim=16, num_embeddings=10**8, feature_names=["user"])],
            optimizer=motley.optim.RowAdagrad(lr=0.05), loader=loader)
        embeddings.step_with(optimizer)
        pooled = embeddings({"user": user_ids})["user"]      # [samples, 16]

    The rows are no parameters of the module: no other optimizer sees them. On rank 0 state_dict() has the servers write them to
    their directory, those that changed since the last time, and says which step of which job that was; load_state_dict(), on all ranks,
    goes on from there, with any number of ranks, and of servers if the directory is one for all. Any state_dict may be loaded as long as
    the directory is there.

    Args:
        tables: their configurations.
        optimizer: what moves the rows.
        seed: rows begin by it and their ids alone.
        loader: the motley.DataLoader that training reads; made before its first pass. Each rank's gradients then count by its samples.
        features: with a loader, what of a batch is given to forward: rows of the next batch are then asked for while this one is
            computed.
        server, token_file, process_group, timeout: as those of ``motley.optim.ParameterServerOptimizer``, with which it shares
            a server where they are the same.
        embedding_dir: the directory in which rank 0's own server keeps rows that do not fit into `memory_bytes`, and those of a
            state_dict; a server of another program has its own (motley server --embedding-dir).
        memory_bytes: of a table's rows in the memory of each server; 0: no bound.

    Raises:
        ValueError: wrong arguments or ids, with what is accepted.
        RuntimeError: a lost rank or server, a wait that took too long. Final.

    All ranks call forward() in training and step() alike. One thread uses it. Rows are float32, on the CPU.
    """

    def __init__(self, tables: Sequence[Any], *, optimizer: RowOptimizer | None = None, seed: int = 0, loader: DataLoader | None = None,
                 features: Callable[[Any], Any] | None = None, server: str | Sequence[str] | None = None, token_file: str | None = None,
                 embedding_dir: str | None = None, memory_bytes: int = 0, process_group: dist.ProcessGroup | None = None,
                 timeout: float = 300.0) -> None:
        super().__init__()
        moves = optimizer if optimizer is not None else RowAdagrad()
        group = loader._group if process_group is None and isinstance(loader, DataLoader) else process_group

        def check() -> list[_motley.TableOptions]:
            if not isinstance(moves, (RowSGD, RowAdagrad, RowAdam)):
                raise ValueError(f"optimizer is {name_type(moves)}; motley.optim.RowSGD, RowAdagrad and RowAdam move rows")
            if loader is not None and not isinstance(loader, DataLoader):
                raise ValueError(f"loader is {name_type(loader)}; a motley.DataLoader is accepted, which knows each rank's samples")
            if features is not None and (loader is None or not callable(features)):
                raise ValueError("features is a function that says what of the loader's next batch is looked up: it needs loader=")
            if features is not None and loader is not None and loader._ranks is not None:
                raise ValueError("the loader's first pass has begun; make the embeddings before it")
            check_server(server, token_file)
            if embedding_dir is not None and not isinstance(embedding_dir, (str, os.PathLike)):
                raise ValueError(f"embedding_dir is {embedding_dir!r}; the path of a folder is accepted")
            read_integer("seed", seed, 0, 2**63 - 1)
            read_integer("memory_bytes", memory_bytes, 0, 2**63 - 1)
            read_seconds("timeout", timeout)
            return self._read_tables(tables, moves, seed, memory_bytes)

        self._tables_by_feature: dict[str, int] = {}
        self._modes: list[str] = []
        self._sizes: list[tuple[str, int, int]] = []
        ranks = Ranks(group)
        options = ranks.agree(check)
        told = ranks.gather(self._sizes)
        for rank, sizes in enumerate(told):
            if sizes != told[0]:
                raise ValueError(f"ranks differ in their tables (name, num_embeddings, embedding_dim): rank 0 has {told[0]}, rank {rank} "
                                 f"has {sizes}; accepted: the same on every rank")
        shared = use_server(group, server, token_file, embedding_dir, timeout)
        self._tables = _Tables(options, [size[2] for size in self._sizes], shared, timeout)
        if loader is not None:
            loader._followers.append(self._tables.begin_step)
            if features is not None:
                loader._look_ahead.append(lambda batch, is_next_step: self._tables.ask_ahead(
                    self._ids(self._read(features(batch))), is_next_step))

    def _read_tables(self, tables: Any, optimizer: RowOptimizer, seed: int, memory_bytes: int) -> list[_motley.TableOptions]:
        wanted = ("name", "num_embeddings", "embedding_dim", "feature_names", "pooling")
        if (not isinstance(tables, Sequence) or isinstance(tables, str) or not tables
                or any(not hasattr(table, field) for table in tables for field in wanted)):
            raise ValueError(f"tables is {tables!r}; a list of motley.nn.EmbeddingBagConfig, one at least, is accepted")
        options = []
        for index, table in enumerate(tables):
            if not isinstance(table.name, str) or not table.name or table.name in (name for name, *_ in self._sizes):
                raise ValueError(f"tables[{index}].name is {table.name!r}; a text that no other table has is accepted")
            mode, name = _read_mode(table.pooling), f"table '{table.name}': "
            size = read_integer(name + "num_embeddings", table.num_embeddings, 1, 2**63 - 1)
            width = read_integer(name + "embedding_dim", table.embedding_dim, 1, 32768)
            scale = _read_start(name, table)
            if not isinstance(table.feature_names, (list, tuple)) or not table.feature_names:
                raise ValueError(f"{name}feature_names is {table.feature_names!r}; a list of names, one at least, is accepted")
            for feature in table.feature_names:
                if self._tables_by_feature.setdefault(feature, index) != index:
                    raise ValueError(f"feature '{feature}' is looked up in two tables; accepted: in one")
            self._modes.append(mode)
            self._sizes.append((table.name, size, width))
            options.append(_motley.TableOptions(table.name, width, scale, seed, optimizer._options(), memory_bytes))
        return options

    def forward(self, features: Any) -> KeyedTensor:
        """Pooled rows [samples, embedding_dim] of each feature, in the order of the tables, as TorchRec has them.

        Args:
            features: TorchRec's KeyedJaggedTensor, or anything with its keys(), values() and offsets() or lengths(); or a dict of
                ids by feature, each of shape [samples] or [samples, ids of each].
        """
        bags = self._read(features)
        leaves = self._tables.look_up(self._ids(bags), self.training and torch.is_grad_enabled())
        counts: list[list[int]] = [[] for _ in leaves]  # ids of each of a table's features
        for name, each in bags.items():
            counts[self._tables_by_feature[name]].append(each.values.numel())
        parts = [iter(torch.split(leaf, sizes)) for leaf, sizes in zip(leaves, counts)]
        pooled = []
        for name, each in bags.items():
            table = self._tables_by_feature[name]
            pooled.append(_pool(next(parts[table]), each, self._modes[table]))
        return KeyedTensor(list(bags), [values.shape[1] for values in pooled], torch.cat(pooled, dim=1))

    def prefetch(self, features: Any) -> None:
        """Asks for the rows that the next step's first forward pass will look up; they come when this step is finished."""
        self._tables.ask_ahead(self._ids(self._read(features)), True)

    def step(self) -> None:
        """This rank has sent all gradients of a step. Once a step, on every rank, after its last backward()."""
        self._tables.step()

    def step_with(self, optimizer: torch.optim.Optimizer) -> None:
        """Calls step() after each step of this optimizer, which no GradScaler steps."""
        has_looked: list[bool] = []

        def step(stepped: torch.optim.Optimizer, *_: Any) -> None:
            if not has_looked:
                _refuse_scaler(stepped)
                has_looked.append(True)
            self.step()

        optimizer.register_step_post_hook(step)

    def get_extra_state(self) -> dict[str, Any]:
        """Called by state_dict()."""
        return self._tables.save()

    def set_extra_state(self, state: Any) -> None:
        """Called by load_state_dict(). Waits for all ranks."""
        self._tables.load(state)

    def _read(self, features: Any) -> dict[str, _Bags]:
        if not isinstance(features, Mapping) and not hasattr(features, "keys"):
            raise ValueError(f"features are {name_type(features)}; a dict of ids by feature, or a KeyedJaggedTensor, is accepted")
        bags = _from_dict(features) if isinstance(features, Mapping) else _from_jagged(features)
        if bags.keys() != self._tables_by_feature.keys():
            raise ValueError(f"features are {sorted(bags)}; the tables have {sorted(self._tables_by_feature)}")
        return {name: bags[name] for name in self._tables_by_feature}

    def _ids(self, bags: dict[str, _Bags]) -> list[torch.Tensor]:
        """The ids of each table, one feature after the other."""
        parts: list[list[torch.Tensor]] = [[] for _ in self._sizes]
        for name, each in bags.items():
            parts[self._tables_by_feature[name]].append(each.values)
        for (table, *_), values in zip(self._sizes, parts):
            for numbers in values:
                if numbers.is_floating_point() or numbers.dtype == torch.bool:
                    raise ValueError(f"table '{table}' was asked for ids of type {numbers.dtype}; integers are accepted")
        ids = [torch.cat(values).to("cpu", torch.int64) for values in parts]
        for (table, size, _), numbers in zip(self._sizes, ids):
            for wrong in numbers[(numbers < 0) | (numbers >= size)][:1].tolist():
                raise ValueError(f"table '{table}' was asked for id {wrong}; 0 to {size - 1} is accepted")
        return ids


class EmbeddingBag(torch.nn.Module):
    """Takes the place of torch.nn.EmbeddingBag, with its rows at a parameter server.

    Args:
        num_embeddings, embedding_dim: as torch's.
        mode: "mean", "sum" or "max".
        **arguments: optimizer, seed, loader, server and so on, as those of ``EmbeddingBagCollection``.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, mode: str = "mean", weight_init_max: float = 0.01,
                 **arguments: Any) -> None:
        super().__init__()
        if "features" in arguments:
            raise ValueError("features is for EmbeddingBagCollection; EmbeddingBag.prefetch(input, offsets) asks for rows ahead")
        self._mode = _read_mode(mode)
        self.rows = EmbeddingBagCollection(
            [EmbeddingBagConfig(embedding_dim, num_embeddings, "rows", ["ids"], mode, weight_init_max)], **arguments)

    def forward(self, input: torch.Tensor, offsets: torch.Tensor | None = None,  # noqa: A002, torch's name
                per_sample_weights: torch.Tensor | None = None) -> torch.Tensor:
        """Pooled rows [samples, embedding_dim] of ids [samples, ids of each], or of ids in one row that offsets cut."""
        bags = _Bags(*_flatten(input, offsets), per_sample_weights if per_sample_weights is None else per_sample_weights.flatten())
        leaf, = self.rows._tables.look_up(self.rows._ids({"ids": bags}), self.training and torch.is_grad_enabled())
        return _pool(leaf, bags, self._mode)

    def prefetch(self, input: torch.Tensor) -> None:  # noqa: A002, torch's name
        """Asks for the rows that the next step's first forward pass will look up."""
        self.rows._tables.ask_ahead(self.rows._ids({"ids": _Bags(input.flatten(), None)}), True)

    def step(self) -> None:
        """As ``EmbeddingBagCollection.step``."""
        self.rows.step()

    def step_with(self, optimizer: torch.optim.Optimizer) -> None:
        """Calls step() after each step of this optimizer."""
        self.rows.step_with(optimizer)


def _read_start(name: str, table: Any) -> float:
    """Of a table of float32 rows that begin uniformly distributed between the negative of this and it; TorchRec's own says with
    more fields whether it is one."""
    scale = table.get_weight_init_max() if hasattr(table, "get_weight_init_max") else getattr(table, "weight_init_max", 0.01)
    scale = read_number(name + "weight_init_max", scale)
    if (least := getattr(table, "weight_init_min", None)) is not None and least != -scale:
        raise ValueError(f"{name}weight_init_min is {least!r}; the negative of weight_init_max, {-scale!r}, is accepted")
    begin = getattr(table, "init_fn", None)
    if begin is not None and getattr(begin, "func", None) is not torch.nn.init.uniform_:
        raise ValueError(f"{name}init_fn is {begin!r}; rows begin uniformly distributed, by weight_init_max")
    if (type_ := getattr(table, "data_type", None)) is not None and getattr(type_, "name", type_) != "FP32":
        raise ValueError(f"{name}data_type is {type_!r}; FP32 is accepted")
    return scale


def _read_mode(mode: Any) -> str:
    name = str(getattr(mode, "value", mode)).lower()
    if name not in _MODES:
        raise ValueError(f"rows are pooled by {mode!r}; 'sum', 'mean' and 'max' are accepted")
    return name


def _flatten(ids: torch.Tensor, offsets: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Ids in one row and where each sample's begin."""
    if not isinstance(ids, torch.Tensor):
        raise ValueError(f"ids are {ids!r}; a tensor of integers is accepted")
    if ids.dim() == 2 and offsets is None:
        return ids.flatten(), None if ids.shape[1] == 1 else torch.arange(0, ids.numel(), max(1, ids.shape[1]))
    if ids.dim() != 1:
        raise ValueError(f"ids have the shape {tuple(ids.shape)}; [samples, ids of each], or one row with offsets, is accepted")
    return ids, offsets


def _from_dict(features: Mapping[str, torch.Tensor]) -> dict[str, _Bags]:
    return {name: _Bags(*_flatten(ids, None)) for name, ids in features.items()}


def _from_jagged(features: Any) -> dict[str, _Bags]:
    keys, values = list(features.keys()), features.values()
    lengths = features.lengths() if hasattr(features, "lengths") else features.offsets().diff()
    weights = features.weights_or_none() if hasattr(features, "weights_or_none") else None
    by_key = lengths.view(len(keys), -1)
    counts = by_key.sum(1).tolist()
    all_single = bool((lengths == 1).all())
    bags = {}
    for key, own, part in zip(keys, by_key, values.split(counts)):
        bags[key] = _Bags(part, None if all_single else own.cumsum(0) - own)
    if weights is not None:
        for each, part in zip(bags.values(), weights.split(counts)):
            each.weights = part
    return bags


def _pool(rows: torch.Tensor, bags: _Bags, mode: str) -> torch.Tensor:
    weights = bags.weights if bags.weights is None else bags.weights.to(rows.device)
    if bags.offsets is None:  # a row for each sample
        return rows if weights is None else rows * weights.unsqueeze(1)
    return F.embedding_bag(torch.arange(len(rows)), rows, bags.offsets.to(rows.device, torch.int64), mode=mode, per_sample_weights=weights)
