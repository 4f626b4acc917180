"""Runs a plan over a torch.nn.Module: each rank computes its stage's layers, micro-batches go through the stages in the plan's schedule,
and the step is complete at its end, so that it computes what one process would.

One runtime does for all plans: rows of a micro-batch go from the ranks that have them to those that need them, over connections of our own
(src/motley/collective/stage_channels.h), whatever the numbers of replicas of neighbouring stages. torch.distributed.pipelining wants as
many replicas in every stage and micro-batches of one size, so that it would have been a second runtime for some plans, with other rules
for the rest.

A micro-batch's loss counts by its rows, so gradients of a stage's replicas are simply added up. Row boundaries are those of the program:
between two replicas at the fraction f of a micro-batch of n rows it is floor(f n + phase), where micro-batch i of m has the phase
(i + 1/2) / m, so that over a step each replica has its share.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from . import _motley
from ._arguments import name_type
from ._layers import Chain, Layer, cut, in_mode
from ._pipeline_step import Evaluation, Step
from ._planning import Document, list_proportions, read_plan
from ._profile import check_example, read_device
from ._ranks import Ranks, check_alike, describe, list_parameters, make_group
from ._session import Meeting
from ._weighting import BatchNorm

LossFunction = Callable[[Any, Any], torch.Tensor]


def pipeline(model: torch.nn.Module, plan: Document, *, loss_fn: LossFunction,
             example_inputs: torch.Tensor | Sequence[torch.Tensor], process_group: dist.ProcessGroup | None = None,
             device: torch.device | str | None = None, timeout: float | None = None, name: str | None = None) -> Pipeline:
    """This rank's part of a model that runs as a plan says; called on all ranks, which are the plan's stages one after the other, each
    with its replicas in their order.

    The model is cut as ``motley.profile`` cuts it, and is in training mode from now on, but for evaluations. This rank keeps the
    parameters of its stage's layers on its device; all others go to the device "meta", so that the model can no longer be used by itself.
    A parameter that layers of several stages share is at all of them, with the gradient of all. From now on the process keeps memory that
    it frees, which each step needs again.

    Args:
        model: the whole model. A stage's parameters and buffers become those of its first replica.
        plan: ``motley.plan`` of a profile of this model: a path, a dict or a result.
        loss_fn: of outputs and targets of some rows: the mean over them.
        example_inputs: what forward gets, with a row a sample, on the model's device; samples of a step have the same shapes.
        process_group: its ranks run the plan; by default all. Without torch.distributed the plan must have one device.
        device: of this rank; by default the model's.
        timeout: seconds that any wait for other ranks may take; by default the process group's.
        name: of the model in messages; by default its class.

    Raises:
        ValueError: an argument that is refused, a plan of another model or for another number of ranks, and a buffer that several
            stages read; says what is accepted.
        RuntimeError: another rank failed meanwhile.
    """
    ranks = Ranks(process_group)

    def check() -> _Given:
        inputs = check_example(model, example_inputs)
        if not callable(loss_fn):
            raise ValueError(f"loss_fn: {name_type(loss_fn)}; accepted: a function of outputs and targets")
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0):
            raise ValueError(f"timeout: {timeout!r}; accepted: seconds, a number above 0")
        if name is not None and not isinstance(name, str):
            raise ValueError(f"name: {name!r}; accepted: a text")
        read = read_plan(plan)
        layout = _Layout(read)
        if layout.ranks != ranks.count:
            raise ValueError(f"plan: it has {layout.ranks} device{'s' if layout.ranks > 1 else ''}, and the number of ranks is "
                             f"{ranks.count}; accepted: a rank for each device of the plan, stage by stage")
        return _Given(inputs, read, layout, inputs[0].device if device is None else read_device(device, is_used=True))

    given = ranks.agree(check)
    check_alike(ranks.gather(list_parameters(model.named_parameters())))

    def prepare() -> _Parts:
        chain = cut(model.train(), given.inputs, name or type(model).__name__)
        stages = _find_stages(given.plan, chain, dict(model.named_parameters()))
        shared = _find_shared(model, chain, stages)
        return _Parts(chain, stages, shared, *_cut_for_evaluation(model, given.inputs, chain))

    _motley.keep_freed_memory()
    parts = ranks.agree(prepare)
    return Pipeline(model, parts, given.layout, _Links(ranks, process_group, timeout), loss_fn, given.inputs, given.device)


@dataclass(frozen=True)
class _Given:
    """What ``pipeline`` was given, checked."""

    inputs: tuple[torch.Tensor, ...]
    plan: dict[str, Any]
    layout: _Layout
    device: torch.device


@dataclass(frozen=True)
class _Parts:
    """A model as layers, and how these are in stages."""

    chain: Chain
    stages: list[list[Layer]]
    shared: dict[str, list[int]]  # parameters that layers of several stages read, and the stages
    evaluated: list[Layer]  # all layers as they are in evaluation mode
    why_not_evaluated: str


def _cut_for_evaluation(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], chain: Chain) -> tuple[list[Layer], str]:
    """The layers in evaluation mode, in which functions such as dropout do something else; none, and why, where they are others."""
    try:
        with in_mode(model, training=False):
            evaluated = cut(model, inputs, chain.name)
    except Exception as problem:  # of the user's module: whatever it raises
        return [], f"it fails in evaluation mode: {problem}"
    for own, other in itertools.zip_longest(chain.layers, evaluated.layers):
        if own is None or other is None or own.name != other.name or _shapes(own) != _shapes(other):
            found = [f"'{layer.name}'" if layer else "no more" for layer in (own, other)]
            why = f" ({evaluated.note})" if evaluated.note else ""
            return [], f"in training it has the layer {found[0]} where it has {found[1]} in evaluation mode{why}"
    return evaluated.layers, ""


def _shapes(layer: Layer) -> Any:
    return [(output.shape[1:], output.dtype) for output in layer.outputs]


def _find_stages(plan: Mapping[str, Any], chain: Chain, parameters: Mapping[str, torch.Tensor]) -> list[list[Layer]]:
    """The layers of each stage. A plan's layer may be several of the model's, joined as ``first..last``."""
    of_model = [layer.name for layer in chain.layers]
    ends: dict[str, tuple[int, int]] = {}
    begin = 0
    for name in plan["layers"]:
        end = next((end for end in range(begin, len(of_model))
                    if name == (of_model[begin] if end == begin else f"{of_model[begin]}..{of_model[end]}")), None)
        if end is None:
            break
        ends[name] = (begin, end + 1)
        begin = end + 1
    if len(ends) < len(plan["layers"]) or begin < len(of_model):
        expected = f"'{plan['layers'][len(ends)]}'" if len(ends) < len(plan["layers"]) else "no more"
        found = f"'{of_model[begin]}'" if begin < len(of_model) else "no more"
        why = f" ({chain.note})" if chain.note else ""
        raise ValueError(f"plan: it is of the model '{plan['model']}', and this is '{chain.name}': after {len(ends)} layers that are alike "
                         f"the plan has {expected}, and the model {found}{why}; accepted: a plan of a profile of this model")
    for name, planned in zip(plan["layers"], plan.get("parameter_shapes", ())):
        own = ", ".join(filter(None, (layer.describe_shapes(parameters) for layer in chain.layers[slice(*ends[name])])))
        if own != planned:
            raise ValueError(f"plan: its layer '{name}' has parameters of the shapes {planned or 'none'}, and that of this model "
                             f"{own or 'none'}; accepted: a plan of a profile of this model")
    return [chain.layers[ends[stage["first_layer"]][0]:ends[stage["last_layer"]][1]] for stage in plan["stages"]]


def _find_shared(model: torch.nn.Module, chain: Chain, stages: Sequence[Sequence[Layer]]) -> dict[str, list[int]]:
    """The parameters that layers of several stages read, and the stages."""
    where: dict[str, list[int]] = {}
    for number, layers in enumerate(stages):
        for name in dict.fromkeys(itertools.chain(*(layer.tensors for layer in layers))):
            where.setdefault(name, []).append(number)
    shared = {name: numbers for name, numbers in where.items() if len(numbers) > 1}
    for name in shared.keys() & dict(model.named_buffers()).keys():
        sharing = "', '".join(layer.name for layer in chain.layers if name in layer.tensors)
        raise ValueError(f"plan: layers '{sharing}' of '{chain.name}' share the buffer '{name}' and are in the stages "
                         f"{_join(shared[name])}; accepted: plans that have these layers in one stage")
    return shared


def _join(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))


@dataclass(frozen=True)
class _MicroBatch:
    begin: int  # its first row of the step's
    size: int
    phase: float


class _Layout:
    """Which rank of a plan takes which rows; the same on every rank."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.batch: int = plan["global_batch_size"]
        self.micro_batches: int = plan["micro_batches"]
        self.is_gpipe: bool = plan["pipeline_schedule"] == "gpipe"
        self.recompute = [bool(stage.get("recompute", False)) for stage in plan["stages"]]
        self.members: list[list[int]] = []  # the ranks of each stage
        self._parts: list[tuple[float, float]] = []  # of each rank: where its part of a micro-batch begins and ends
        rank = 0
        for stage in plan["stages"]:
            weights = list_proportions(stage)
            total, before = sum(weights), 0.0
            for number, weight in enumerate(weights):
                after = before + weight
                self._parts.append((before / total, 1.0 if number + 1 == len(weights) else after / total))
                before = after
            self.members.append(list(range(rank, rank + len(weights))))
            rank += len(weights)
        self.ranks = rank

    def find_stage(self, rank: int) -> int:
        """The stage that a rank is in."""
        return next(number for number, ranks in enumerate(self.members) if rank in ranks)

    def cut(self, batch: int) -> list[_MicroBatch]:
        """The micro-batches of a batch, as equal as can be; fewer than the plan's where it has fewer samples."""
        count = min(self.micro_batches, batch)
        return [_MicroBatch(batch * i // count, batch * (i + 1) // count - batch * i // count, (i + 0.5) / count) for i in range(count)]

    def rows(self, rank: int, micro_batch: _MicroBatch) -> tuple[int, int]:
        """Where the rows of a micro-batch begin and end that a rank takes."""
        begin, end = (math.floor(part * micro_batch.size + micro_batch.phase) for part in self._parts[rank])
        return begin, end

    def pieces(self, rank: int, stage: int, micro_batch: _MicroBatch) -> list[tuple[int, int, int]]:
        """Of a rank's rows those that ranks of another stage have, too: (rank, begin, end), counted from its first row."""
        begin, end = self.rows(rank, micro_batch)
        pieces = []
        for other in self.members[stage]:
            low, high = self.rows(other, micro_batch)
            low, high = max(begin, low), min(end, high)
            if low < high:
                pieces.append((other, low - begin, high - begin))
        return pieces

    def count_warm_up(self, stage: int, count: int) -> int:
        """How many of a step's micro-batches a stage takes forward before the first goes back."""
        return count if self.is_gpipe else min(count, len(self.members) - stage)

    def tasks(self, stage: int, count: int) -> Iterator[tuple[bool, int]]:
        """What a stage does in a step, as (whether it is forward, micro-batch)."""
        warm_up = self.count_warm_up(stage, count)
        yield from ((True, number) for number in range(warm_up))
        for number in range(count):
            yield False, number
            if warm_up + number < count:
                yield True, warm_up + number


class _Links:
    """What goes between the ranks of a process group, each wait with a deadline; tensors on a GPU go through the memory of the host."""

    def __init__(self, ranks: Ranks, group: dist.ProcessGroup | None, timeout: float | None) -> None:
        self.ranks = ranks
        self.rank, self.count = self.ranks.rank, self.ranks.count
        self._parent = group
        self._seconds = timeout if timeout else self.ranks.timeout.total_seconds()
        self._session: _motley.Session | None = None
        self._channels: _motley.StageChannels | None = None

    def connect(self, peers: Iterable[int]) -> None:
        """With these ranks, of which each names this one, too. Waits for all ranks."""
        if self.count > 1:
            self._session = session = Meeting(self.ranks).join(self._seconds)
            own = sorted(set(peers) - {self.rank})
            self._channels = channels = self.ranks.agree(lambda: _motley.StageChannels(session, own, self._seconds))
            weakref.finalize(self, _leave, session, channels)

    @contextlib.contextmanager
    def failing_together(self, rows: int) -> Iterator[None]:
        """An exception within it, such as one of the user's loss, ends the waits of all ranks, which are told what it was. The rank works
        on a batch of so many rows."""
        try:
            yield
        except BaseException as problem:
            if isinstance(problem, RuntimeError) and "was expected" in str(problem):
                problem = RuntimeError("ranks have batches of different sizes, or call step and evaluate in different orders (rank "
                                       f"{self.rank} has {rows} rows): {problem}")
            _give_up(self._session, problem)
            raise problem

    def waiting(self, what: str, ranks: Sequence[int]) -> _waiting:
        """For messages of failures within it: who is waited for, and in what."""
        return _waiting(self._session, what, ranks)

    def make_groups(self, members: Iterable[Sequence[int]]) -> list[Any]:
        """A group of each that are several ranks, this one among them, else None; one of all ranks of torch.distributed has the backend
        of these."""
        groups: list[Any] = []
        for ranks in members:
            if len(ranks) == 1:
                groups.append(None)
            elif self._parent is None and len(ranks) == self.count:
                groups.append(dist.new_group(list(ranks), backend=dist.get_backend(), timeout=self._timeout))
            else:
                groups.append(make_group(self._parent, ranks, self._timeout))
        return groups

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=self._seconds)

    def send(self, rank: int, tag: int, tensor: torch.Tensor) -> None:
        """Begins to send; the tensor must not change any more."""
        self._open().send(rank, tag, tensor)

    def receive(self, rank: int, tag: int, tensor: torch.Tensor) -> None:
        """Begins to receive into a contiguous tensor what the rank sends next, which has this tag."""
        self._open().receive(rank, tag, tensor)

    def wait(self, rank: int, what: str) -> None:
        """For the first of what is to be received from a rank and was not waited for."""
        self._open().wait(rank, self._seconds, what)

    def set_phase(self, step: int, phase: int) -> None:
        """What this rank is at, for messages of the others."""
        if self._channels is not None:
            self._channels.set_phase(step, phase)

    def _open(self) -> _motley.StageChannels:
        assert self._channels is not None
        return self._channels


def _give_up(session: _motley.Session | None, problem: BaseException) -> None:
    if session is not None:
        session.abort(describe(problem))


def _leave(session: _motley.Session, channels: _motley.StageChannels) -> None:
    """Where an exception has ended the script, which the interpreter has printed then, the other ranks are told."""
    problem = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    if problem is not None:
        _give_up(session, problem)
    channels.leave()


class _waiting:
    """Adds to a failure of a message who was waited for, and in what; a rank's own word about the cause takes its place."""

    def __init__(self, session: _motley.Session | None, what: str, ranks: Sequence[int]) -> None:
        self._session, self._what, self._ranks = session, what, ranks

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, problem: BaseException | None, trace: Any) -> None:
        if isinstance(problem, RuntimeError):
            ranks, cause = ", ".join(map(str, self._ranks)), str(problem).splitlines()[0]
            if self._session is not None:
                cause = self._session.first_cause(cause)
            raise RuntimeError(f"{self._what}: waiting for rank{'s' if len(self._ranks) > 1 else ''} {ranks} failed: {cause}") from problem


