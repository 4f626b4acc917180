"""A DataLoader that splits each global batch among the ranks by their measured speed.

All ranks make the same decisions from the same numbers, so that nothing has to be sent around but what each rank measured:
the samples of its last step, the seconds that it took to load and compute them, and the rest of the step. What was measured in
step k is exchanged while step k + 1 is computed, and is known to all when step k + 2 begins. A DataLoader with worker
processes draws its batches ahead; the split that follows from step k therefore holds from step k + 2 + a on, where a is the
number of steps that the rank with the most workers draws ahead. Until then steps are laid out as decided before, and their
times say nothing of the new split; they are left out.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.data

from . import _devices, _motley, emulated
from ._arguments import check_group, name_type, read_integer, read_mean, read_number
from ._planning import Document, list_proportions, read_plan
from ._ranks import PendingRows, Ranks, check_alike
from ._results import Plan
from ._run_directory import RunDirectory

_UNWEIGHTED = (
    "ranks get unequal parts of the batch, but their gradients are averaged as if the parts were equal: call "
    "model = motley.weight_gradients(model, loader), or backward() on loader.weigh(loss), or ask for batch_split='equal'; a loop that does "
    "not train runs as a whole within torch.no_grad()")
_REFUSED = {
    "batch_size": "batch_size is one rank's in torch.utils.data.DataLoader; say global_batch_size, the number of samples of "
                  "one step on all ranks together (ranks x batch_size)",
    "sampler": "a sampler says which samples a rank gets; motley.DataLoader does that (shuffle, seed)",
    "batch_sampler": "a batch_sampler says which samples a rank gets; motley.DataLoader does that (shuffle, seed)",
}
_OUT_OF_ORDER = "in_order is False; True is accepted: gradients are weighted by the step whose batch comes next"
_NO_BATCH = "the loader has yielded no batch yet: call this in its loop"
_TWO_PASSES = ("another pass over the loader has begun since, and it yields the batches of one at a time: make a motley.DataLoader for "
               "each")
_END = object()
_MOST_EPOCHS = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class _Step:
    """A step as it is laid out."""

    number: int
    epoch: int
    split: list[int]  # samples of each rank
    after: tuple[int, int]  # epoch and cursor once it is done
    is_repeated: bool = False  # its times say nothing of its split
    is_redealt: bool = False  # it was drawn for another split, before the ranks changed


@dataclasses.dataclass(frozen=True)
class _Batch:
    """What is handed out at once: a step's samples of this rank, or a micro-batch of them."""

    step: _Step
    samples: int  # 0: a stand-in, whose gradients count nothing
    micro_batches: int  # of the step on this rank
    is_first: bool
    is_last: bool


