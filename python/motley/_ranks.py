"""The processes that share a batch, torch.distributed's or this one alone, and small messages between them.

Messages go over a group of their own: of the backend ``motley`` where the script's has that, so that between hosts they are
authenticated as its other messages are, else of gloo.
"""

from __future__ import annotations

import atexit
import collections
import itertools
import pickle
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from . import _backend
from ._arguments import check_group

Value = TypeVar("Value")
# Backends, by the group whose ranks they have; with it goes its store, on whose port the next group of all ranks may have its own.
_side_groups: weakref.WeakKeyDictionary[dist.ProcessGroup, Any] = weakref.WeakKeyDictionary()
_all: weakref.WeakSet[Ranks] = weakref.WeakSet()
# What the last messages were made of: a thread of gloo lets it go a little after a message is over, see _release().
_recent: collections.deque[torch.Tensor] = collections.deque(maxlen=64)


class Ranks:
    """The ranks of a process group, with a group of their own for small messages about each step.

    ``group`` is a process group, or None for all ranks. All of its ranks make one in the same order, as with
    ``torch.distributed.new_group``. Where torch.distributed is not initialised there is one rank.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        check_group(group)
        self.rank, self.count = 0, 1
        self.timeout = dist.default_pg_timeout if dist.is_available() else timedelta(minutes=30)
        self._side: Any = None
        if not (dist.is_available() and dist.is_initialized()):
            return
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not a rank of process_group")
        self.timeout = find_timeout(group)
        if self.count > 1:
            own: Any = group if group is not None else dist.group.WORLD
            if own not in _side_groups:
                _side_groups[own] = make_group(group, range(self.count), self.timeout)
            self._side = _side_groups[own]
            _all.add(self)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order; the values must be picklable. Waits for all ranks."""
        if self.count == 1:
            return [value]
        pickled = pickle.dumps(value)
        sizes = [int(size) for size in self.start_gather([len(pickled)]).wait()]
        mine = torch.frombuffer(bytearray(pickled.ljust(max(sizes))), dtype=torch.uint8)
        rows = self._start_gather(mine).wait()
        return [pickle.loads(row.numpy()[:size]) for row, size in zip(rows, sizes, strict=True)]

    def gather_on_first(self, value: Any) -> list[Any] | None:
        """On rank 0 the ranks' values that are not None; None on the others. Values may be large. Waits for all ranks."""
        mine = torch.frombuffer(bytearray(b"" if value is None else pickle.dumps(value)) or bytearray(1), dtype=torch.uint8)
        values = []
        for rank, (size,) in enumerate(self.start_gather([0 if value is None else len(mine)]).wait().tolist()):
            if size:
                pickled = mine if rank == self.rank else torch.empty(int(size), dtype=torch.uint8)
                if self.count > 1:
                    self._broadcast(pickled, rank)
                if self.rank == 0:
                    values.append(pickle.loads(pickled.numpy().tobytes()))
        return values if self.rank == 0 else None

    def agree(self, work: Callable[[], Value]) -> Value:
        """What work() gives on this rank; where it fails on one rank, it fails on all, with that rank's message. Waits for all ranks.

        Raises:
            ValueError: where it was that on the first rank that failed.
            RuntimeError: otherwise.
            Whatever else work() raised, such as an exception of the user's own code, on the ranks where it did.
        """
        failure: tuple[bool, str] | None = None
        raised: Exception | None = None
        try:
            value = work()
        except Exception as problem:
            raised = problem
            is_known = isinstance(problem, (ValueError, RuntimeError, OSError))
            failure = isinstance(problem, ValueError), str(problem) if is_known else describe(problem)
        for rank, other in enumerate(self.gather(failure)):
            if other is not None:
                if raised is not None and not isinstance(raised, (ValueError, RuntimeError, OSError)):
                    raise raised
                is_input, message = other
                raise (ValueError if is_input else RuntimeError)(f"rank {rank}: {message}" if self.count > 1 else message) from raised
        return value


    def broadcast(self, tensor: torch.Tensor, rank: int = 0) -> None:
        """Makes a tensor, of equal shape on every rank, that of one rank."""
        if self._side is not None:
            self._broadcast(tensor, rank)

    def _broadcast(self, tensor: torch.Tensor, rank: int) -> None:
        _recent.append(tensor)
        self._side.broadcast(tensor, rank).wait()

    def start_gather(self, numbers: list[float]) -> PendingRows:
        """Starts to exchange a list of numbers, as long on every rank; the other ranks are not waited for."""
        return self._start_gather(torch.tensor(numbers, dtype=torch.float64))

    def _start_gather(self, mine: torch.Tensor) -> PendingRows:
        if self.count == 1:
            return PendingRows([mine], None)
        rows = [torch.empty_like(mine) for _ in range(self.count)]
        _recent.extend((mine, *rows))
        return PendingRows(rows, self._side.allgather([rows], [mine]))

    def sum(self, numbers: list[float]) -> list[float]:
        """The sum of every rank's numbers. Waits for all ranks."""
        total = torch.tensor(numbers, dtype=torch.float64)
        if self.count > 1:
            _recent.append(total)
            self._side.allreduce([total]).wait()
        return total.tolist()