@dataclass
class _Copies:
    """Tensors that several ranks have: the replicas of a stage, or stages that share parameters."""

    what: str
    ranks: list[int]
    group: Any
    tensors: list[torch.Tensor]
    trained: list[torch.Tensor]

    def share_first(self) -> None:
        """Makes them those of the first rank."""
        for tensor in self.tensors:
            first = tensor.detach().contiguous()
            self.group.broadcast(first, 0).wait()
            tensor.detach().copy_(first)

    def add_up(self) -> None:
        """Makes the gradients of all of them their sum."""
        for parameter in self.trained:
            if parameter.grad is None:  # this rank had no rows
                parameter.grad = torch.zeros_like(parameter)
        gradients = [gradient for parameter in self.trained if (gradient := parameter.grad) is not None]
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            own = [gradient for gradient in gradients if gradient.dtype == dtype]
            flat = torch.cat([gradient.reshape(-1) for gradient in own])
            self.sum(flat)
            for gradient, part in zip(own, torch.split(flat, [gradient.numel() for gradient in own])):
                gradient.copy_(part.view_as(gradient))

    def sum(self, flat: torch.Tensor) -> None:
        self.group.allreduce(flat).wait()


class Pipeline:
    """A rank's part of a model that runs as a plan says; made by ``motley.pipeline``.

    Attributes:
        rank: in the process group.
        stage: which one this rank computes, from 0.
        stages: how many there are.
        layers: the names of the stage's.
        device: of the stage.
    """

    def __init__(self, model: torch.nn.Module, parts: _Parts, layout: _Layout, links: _Links, loss_fn: LossFunction,
                 inputs: tuple[torch.Tensor, ...], device: torch.device) -> None:
        stages = parts.stages
        self.rank, self.stage, self.stages, self.device = links.rank, layout.find_stage(links.rank), len(stages), device
        self._model, self._layout, self._links, self._loss = model, layout, links, loss_fn
        self._input_shapes = [tuple(tensor.shape[1:]) for tensor in inputs]
        self._own = stages[self.stage]
        first = sum(map(len, stages[:self.stage]))
        self._evaluated, self._why_not_evaluated = parts.evaluated[first:first + len(self._own)], parts.why_not_evaluated
        self.layers = [layer.name for layer in self._own]
        # Of a few rows, without values: what comes from the stage before, and what goes to the one after.
        self._received = stages[self.stage - 1][-1].outputs if self.stage else ()
        self._sent = self._own[-1].outputs if self.stage + 1 < self.stages else ()
        self._recomputes = layout.recompute[self.stage]
        self._steps = 0
        links.connect(self._list_peers())
        self._keys = self._find_keys([[name for layer in layers for name in layer.tensors] for layers in stages])
        self._named = self._keep_own(device)
        self._trained = [parameter for name, parameter in self._named.items()
                         if parameter.requires_grad and name not in parts.chain.untrained]
        self._norms = [module for module in model.modules() if isinstance(module, BatchNorm) and module.running_mean is not None
                       and not module.running_mean.is_meta]
        self._kept = {tensor.untyped_storage().data_ptr() for tensor in self._named.values()}
        self._copies = self._find_copies(parts.shared)
        self._replicas = self._copies[0] if self._copies and self._copies[0].ranks == layout.members[self.stage] else None
        for copies in self._copies:
            with links.waiting(f"{copies.what}, sharing parameters", copies.ranks):
                copies.share_first()

    def _list_peers(self) -> set[int]:
        """The ranks of the neighbouring stages, and those between which losses go."""
        members = self._layout.members
        peers = set(itertools.chain(*members[max(0, self.stage - 1):self.stage], *members[self.stage + 1:self.stage + 2], members[-1]))
        return peers if self.stage + 1 < self.stages else set(range(self._layout.ranks))

    # ---- Parameters and state

    def _find_keys(self, stages: list[list[str]]) -> list[set[str]]:
        """Of each stage the names of its tensors, every one that a tensor has; what no layer reads is the first stage's."""
        tensors: dict[str, torch.Tensor] = dict(self._model.named_parameters(remove_duplicate=False))
        tensors |= dict(self._model.named_buffers(remove_duplicate=False))
        read = [{id(tensors[name]) for name in names} for names in stages]
        of_all = set().union(*read)
        read[0] |= {id(tensor) for tensor in tensors.values()} - of_all
        return [{name for name, tensor in tensors.items() if id(tensor) in own} for own in read]

    def _keep_own(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Moves the stage's tensors to the device and all others to "meta"; the stage's by their first names."""
        own = self._keys[self.stage]
        moved: dict[int, tuple[torch.Tensor, Any]] = {}  # what was there, by its id, and what is in its place
        kept: dict[str, torch.Tensor] = {}
        for path, module in self._model.named_modules():
            for holder in (module._parameters, module._buffers):
                for name, tensor in holder.items():
                    if tensor is None:
                        continue
                    full = f"{path}.{name}" if path else name
                    if id(tensor) in moved:
                        pass
                    elif full in own:
                        tensor.data = tensor.data.to(device)
                        moved[id(tensor)] = tensor, tensor
                        kept[full] = tensor
                    else:
                        empty: Any = tensor.detach().to("meta")
                        if isinstance(tensor, torch.nn.Parameter):
                            empty = torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
                        moved[id(tensor)] = tensor, empty
                    holder[name] = moved[id(tensor)][1]
        return kept

    def _find_copies(self, shared: Mapping[str, list[int]]) -> list[_Copies]:
        """What other ranks have, too: first the stage's replicas, then by the stages that share parameters."""
        members = self._layout.members
        sharing = sorted({tuple(stages) for stages in shared.values()})
        ranks = [*members, *(list(itertools.chain(*(members[stage] for stage in stages))) for stages in sharing)]
        groups = self._links.make_groups(ranks)
        trained, copies = {id(tensor) for tensor in self._trained}, []
        for number, (own, group) in enumerate(zip(ranks, groups)):
            if group is None or self.rank not in own:
                continue
            stages = sharing[number - len(members)] if number >= len(members) else (self.stage,)
            tensors = {name: tensor for name, tensor in self._named.items() if tuple(shared.get(name, [self.stage])) == stages}
            copies.append(_Copies(f"stage{'s' if len(stages) > 1 else ''} {_join(stages)}", own, group, list(tensors.values()),
                                  [tensor for tensor in tensors.values() if id(tensor) in trained]))
        return copies

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Of this rank's stage, for an optimizer; some stages have none."""
        return (tensor for tensor in self._named.values() if isinstance(tensor, torch.nn.Parameter))

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The same with the names that the whole model has for them."""
        return ((name, tensor) for name, tensor in self._named.items() if isinstance(tensor, torch.nn.Parameter))

    def state_dict(self) -> dict[str, Any]:
        """Parameters and buffers of this rank's stage, by the names that the whole model has for them.

        Those of all stages together are what the model's own ``load_state_dict`` takes.
        """
        own, state = self._keys[self.stage], self._model.state_dict()
        tensors = {name for keys in self._keys for name in keys}
        return {name: value for name, value in state.items() if name in own or (name not in tensors and self.stage == 0)}

    def gather_state_dict(self) -> dict[str, Any] | None:
        """The whole model's state on rank 0, on the CPU, in the model's order; None on the others. Waits for all ranks."""
        is_first = self._layout.members[self.stage][0] == self.rank
        own = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), self.state_dict()) if is_first else None
        states = self._links.ranks.gather_on_first(own)
        if states is None:
            return None
        merged = {name: value for state in states for name, value in state.items()}
        return {name: merged[name] for name in self._model.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes this rank's stage from a state of the whole model, or of the stage.

        Raises:
            ValueError: a name is missing, or a shape is another; says which. Nothing is loaded then.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"state: {name_type(state)}; accepted: tensors by their names, as state_dict() gives them")
        tensors = {name: own for name, own in self.state_dict().items() if isinstance(own, torch.Tensor)}
        for name, own in tensors.items():
            value = state.get(name)
            if not isinstance(value, torch.Tensor) or value.shape != own.shape:
                what = (f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor)
                        else name_type(value) if name in state else "missing")
                raise ValueError(f"state: '{name}' is {what}; accepted: a tensor of shape {tuple(own.shape)}")
        with torch.no_grad():
            for name, own in tensors.items():
                own.copy_(state[name])

    # ---- Steps

    def step(self, inputs: Any = None, targets: Any = None) -> torch.Tensor:
        """One step forward and backward: gradients are added to ``.grad`` of this rank's parameters, as by ``backward()``.

        Args:
            inputs: the whole step's, a tensor or a tuple of tensors, with a row a sample, on any device. Needed on ranks of the first
                stage, which take their rows; others may be given None.
            targets: the whole step's, a tensor, or tensors in a tuple, list or dict; likewise needed on ranks of the last stage.

        Where a rank is given neither, the step has the plan's ``global_batch_size`` rows.

        Returns:
            The mean loss over all rows of the step, on every rank, a tensor of one value on the CPU.

        Raises:
            ValueError: inputs or targets that are missing or of other shapes; says what is accepted.
            RuntimeError: a rank is lost, or was waited for in vain; says which, and in what.
        """
        step = Step(self, inputs, targets)
        with self._links.failing_together(step.rows):
            return step.run()

    def evaluate(self, inputs: Any = None, targets: Any = None, fn: LossFunction | None = None) -> torch.Tensor:
        """The mean of a function of outputs and targets over all rows, with the model in evaluation mode; nothing is changed.

        Args:
            inputs: as for ``step``, of any number of rows; where that is not the plan's, all ranks must be given inputs or targets.
            targets: likewise.
            fn: of outputs and targets of some rows: the mean over them, a tensor of one value, or of several in one dimension, such as
                loss and accuracy; by default ``loss_fn``. Called on ranks of the last stage.

        Returns:
            The mean, on every rank, in double precision on the CPU: a value, or as many as fn gives.

        Raises:
            ValueError: inputs or targets that are missing or of other shapes, and a model that has other layers in evaluation mode;
                says what is accepted.
            RuntimeError: a rank is lost, or was waited for in vain; says which, and in what.
        """
        if self._why_not_evaluated:
            raise ValueError(f"evaluate: {self._why_not_evaluated}; accepted: a model with the same layers in both modes, or a model of "
                             "its own that loads gather_state_dict()")
        if fn is not None and not callable(fn):
            raise ValueError(f"fn: {name_type(fn)}; accepted: a function of outputs and targets")
        evaluation = Evaluation(self, inputs, targets, self._loss if fn is None else fn)
        with self._links.failing_together(evaluation.rows), in_mode(self._model, training=False), torch.no_grad():
            return evaluation.run()

    def _synchronise(self, before: list[torch.Tensor | None], rows: int, batch: int) -> None:
        """Adds up what the replicas have in ``.grad``, and to it what was there before the step."""
        for copies in self._copies:
            with self._links.waiting(f"step {self._steps}, gradients of {copies.what}", copies.ranks):
                copies.add_up()
                if copies is self._replicas:
                    self._average_norms(copies, rows / batch)
        for parameter, old in zip(self._trained, before):
            if old is not None:
                parameter.grad = old if parameter.grad is None else old.add_(parameter.grad)

    def _average_norms(self, replicas: _Copies, share: float) -> None:
        """Makes running statistics of BatchNorm layers the mean of the replicas' by their rows."""
        own = [tensor for norm in self._norms for tensor in (norm.running_mean, norm.running_var) if tensor is not None]
        if not own:
            return
        with torch.no_grad():
            flat = torch.cat([tensor.reshape(-1).double() for tensor in own]) * share
            replicas.sum(flat)
            for tensor, part in zip(own, torch.split(flat, [tensor.numel() for tensor in own])):
                tensor.copy_(part.view_as(tensor))