class _Drawn(torch.utils.data.DistributedSampler[list[int]]):
    """The indices of one batch after the other, as torch's DataLoader asks for them.

    Lightning and Ray Train put a DistributedSampler into each loader that has none; this is one.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        if not self._loader._begins:
            raise RuntimeError(
                "another DataLoader was made of a motley.DataLoader's batches, as accelerate.skip_first_batches does: it would not know "
                "the ranks' samples. Iterate over the motley.DataLoader; its load_state_dict goes on in the middle of an epoch")
        return self._loader._draw()

    def __len__(self) -> int:
        return len(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Nothing: the loader counts its passes, also those before it was resumed, of which a framework may not know."""


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Loads this rank's part of each global batch; faster ranks get more of it.

    Takes the place of ``DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset))``. Every sample of an epoch is used
    exactly once, by one rank, whatever the split (with ``drop_last`` those of a short last batch are not used). The global
    batch is the same in every step, so learning rates stay. Gradients must be weighted by the samples of each rank:
    ``motley.weight_gradients`` does that.

    Args:
        dataset: a map-style dataset (``__getitem__`` and ``__len__``), the same on every rank.
        global_batch_size: samples of one step, on all ranks together.
        shuffle: a new random order for every epoch, the same on all ranks; otherwise the dataset's own.
        seed: of the orders; the same on all ranks.
        drop_last: leave out a last batch of an epoch that is smaller than the others.
        batch_split: ``"dynamic"`` follows the measured speeds; ``"equal"``; a list of proportions, a number a rank, such as
            ``[3, 1]``; a plan of one stage, as ``motley.plan`` returns it, or its ``pathlib.Path``, for the batch fractions of
            its replicas; or ``"replay:FILE"``, the splits that a run recorded in its metrics.jsonl.
        gradient_accumulation_steps: micro-batches of each step on every rank. The loader then yields micro-batches, and
            ``len()`` counts those. Divides ``global_batch_size``, and the dataset where short last batches are used.
        micro_batch_size: instead, a fixed number of samples a micro-batch; faster ranks get more micro-batches
            (``loader.micro_batches`` of them in the present step). Divides likewise.
        min_local_batch_size, max_local_batch_size: bounds of this rank's part of a batch, in samples; at least 1 by default, and
            2 where the model has a BatchNorm. The maximum is what fits into this rank's memory.
        process_group: whose ranks share a batch; all by default.
        writer: where the split and the waits of each step are written, by rank 0: a TensorBoard ``SummaryWriter``, or a
            W&B run.
        run_directory: a new folder in which rank 0 keeps what each step took, as docs/reference/run-directory.md has it, and at
            the end a page of it, ``report.html``. Where the loader goes on from a state, the folder of that run.
        **arguments: those of ``torch.utils.data.DataLoader``: ``num_workers``, ``collate_fn``, ``pin_memory``, and so on.

    Attributes:
        epoch: how many passes are done.
        samples: this rank's samples of the step, which like what follows is that of the batch yielded last; 0 where it has none and got a
            stand-in, whose gradients count nothing.
        total: samples of the step on all ranks.
        split: samples of each rank.
        micro_batches: how many micro-batches this rank has in the step.
        step_ends: whether this was the last of them: now the optimizer steps.

    Raises:
        ValueError: wrong arguments, each with what is accepted; when the first pass begins, on every rank, where ranks differ in
            dataset, arguments or version.
        RuntimeError: a second unequal step whose gradients nobody weighs.

    All ranks call its methods in the same order. Not thread-safe.
    """

    # Accelerate leaves a loader alone that says the first, and saves the state of one that says the second.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True

    def __init__(self, dataset: torch.utils.data.Dataset[Any], global_batch_size: int | None = None, *, shuffle: bool = True,
                 seed: int = 0, drop_last: bool = False, batch_split: str | Sequence[float] | Document = "dynamic",
                 gradient_accumulation_steps: int = 1, micro_batch_size: int | None = None,
                 min_local_batch_size: int | None = None, max_local_batch_size: int | None = None,
                 process_group: torch.distributed.ProcessGroup | None = None, writer: Any = None,
                 run_directory: str | os.PathLike[str] | None = None, **arguments: Any) -> None:
        for name, sentence in _REFUSED.items():
            if arguments.get(name) is not None:
                raise ValueError(sentence)
        if not arguments.get("in_order", True):
            raise ValueError(_OUT_OF_ORDER)
        if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
            raise ValueError(
                f"motley.DataLoader needs a dataset with __len__ and __getitem__, to use each sample once; {type(dataset).__name__} "
                "has no length. Keep your own loader, and motley.weight_gradients(model, samples=count) weights by what count gives for a "
                "batch")
        self._batch = read_integer("global_batch_size", global_batch_size, 1)
        self._accumulation = read_integer("gradient_accumulation_steps", gradient_accumulation_steps, 1)
        self._shuffle, self._seed, self._drop_last = bool(shuffle), read_integer("seed", seed, 0, 2**63 - 1), bool(drop_last)
        self._micro = None
        if micro_batch_size is not None:
            self._micro = read_integer("micro_batch_size", micro_batch_size, 1)
            if gradient_accumulation_steps != 1:
                raise ValueError("gradient_accumulation_steps and micro_batch_size: one of them, not both")
        self._size = len(dataset)
        if self._size < 1 or (drop_last and self._size < self._batch):
            raise ValueError(f"the dataset has {self._size} samples, fewer than one batch: at least "
                             f"{self._batch if drop_last else 1} are needed")
        self._unit = self._micro or self._accumulation  # samples that are not split further
        self._check_unit()
        self._policy, self._proportions, self._recorded, self._recorded_name = _read_policy(batch_split, self._batch)
        self._counted = 1 if self._policy == "replay" else self._unit  # samples that the splitter counts as one
        self._minimum, self._maximum = (
            None if bound is None else read_integer(name, bound, least)
            for name, bound, least in (("min_local_batch_size", min_local_batch_size, 0),
                                       ("max_local_batch_size", max_local_batch_size, 1)))
        if run_directory is not None and not isinstance(run_directory, (str, os.PathLike)):
            raise ValueError(f"run_directory is {run_directory!r}; the path of a new folder is accepted")
        if writer is not None and not hasattr(writer, "add_scalar") and not hasattr(writer, "log"):
            raise ValueError(f"writer is {name_type(writer)}; a TensorBoard SummaryWriter or a W&B run is accepted")
        check_group(process_group)
        self._group, self._writer, self._folder = process_group, writer, run_directory

        self._ranks: Any = None  # Ranks, from the first pass on
        self._splitter: Any = None
        self._limits: list[tuple[int, int]] = []  # of each rank's samples, as the splitter counts them
        self._places: list[int] = []  # of each rank among those that the splitter knows, of which some may have been lost
        self._known = 0  # how many the splitter knows
        self._regrouped_at = -1  # the step with which the ranks went on once they had changed
        self._elastic: Any = None  # of motley.make_elastic
        self._group_is_broken = False  # as a rank of an elastic job was lost between steps
        self._step: _Step | None = None  # the step at hand
        self._run: RunDirectory | None = None
        self._saved_split: str | None = None
        self._ahead = 0
        self._epoch, self._cursor, self._number = 0, 0, 0  # of the step that comes next
        self._resumes = False
        self._decided: dict[int, list[int]] = {}
        self._drawn: collections.deque[_Batch] = collections.deque()
        self._weights: list[Any] = []  # of motley.weight_gradients and of a ParameterServerOptimizer
        self._followers: list[Callable[[int], None]] = []  # told this rank's samples of each step as it begins
        # Told each batch before the one ahead of it is computed, and whether it is of the next step.
        self._look_ahead: list[Callable[[Any, bool], None]] = []
        self._is_weighed = False
        self._was_unequal = False
        self._measures = False  # whether the ranks measure how long steps take, and tell each other
        self._began, self._loading = 0.0, 0.0  # when the step began, and how long it has loaded
        self._losses = math.nan  # sum of the step's, where the script tells them
        self._pass = (0, 0)  # number and cursor of its first step
        self._yielded = 0  # samples of the batch yielded last

        self.samples: int = 0
        self.total: int = 0
        self.split: list[int] = []
        self.micro_batches: int = 0
        self.step_ends: bool = True
        self._begins = False  # whether a pass is beginning, which alone may draw
        drawn = _Drawn(self)
        read_integer("num_workers", arguments.get("num_workers", 0), 0)
        super().__init__(dataset, batch_sampler=drawn, **arguments)
        self.__dict__["sampler"] = drawn  # PyTorch takes no sampler beside a batch_sampler, and frameworks look at this one

    # ---- What scripts call

    @property
    def epoch(self) -> int:
        return self._epoch

    def weigh(self, loss: torch.Tensor) -> torch.Tensor:
        """The mean loss over the samples yielded last, scaled so that plain averaging over ranks and adding up over micro-batches
        give the gradient of the mean over the whole batch. Instead of ``motley.weight_gradients``; the script then does not
        divide by the number of micro-batches. With ``micro_batch_size`` ranks have different numbers of them: a model that reduces
        gradients in each backward, as ``DistributedDataParallel`` does, has all but the last (``step_ends``) in ``no_sync()``, or ranks
        wait for others that have no more."""
        if any(not weight.by_loss for weight in self._weights):
            raise RuntimeError("the gradients are weighted already, by motley.weight_gradients: use that or loader.weigh, not both")
        if self._ranks and not self.total:
            raise RuntimeError(_NO_BATCH)
        self._is_weighed = True
        return loss * (self._yielded * self._ranks.count / self.total) if self._ranks else loss

    def mean(self, value: torch.Tensor | float) -> float:
        """The mean over all samples of the batch, of a value that is the mean over this rank's. Waits for all ranks."""
        if not self.total:
            raise RuntimeError(_NO_BATCH)
        sums: list[float] = self._join().sum([read_mean("value", value) * self._yielded if self._yielded else 0.0, self._yielded])
        return sums[0] / sums[1]

    def record(self, loss: torch.Tensor | float) -> None:
        """Tells the run directory, where there is one, the mean loss over the samples yielded last; waits for the device where that is
        a GPU."""
        if self._yielded and self._folder is not None:
            told = read_mean("loss", loss) * self._yielded
            self._losses = told if math.isnan(self._losses) else self._losses + told

    def set_epoch(self, epoch: int) -> None:
        """Begins the next pass with the order of this epoch; without it, passes count up. Ignored just after
        ``load_state_dict``, which says where to go on."""
        if not self._resumes:
            self._epoch, self._cursor = read_integer("epoch", epoch, 0, _MOST_EPOCHS), 0

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands after the steps whose batches were yielded, and what was learnt of the ranks' speeds: the same on all
        ranks, and good for any number of ranks. In the middle of a step that step counts as not done."""
        saved = self._splitter.save() if self._splitter is not None else self._saved_split
        return {"version": 1, "seed": self._seed, "shuffle": self._shuffle, "size": self._size, "epoch": self._epoch,
                "cursor": self._cursor, "step": self._number, "batch_split": saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where ``state_dict`` was called: the next pass yields what was left of that epoch.

        Raises:
            ValueError: a state of another dataset, order or version, one that is damaged, or one that leaves a last batch that cannot be
                accumulated as here; says which field, or what to do. Nothing is loaded then.
        """
        if not isinstance(state, dict) or state.get("version") != 1:
            raise ValueError(f"{str(state)[:60]!r} is no state of version 1; what state_dict() gave is accepted")
        for key, own in (("size", self._size), ("shuffle", self._shuffle)):
            if state.get(key) != own:
                raise ValueError(f"the state is of another dataset or order: its {key} is {state.get(key)}, here it is {own}")
        most = {"seed": 2**63 - 1, "epoch": _MOST_EPOCHS, "cursor": self._size - 1, "step": 2**63 - 1}
        seed, epoch, cursor, step = (read_integer(f"the state's {key}", state.get(key), 0, value) for key, value in most.items())
        rest = (self._size - cursor) % self._batch
        if rest % self._unit and not self._drop_last:
            raise ValueError(f"the state leaves a last batch of {rest} samples of its epoch, which {self._unit} does not divide: say "
                             "drop_last=True, or accumulate as the run did that wrote it")
        saved = state.get("batch_split")
        if saved is not None and not isinstance(saved, str):
            raise ValueError(f"the state's batch_split is {saved!r}; a text that state_dict() gave, or None, is accepted")
        self._restore_split(saved)
        self._seed, self._epoch, self._cursor, self._number, self._saved_split = seed, epoch, cursor, step, saved
        self._resumes = True

    def _restore_split(self, saved: str | None) -> None:
        """What was learnt of the ranks' speeds, once the ranks have agreed on a split."""
        if self._splitter is None or saved is None:
            return
        try:
            self._splitter.restore(saved)
        except (RuntimeError, ValueError) as problem:
            raise ValueError(f"the state's batch_split is {saved[:60]!r}: {problem}; a text that state_dict() gave, or None, is "
                             "accepted") from problem

    # ---- Passes

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self._yield_batches()

    def _begin_pass(self) -> Iterator[Any]:
        """Where the first batch is asked for: frameworks make iterators well before, and more of them than they use."""
        self._join()
        if not self._resumes and self._cursor > 0:  # the last pass was left before its end
            self._epoch, self._cursor = self._epoch + 1, 0
        self._resumes, self.step_ends, self._step = False, True, None
        self._decided.clear()
        self._drawn.clear()
        self._pass = (self._number, self._cursor)
        for weight in self._weights:
            weight.begin_pass()
        for step in range(self._number, self._number + self._ahead):
            self._decide(step)
        self._begins = True
        try:
            return super().__iter__()
        finally:
            self._begins = False

    def __len__(self) -> int:
        if self._micro:
            raise TypeError("with micro_batch_size the number of micro-batches differs from rank to rank and step to step; "
                            f"an epoch has {self._count_steps()} steps")
        return self._count_steps() * self._accumulation

    def _yield_batches(self) -> Iterator[Any]:
        batches = self._begin_pass()
        own = self._pass
        self._note_pass(is_open=True)
        sent: tuple[_Step, PendingRows, Ranks] | None = None  # what was measured in the step before the last one
        upcoming: list[Any] = []
        try:
            while True:
                if self._pass is not own:
                    raise RuntimeError(_TWO_PASSES)
                asked = time.monotonic()
                if self.step_ends:
                    done = self._step
                    measured = self._measure(asked) if done and done.number > self._regrouped_at else None
                    if sent:
                        self._learn(*sent)
                        sent = None
                    self._decide(self._number + self._ahead)
                    if done and measured:
                        with self._noting_lost_ranks():
                            sent = (done, self._ranks.start_gather(measured), self._ranks)
                    self._began, self._loading, self._losses = time.monotonic(), 0.0, math.nan
                    asked = self._began
                batch = upcoming.pop() if upcoming else next(batches, _END)
                if batch is _END:
                    if sent:
                        self._learn(*sent)
                        sent = None
                    for weight in self._weights:
                        weight.end_pass()
                    self._note_pass(is_open=False)
                    break
                drawn = self._drawn.popleft()
                if not self._fits(drawn.step.split):
                    batch = self._deal_again(drawn.step)
                elif drawn.step.is_redealt:
                    batch = self._deal(drawn.step)
                else:
                    self._hand_out(drawn)
                if self._look_ahead:
                    upcoming.append(next(batches, _END))
                    for look in self._look_ahead if upcoming[0] is not _END else []:
                        look(upcoming[0], self.step_ends)
                self._loading += time.monotonic() - asked
                yield batch
        finally:
            for weight in self._weights if self._pass is own else []:
                weight.leave_pass()
            if sent and sent[2] is self._ranks:
                with self._noting_lost_ranks():
                    sent[1].wait()  # nothing is on its way when a process ends or another loader speaks

    def _note_pass(self, *, is_open: bool) -> None:
        if self._run is not None:
            self._run.is_in_pass = is_open

    @contextlib.contextmanager
    def _noting_lost_ranks(self) -> Iterator[None]:
        """In an elastic job a rank may be lost between steps. Then the next step begins with the ranks that are left."""
        try:
            yield
        except dist.DistBackendError:
            if self._elastic is None:
                raise
            self._group_is_broken = True

    def _hand_out(self, batch: _Batch) -> None:
        step, ranks = batch.step, self._ranks
        self._step = step
        self.split, self.total, self.samples = step.split, sum(step.split), step.split[ranks.rank]
        self.micro_batches, self.step_ends, self._yielded = batch.micro_batches, batch.is_last, batch.samples
        if batch.is_first:
            self._check_weighting()
            for weight in self._weights:
                weight.begin_step(self.samples, self.total, self.micro_batches)
            for follower in self._followers:
                follower(self.samples)
        for weight in self._weights:
            weight.begin_batch(batch.is_last)
        if batch.is_last:
            self._number, (self._epoch, self._cursor) = step.number + 1, step.after

    def _fits(self, split: list[int]) -> bool:
        """Whether it keeps to the ranks' maximums, which may have become less since it was laid out."""
        return all(samples <= maximum * self._counted for samples, (_, maximum) in zip(split, self._limits))

    def _lower(self, maximums: list[int]) -> None:
        """Splits no longer give ranks more samples than these."""
        limits = [(min(low, new // self._counted), min(high, new // self._counted))
                  for (low, high), new in zip(self._limits, maximums)]
        self._splitter.limit(self._number, self._spread(limits, (0, 0)))
        self._limits = limits

    def _spread(self, values: list[Any], absent: Any) -> list[Any]:
        """A value for each that the splitter knows, of one for each rank."""
        spread = [absent] * self._known
        for place, value in zip(self._places, values):
            spread[place] = value
        return spread

    def _plan(self, step: int, window: int) -> list[int]:
        """Each rank's samples, by what is known now."""
        shares = self._splitter.plan(step, window // self._counted)
        return [shares[place] * self._counted for place in self._places]

    def _deal_again(self, step: _Step, *, repeats: bool = False) -> Any:
        """Splits a step's batch anew, by what is known now, and loads this rank's part of it."""
        return self._deal(dataclasses.replace(step, split=self._plan(step.number, sum(step.split)), is_repeated=repeats))

    def _deal(self, step: _Step) -> Any:
        """Loads this rank's part of a step's batch."""
        first, cursor = self._pass
        split, rank = step.split, self._ranks.rank
        begin = cursor + (step.number - first) * self._batch
        if split[rank]:
            begin += sum(split[:rank])
        end = begin + (split[rank] or self._stand_in(sum(split)))
        samples = (_motley.Ledger(self._seed, step.epoch, 0, self._size).samples(begin, end) if self._shuffle
                   else list(range(begin, end)))
        dataset: Any = self.dataset
        items = dataset.__getitems__(samples) if hasattr(dataset, "__getitems__") else [dataset[sample] for sample in samples]
        self._hand_out(_Batch(step, split[rank], 1, True, True))
        batch = self.collate_fn(items)
        if self.pin_memory and torch.accelerator.is_available():
            batch = torch.utils.data._utils.pin_memory.pin_memory(batch)  # type: ignore[no-untyped-call]
        return batch

    def _check_weighting(self) -> None:
        if self._ranks.count == 1 or not torch.is_grad_enabled():
            return
        is_unequal = any(samples != self.split[0] for samples in self.split)
        if (is_unequal or self._was_unequal) and self._number > self._pass[0] and not (self._weights or self._is_weighed):
            raise RuntimeError(_UNWEIGHTED)
        self._was_unequal = is_unequal

    def _measure(self, asked: float) -> list[float] | None:
        """Of the step that ended: this rank's samples, its seconds without waiting for others, the rest of the step, the seconds of
        loading, and the sum of losses. What a rank does once it has the reduced gradients, such as the optimizer's step, takes a slow
        rank longer too, and nobody waits for it before the gradients of the next step are summed: it counts among its seconds."""
        if not self._measures:
            return None
        finished = max((weight.finished for weight in self._weights), default=0.0)
        finished = finished if finished > self._began else asked
        seconds = finished - self._began
        reduced = max((weight.reduced for weight in self._weights), default=0.0)
        if reduced > finished:
            seconds += asked - reduced
        for weight in self._weights:
            seconds = max(seconds, weight.device_seconds())
        losses = 0.0 if not self.samples else self._losses
        return [float(self.samples), seconds, max(0.0, asked - self._began - seconds), min(self._loading, seconds), losses]

    def _learn(self, step: _Step, pending: PendingRows, ranks: Ranks) -> None:
        measured: list[list[float]] = []
        if ranks is self._ranks:  # else others may know it or not, so it is forgotten
            with self._noting_lost_ranks():
                measured = pending.wait().tolist()
        if not measured:
            return
        planned = [self._splitter.shares[place] * self._counted for place in self._places]
        if self._policy == "dynamic" and ranks.count > 1 and step.split == planned and not step.is_repeated:
            self._splitter.observe(step.number, self._spread(
                [(int(samples) // self._counted, seconds, rest) for samples, seconds, rest, *_ in measured], (0, 0.0, 0.0)))
        if self._ranks.rank == 0 and self._writer is not None:
            _write(self._writer, step, measured)
        if self._run is not None:
            self._run.write_step(step.number, step.epoch, self._policy, step.split, measured, self._splitter.reason)

    # ---- Laying out

    def _join(self) -> Any:
        """Agrees with the other ranks, once: whether all are given the same, how far they draw ahead, and what they can hold."""
        if self._ranks is None:
            ranks = Ranks(self._group)
            if ranks.count > 1:  # a batch of another size than before is not to take longer because the system zeroes memory for it
                _motley.keep_freed_memory()
            self._agree(ranks, list(range(ranks.count)), ranks.count)
        return self._ranks

    def _agree(self, ranks: Ranks, places: list[int], known: int) -> None:
        """``places`` are the ranks', of as many as are ``known`` to the splitter."""
        self._places, self._known = places, known
        steps_ahead = math.ceil(self.num_workers * (self.prefetch_factor or 2) / (1 if self._micro else self._accumulation))
        if self._look_ahead:
            steps_ahead += 1
        minimum = self._minimum
        if minimum is None:
            minimum = max((weight.minimum for weight in self._weights), default=1)
        maximum = self._maximum if self._maximum is not None else self._batch
        told = ranks.gather({
            "version of motley": _motley.version, "dataset's length": self._size, "global_batch_size": self._batch,
            "seed": self._seed, "shuffle": self._shuffle, "drop_last": self._drop_last,
            "gradient_accumulation_steps": self._accumulation, "micro_batch_size": self._micro,
            "batch_split": (self._policy, self._proportions, self._recorded), "position": (self._epoch, self._cursor, self._number),
            "run_directory": self._folder is not None,
            "": (steps_ahead, minimum, maximum, self._writer is not None or self._folder is not None, self._describe(ranks.rank),
                 [weight.list_parameters() for weight in self._weights])})
        for key in told[0]:
            for rank, other in enumerate(told):
                if key and other[key] != told[0][key]:
                    raise ValueError(f"ranks differ in {key}: rank 0 has {told[0][key]!r}, rank {rank} has {other[key]!r}")
        for models in zip(*(other[""][5] for other in told)):
            check_alike(models)
        self._ahead = max(other[""][0] for other in told)
        self._measures = any(other[""][3] for other in told) or (ranks.count > 1 and self._policy == "dynamic")
        self._limits = [(-(-low // self._counted), high // self._counted) for _, low, high, *_ in (other[""] for other in told)]
        if sum(high for _, high in self._limits) * self._counted < self._batch:
            raise ValueError(f"max_local_batch_size of all ranks together is {sum(high for _, high in self._limits) * self._counted}, less "
                             f"than global_batch_size, {self._batch}")
        if sum(low for low, _ in self._limits) * self._counted > self._batch:
            raise ValueError(f"min_local_batch_size of all ranks together is {sum(low for low, _ in self._limits) * self._counted}, more "
                             f"than global_batch_size, {self._batch}")
        self._splitter = self._make_splitter(self._spread(self._limits, (0, 0)))
        self._restore_split(self._saved_split)
        if (folder := self._folder) is not None:
            self._run = ranks.agree(lambda: RunDirectory(
                folder, [other[""][4] for other in told], resumed_at=self._number if self._resumes else None,
                gradient_sync=dist.get_backend(self._group) if ranks.count > 1 else "", global_batch_size=self._batch,
                training_samples=self._size) if ranks.rank == 0 else None)
        self._ranks = ranks

    def _make_splitter(self, limits: list[tuple[int, int]]) -> Any:
        return _motley.BatchSplitter(
            self._policy, self._batch // self._counted, limits, self._proportions, self._recorded, self._recorded_name)

    # ---- In an elastic job, when the ranks change

    def _go_back_to(self, number: int) -> None:
        """Takes back the step at hand if it is this one: it begins once more. If it is the one before, it is done after all."""
        step, (first, cursor) = self._step, self._pass
        if step is not None and step.number == number:
            self._number, self._epoch, self._cursor = number, step.epoch, cursor + (number - first) * self._batch
        elif step is not None and step.number + 1 == number:
            self._number, (self._epoch, self._cursor) = number, step.after

    def _forget_ranks(self) -> None:
        """The next pass begins with those that are there by then."""
        self._ranks = self._splitter = self._saved_split = None
        self._resumes = False

    def _tell_split(self) -> tuple[str, list[tuple[int, int]]] | None:
        """What is known of the ranks' speeds, and the limits with which that was learnt. None before the ranks have agreed."""
        return (self._splitter.save(), self._spread(self._limits, (0, 0))) if self._splitter else None

    def _change_ranks(self, ranks: Ranks, places: list[int], known: int, told: tuple[str, list[tuple[int, int]]] | None) -> None:
        """Goes on from the next step with these ranks. All of them are given what one of them told of the split."""
        self._regrouped_at = self._number
        self._agree(ranks, places, known)
        if told is not None:
            saved, limits = told
            self._splitter = self._make_splitter(limits)
            self._restore_split(saved)
            self._splitter.limit(self._number, self._spread(self._limits, (0, 0)))
        self._group_is_broken = False
        self._drawn = collections.deque(
            dataclasses.replace(batch, step=dataclasses.replace(batch.step, split=self._plan(batch.step.number, sum(batch.step.split)),
                                                                is_redealt=True)) for batch in self._drawn)
        decided, self._decided = self._decided, {}
        for step in decided:
            self._decide(step)

    def _describe(self, rank: int) -> dict[str, Any]:
        """This rank, as a run directory has it."""
        device = next((weight.device for weight in self._weights), torch.device("cpu"))
        speed = os.environ.get("MOTLEY_EMULATED_SPEED")
        how = [f"relative speed {speed}"] if speed else []
        if device.type == emulated.DEVICE:
            how.append(emulated.describe())
        return {"name": f"rank {rank} on {socket.gethostname()}",
                "device": _devices.describe(device), "kind": device.type,
                "emulated": ", on ".join(how) or None}

    def _window(self, cursor: int) -> int:
        """Samples of the step that begins there; 0 at the end of the epoch."""
        left = self._size - cursor
        return 0 if self._drop_last and left < self._batch else min(self._batch, left)

    def _decide(self, step: int) -> None:
        """Lays down the split of a step of this pass by what is known now, unless that is done."""
        first, cursor = self._pass
        window = self._window(min(self._size, cursor + (step - first) * self._batch))
        if window and step not in self._decided:
            split = self._plan(step, window)
            if any(samples % self._unit for samples in split):
                raise ValueError(f"{self._recorded_name}: step {step} is split as {split}, and each part must be a multiple of "
                                 f"{self._unit} samples, as gradients are accumulated")
            self._decided[step] = split

    def _draw(self) -> Iterator[list[int]]:
        step, cursor = self._pass
        epoch = self._epoch
        order = _motley.Ledger(self._seed, epoch, 0, self._size) if self._shuffle else None
        while window := self._window(cursor):
            split, rank = self._decided.pop(step), self._ranks.rank
            mine, begin = split[rank], cursor + sum(split[:rank])
            end = cursor + window
            laid_out = _Step(step, epoch, split, (epoch, end) if self._window(end) else (epoch + 1, 0))
            count = max(1, mine // self._micro) if self._micro else self._accumulation
            each = mine // count
            for micro in range(count):
                low = begin + micro * each if mine else cursor
                high = low + (each if mine else self._stand_in(window))
                self._drawn.append(_Batch(laid_out, each, count, micro == 0, micro == count - 1))
                yield order.samples(low, high) if order else list(range(low, high))
            step, cursor = step + 1, end

    def _stand_in(self, window: int) -> int:
        """Samples of the batch, which counts nothing, of a rank without a part of a step: as many as the model needs to compute."""
        return min(window, max((weight.minimum for weight in self._weights), default=1))

    def _count_steps(self) -> int:
        return self._size // self._batch if self._drop_last else -(-self._size // self._batch)

    def _check_unit(self) -> None:
        name = "micro_batch_size" if self._micro else "gradient_accumulation_steps"
        if self._batch % self._unit:
            raise ValueError(f"{name} is {self._unit}, which does not divide global_batch_size, {self._batch}")
        rest = self._size % self._batch
        if rest % self._unit and not self._drop_last:
            raise ValueError(
                f"{name} is {self._unit}, which does not divide the last batch of an epoch, of {rest} samples: say drop_last=True, "
                "or accumulate otherwise")


class Mean:
    """The mean of a value over all samples of all ranks, such as the accuracy over a validation set.

    ``update`` after each batch, then ``compute``, which waits for all ranks.
    """

    def __init__(self, loader: DataLoader) -> None:
        if not isinstance(loader, DataLoader):
            raise ValueError(f"loader is {name_type(loader)}; a motley.DataLoader is accepted, which knows each rank's samples")
        self._loader, self._weighted, self._samples = loader, 0.0, 0

    def update(self, value: torch.Tensor | float) -> None:
        """Adds the mean over this rank's samples of the batch yielded last; ignored where that was a stand-in."""
        if self._loader._yielded:
            self._weighted += read_mean("value", value) * self._loader._yielded
            self._samples += self._loader._yielded

    def compute(self) -> float:
        """The mean of all that was added on all ranks; nan where that is nothing."""
        weighted, samples = self._loader._join().sum([self._weighted, self._samples])
        return weighted / samples if samples else math.nan


def _read_policy(batch_split: Any, global_batch_size: int) -> tuple[str, list[float], str, str]:
    """The policy's name, proportions, and recorded splits as text with the name of their file."""
    if isinstance(batch_split, str):
        if batch_split.startswith("replay:"):
            name = batch_split.removeprefix("replay:")
            try:
                with open(name, encoding="utf-8") as file:
                    return "replay", [], file.read(), name
            except OSError as problem:
                raise ValueError(f"batch_split is {batch_split!r}: {problem.strerror}; 'replay:' and the metrics.jsonl of a run is "
                                 "accepted") from problem
        if batch_split in ("dynamic", "equal"):
            return batch_split, [], "", ""
    elif isinstance(batch_split, Sequence):
        proportions = [read_number(f"batch_split[{rank}]", part, may_be_zero=True) for rank, part in enumerate(batch_split)]
        if not any(proportions):
            raise ValueError(f"batch_split is {batch_split!r}; a list of proportions, a number a rank and not all 0, is accepted")
        return "fixed", proportions, "", ""
    elif isinstance(batch_split, (os.PathLike, Mapping, Plan)):
        return "fixed", _read_proportions(read_plan(batch_split), global_batch_size), "", ""
    raise ValueError(f"batch_split is {batch_split!r}; 'dynamic', 'equal', 'replay:FILE', a list of proportions, a number a rank, or a "
                     "plan or its path as a pathlib.Path, is accepted")


def _read_proportions(plan: Mapping[str, Any], global_batch_size: int) -> list[float]:
    """Of the parts of a plan of one stage, a number a device."""
    if len(plan["stages"]) != 1:
        raise ValueError(f"batch_split is a plan of {len(plan['stages'])} stages; one of a single stage is accepted, and motley.pipeline "
                         "runs the others")
    if plan["global_batch_size"] != global_batch_size:
        raise ValueError(f"batch_split is a plan for batches of {plan['global_batch_size']} samples, and global_batch_size is "
                         f"{global_batch_size}; a plan for that is accepted")
    return list_proportions(plan["stages"][0])


def _write(writer: Any, step: _Step, measured: list[list[float]]) -> None:
    names = [f"rank {rank}" for rank in range(len(measured))]
    waits = [rest / (seconds + rest) if seconds + rest else 0.0 for _, seconds, rest, *_ in measured]
    groups: dict[str, list[Any]] = {"motley/local_batch_size": step.split, "motley/wait_fraction": waits}
    if hasattr(writer, "add_scalar"):
        for group, values in groups.items():
            for name, value in zip(names, values):
                writer.add_scalar(f"{group}/{name}", value, step.number)
    else:
        writer.log({f"{group}/{name}": value for group, values in groups.items() for name, value in zip(names, values)})