Parameters = list[tuple[str, tuple[int, ...], str]]  # each one's name, shape and type


def list_parameters(named: Iterable[tuple[str, torch.Tensor]]) -> Parameters:
    """What ranks tell each other of a model, for ``check_alike``."""
    return [(name, tuple(parameter.shape), str(parameter.dtype).removeprefix("torch.")) for name, parameter in named]


def check_alike(models: Sequence[Parameters]) -> None:
    """ValueError where the ranks' parameters differ, which names the first that does."""
    for rank, model in enumerate(models):
        for pair in itertools.zip_longest(models[0], model):
            if pair[0] != pair[1]:
                own, other = ("no parameter more" if each is None else "'{}' of shape {} and type {}".format(*each) for each in pair)
                raise ValueError(f"ranks differ in their parameters: rank 0 has {own}, rank {rank} has {other}; accepted: the same on "
                                 "every rank, in the same order")


def describe(problem: BaseException) -> str:
    """An exception's type and message for other ranks: at most 500 characters, all of them printable."""
    text = f"{type(problem).__name__}: {problem}"[:500]
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def make_group(group: dist.ProcessGroup | None, ranks: Sequence[int], timeout: timedelta) -> Any:
    """The backend of a new group of some ranks of a process group, by their numbers in it, where this is one of them, else None. All ranks
    of the process group call it.

    All ranks of torch.distributed make it as their scripts do. What is of a part of them is not left to new_group, which has different
    names for one group where ranks are in different numbers of groups already.
    """
    rank = dist.get_rank(group)
    name = _backend.NAME if _backend.find(group) is not None else "gloo"
    if group is None:
        made: Any = dist.new_group(list(ranks), backend=name, timeout=timeout)
        return made._get_backend(torch.device("cpu")) if rank in ranks else None
    names: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(names, uuid.uuid4().hex, group=group)
    if rank not in ranks:
        return None
    c10d: Any = dist.distributed_c10d
    store = c10d.PrefixStore(f"motley/{names[0]}", c10d._get_default_store())
    if name == "gloo":
        return c10d.ProcessGroupGloo(store, ranks.index(rank), len(ranks), timeout)
    return _backend.create(_backend.Options(
        store, ranks.index(rank), len(ranks), timeout, [dist.get_global_rank(group, one) for one in ranks], names[0]))


def forget_groups() -> None:
    """Those of process groups that have been destroyed."""
    _side_groups.clear()


def find_timeout(group: dist.ProcessGroup | None) -> timedelta:
    """A process group's."""
    if (backend := _backend.find(group)) is not None:
        return backend.timeout
    try:
        own: Any = group if group is not None else dist.group.WORLD
        other: Any = own._get_backend(torch.device("cpu"))
        return timedelta(seconds=other.options._timeout.total_seconds())
    except (AttributeError, RuntimeError):
        return dist.default_pg_timeout


@atexit.register
def _release() -> None:
    """Lets go what threads of gloo use, while the interpreter's lock can still be had.

    A thread that lets a tensor of ours go needs that lock; one that has not got it when the interpreter ends takes the process down with
    "terminate called". Groups that have been destroyed end their threads here. One that has not been, as after an exception, is given
    a second to let the tensors of the last messages go.
    """
    if not dist.is_initialized():
        _side_groups.clear()
        for ranks in _all:
            ranks._side = None
    deadline = time.monotonic() + 1
    while any(tensor._use_count() > 1 for tensor in _recent) and time.monotonic() < deadline:  # type: ignore[attr-defined]
        time.sleep(0.001)


class PendingRows:
    """A tensor of every rank that is on its way."""

    def __init__(self, rows: list[torch.Tensor], work: dist.Work | None) -> None:
        self._rows, self._work = rows, work

    def wait(self) -> torch.Tensor:
        """A row a rank, in rank order."""
        if self._work is not None:
            self._work.wait()
        return torch.stack(self._rows)
