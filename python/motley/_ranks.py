"""The processes that share a batch: torch.distributed's, or this one alone."""

from __future__ import annotations

import atexit
import collections
import pickle
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before PyTorch 2.13
Value = TypeVar("Value")
_side_groups: dict[dist.ProcessGroup, dist.ProcessGroup] = {}  # by the group whose ranks they have
_all: weakref.WeakSet[Ranks] = weakref.WeakSet()
# What the last messages were made of: a thread of gloo lets it go a little after a message is over, see _release().
_recent: collections.deque[torch.Tensor] = collections.deque(maxlen=16)


class Ranks:
    """The ranks of a process group, with a gloo group of their own for small messages about each step.

    ``group`` is a process group, or None for all ranks. All of its ranks make one in the same order, as with
    ``torch.distributed.new_group``. Where torch.distributed is not initialised there is one rank.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.count = 0, 1
        self._side: dist.ProcessGroup | None = None
        if not (dist.is_available() and dist.is_initialized()):
            return
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not a rank of process_group")
        if self.count > 1:
            own: Any = group if group is not None else dist.group.WORLD
            if own not in _side_groups:
                _side_groups[own] = dist.new_group(
                    dist.get_process_group_ranks(own), backend="gloo", use_local_synchronization=group is not None)
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

    def agree(self, work: Callable[[], Value]) -> Value:
        """What work() gives on this rank; where it fails on one rank, it fails on all, with that rank's message. Waits for all ranks.

        Raises:
            ValueError: where it was that on the first rank that failed.
            RuntimeError: otherwise.
        """
        failure: tuple[bool, str] | None = None
        try:
            value = work()
        except (ValueError, RuntimeError, OSError) as problem:
            failure = isinstance(problem, ValueError), str(problem)
        for rank, other in enumerate(self.gather(failure)):
            if other is not None:
                is_input, message = other
                raise (ValueError if is_input else RuntimeError)(f"rank {rank}: {message}" if self.count > 1 else message)
        return value

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Makes a tensor, of equal shape on every rank, that of rank 0."""
        if self._side is not None:
            _recent.append(tensor)
            dist.broadcast(tensor, dist.get_global_rank(self._side, 0), group=self._side)

    def start_gather(self, numbers: list[float]) -> PendingRows:
        """Starts to exchange a list of numbers, as long on every rank; the other ranks are not waited for."""
        return self._start_gather(torch.tensor(numbers, dtype=torch.float64))

    def _start_gather(self, mine: torch.Tensor) -> PendingRows:
        if self.count == 1:
            return PendingRows(mine, 1, None)
        flat = torch.empty(self.count * len(mine), dtype=mine.dtype)
        _recent.extend((flat, mine))
        return PendingRows(flat, self.count, _all_gather(flat, mine, group=self._side, async_op=True))

    def sum(self, numbers: list[float]) -> list[float]:
        """The sum of every rank's numbers. Waits for all ranks."""
        total = torch.tensor(numbers, dtype=torch.float64)
        if self.count > 1:
            _recent.append(total)
            dist.all_reduce(total, group=self._side)
        return total.tolist()


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

    def __init__(self, flat: torch.Tensor, count: int, work: dist.Work | None) -> None:
        self._flat, self._count, self._work = flat, count, work

    def wait(self) -> torch.Tensor:
        """A row a rank, in rank order."""
        if self._work is not None:
            self._work.wait()
        return self._flat.view(self._count, -1)
