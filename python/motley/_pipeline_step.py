"""What a rank of a pipeline does with one batch: micro-batches forward and backward in the plan's schedule, or, to evaluate, forward alone.
Rows come from the ranks of the stage before and go to those of the stage after; gradients go back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from . import _devices
from ._arguments import name_type
from ._layers import as_tuple, run_layers

if TYPE_CHECKING:
    from ._pipeline import Pipeline

_FORWARD, _BACKWARD, _LOSS, _EVALUATION = range(4)  # what a rank is at, and of a message what it brings
_WORDS = {_FORWARD: "forward", _BACKWARD: "backward", _EVALUATION: "forward"}


@dataclass
class _Incoming:
    """Rows that are on their way: of each tensor, and the ranks that each of its parts comes from."""

    values: tuple[torch.Tensor, ...]
    ranks: list[int]


class _Pass:
    """A batch that goes through the stages: which rows of it are this rank's, and how they come and go."""

    def __init__(self, pipe: Pipeline, inputs: Any, targets: Any) -> None:
        self._pipe, self._layout, self._links = pipe, pipe._layout, pipe._links
        self._is_first, self._is_last = pipe.stage == 0, pipe.stage + 1 == pipe.stages
        self._inputs = self._check_inputs(inputs)
        self._batch = self.rows = self._check_batch(targets)
        self._micro_batches = self._layout.cut(self._batch)
        self._rows = [self._layout.rows(pipe.rank, micro_batch) for micro_batch in self._micro_batches]
        # What may change while it is on its way, as parameters do in the optimizer's step.
        self._kept = pipe._kept | {value.untyped_storage().data_ptr() for value in self._inputs or ()}
        self._incoming: dict[tuple[int, int], _Incoming] = {}
        self._asked: dict[int, int] = {}  # micro-batches, by kind

    def _check_inputs(self, inputs: Any) -> tuple[torch.Tensor, ...] | None:
        if inputs is None:
            if self._is_first:
                raise ValueError("inputs: None; accepted on ranks of the first stage: the step's tensors, with a row a sample")
            return None
        given = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
        shapes = self._pipe._input_shapes
        if len(given) != len(shapes) or not all(isinstance(value, torch.Tensor) and value.dim() > 0 for value in given):
            found = ", ".join(type(value).__name__ for value in given)
            raise ValueError(f"inputs: {found}; accepted: as many tensors as example_inputs has, {len(shapes)}, with a row a sample")
        for number, (value, shape) in enumerate(zip(given, shapes)):
            if tuple(value.shape[1:]) != shape and self._pipe.stages > 1:
                raise ValueError(f"inputs[{number}]: samples of shape {tuple(value.shape[1:])}; accepted: {shape}, as in example_inputs")
        if len({value.shape[0] for value in given}) > 1:
            raise ValueError(f"inputs: they have {', '.join(str(value.shape[0]) for value in given)} rows; accepted: as many in each")
        return tuple(given)

    def _check_batch(self, targets: Any) -> int:
        self._target_structure: Any = None
        leaves: list[Any] = []
        if targets is not None:
            leaves, self._target_structure = pytree.tree_flatten(targets)
        self._targets = leaves
        if self._is_last and not leaves:
            raise ValueError("targets: None; accepted on ranks of the last stage: the step's targets, with a row a sample")
        counts = {value.shape[0] for value in self._inputs or ()}
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
                raise ValueError(f"targets: {name_type(leaf)}; accepted: tensors with a row a sample")
            counts.add(leaf.shape[0])
        if len(counts) > 1 or 0 in counts:
            found = " and ".join(map(str, sorted(counts)))
            raise ValueError(f"inputs, targets: they have {found} rows; accepted: as many in each, at least one")
        return next(iter(counts), self._layout.batch)

    def _title(self) -> str:
        return f"step {self._pipe._steps}"

    def _name(self, number: int, kind: int) -> str:
        return f"{self._title()}, {'loss' if kind == _LOSS else f'micro-batch {number}, {_WORDS[kind]}'}"

    def _tag(self, number: int, kind: int) -> int:
        return self._pipe._steps << 32 | number << 2 | kind

    def _take_inputs(self, number: int, kind: int) -> tuple[torch.Tensor, ...]:
        """Of the rank's rows of a micro-batch what its stage reads; nothing where it has no rows."""
        begin, end = self._rows[number]
        if not self._is_first:
            return self._take(number, kind)
        first = self._micro_batches[number].begin
        return tuple(value[first + begin:first + end].to(self._pipe.device, non_blocking=True)
                     for value in self._inputs or () if begin < end)

    def _take_targets(self, number: int) -> Any:
        (begin, end), first = self._rows[number], self._micro_batches[number].begin
        own = [value[first + begin:first + end].to(self._pipe.device, non_blocking=True) for value in self._targets]
        return pytree.tree_unflatten(own, self._target_structure)

    def _forward(self, layers: list[Callable[..., Any]], inputs: tuple[torch.Tensor, ...]) -> Any:
        """What the stage gives: of the last one the model's outputs, of the others the tensors that the next one reads."""
        value = run_layers(layers, inputs)
        if self._is_last:
            return value
        return tuple(one.to(example.dtype) for one, example in zip(as_tuple(value), self._pipe._sent, strict=True))

    # ---- Rows from and to neighbours

    def _ask(self, number: int, kind: int) -> None:
        """Asks for a micro-batch's rows from the stage before, or for their gradients from the stage after."""
        pipe = self._pipe
        examples, stage = (pipe._sent, pipe.stage + 1) if kind == _BACKWARD else (pipe._received, pipe.stage - 1)
        begin, end = self._rows[number]
        pins = pipe.device.type != "cpu"
        values = tuple(torch.empty((end - begin, *example.shape[1:]), dtype=example.dtype, pin_memory=pins) for example in examples)
        pieces = self._layout.pieces(pipe.rank, stage, self._micro_batches[number])
        for rank, low, high in pieces:
            for value in values:
                self._links.receive(rank, self._tag(number, kind), value[low:high])
        self._incoming[number, kind] = _Incoming(values, [rank for rank, _, _ in pieces for _ in values])

    def _ask_until(self, number: int, kind: int) -> None:
        asked = self._asked.get(kind, 0)
        self._asked[kind] = max(asked, min(number, len(self._micro_batches)))
        for one in range(asked, self._asked[kind]):
            self._ask(one, kind)

    def _take(self, number: int, kind: int) -> tuple[torch.Tensor, ...]:
        """The rows of a micro-batch, of each tensor that crosses; none where this rank has no rows. The next one's are asked for, so that
        they come while this one is computed."""
        self._ask_until(number + 2, kind)
        incoming = self._incoming.pop((number, kind))
        for rank in incoming.ranks:
            self._links.wait(rank, self._name(number, kind))
        return tuple(value.to(self._pipe.device, non_blocking=True) for value in incoming.values if len(value))

    def _send(self, number: int, kind: int, values: Iterable[torch.Tensor]) -> None:
        ready = []
        for value in values:
            own = value.detach().cpu().contiguous()
            ready.append(own.clone() if own.untyped_storage().data_ptr() in self._kept else own)
        stage = self._pipe.stage + (-1 if kind == _BACKWARD else 1)
        for rank, low, high in self._layout.pieces(self._pipe.rank, stage, self._micro_batches[number]):
            for own in ready:
                self._links.send(rank, self._tag(number, kind), own[low:high])

    def _exchange(self, own: torch.Tensor, number: int = 0) -> list[torch.Tensor]:
        """What the ranks of the last stage have, in their order, on all ranks; elsewhere `own` is a tensor like it."""
        self._links.set_phase(self._pipe._steps, _LOSS)
        senders = self._layout.members[-1]
        parts = [own if rank == self._pipe.rank else torch.empty_like(own) for rank in senders]
        if self._is_last:
            for rank in range(self._links.count):
                if rank != self._pipe.rank:
                    self._links.send(rank, self._tag(number, _LOSS), own)
        for rank, part in zip(senders, parts):
            if rank != self._pipe.rank:
                self._links.receive(rank, self._tag(number, _LOSS), part)
                self._links.wait(rank, self._name(number, _LOSS))
        return parts


@dataclass
class _Held:
    """What a micro-batch leaves for its backward pass."""

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...] = ()
    random: Any = None


class Step(_Pass):
    """One step forward and backward."""

    def __init__(self, pipe: Pipeline, inputs: Any, targets: Any) -> None:
        super().__init__(pipe, inputs, targets)
        self._layers = [layer.forward for layer in pipe._own]
        self._held: dict[int, _Held] = {}
        self._losses: list[torch.Tensor] = []  # of micro-batches, on the device
        self._forward_count = 0

    def run(self) -> torch.Tensor:
        """The mean loss of the batch."""
        pipe = self._pipe
        before = [parameter.grad for parameter in pipe._trained]
        for parameter in pipe._trained:
            parameter.grad = None
        for is_forward, number in self._layout.tasks(pipe.stage, len(self._micro_batches)):
            self._links.set_phase(pipe._steps, _FORWARD if is_forward else _BACKWARD)
            if is_forward:
                self._go_forward(number)
            else:
                self._go_backward(number)
        pipe._synchronise(before, sum(end - begin for begin, end in self._rows), self._batch)
        own = torch.stack(self._losses).double().sum().cpu() if self._losses else torch.zeros((), dtype=torch.float64)
        loss = torch.stack(self._exchange(own)).sum()
        pipe._steps += 1
        return loss

    def _go_forward(self, number: int) -> None:
        pipe = self._pipe
        self._forward_count = number + 1
        inputs = self._take_inputs(number, _FORWARD)
        if not inputs:
            return
        if not self._is_first:
            for value in inputs:
                value.requires_grad_()
        held = _Held(inputs)
        if pipe._recomputes:
            held.random = _random_states(pipe.device)
        with torch.set_grad_enabled(not pipe._recomputes):
            output = self._forward(self._layers, inputs)
        if self._is_last:
            held.outputs = (self._compute_loss(number, output),)
        else:
            self._send(number, _FORWARD, output)
            held.outputs = () if pipe._recomputes else output
        self._held[number] = held

    def _compute_loss(self, number: int, output: Any, counts: bool = True) -> torch.Tensor:
        """The loss of a micro-batch's rows, by which it counts in the step's."""
        begin, end = self._rows[number]
        with torch.enable_grad():
            loss = self._pipe._loss(output, self._take_targets(number))
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                raise ValueError(f"loss_fn: it gave {name_type(loss)}; accepted: a function that gives a tensor of one value, the "
                                 "mean over the rows")
            weighted = loss * ((end - begin) / self._batch)
        if counts:
            self._losses.append(weighted.detach().reshape(()))
        return weighted

    def _go_backward(self, number: int) -> None:
        pipe = self._pipe
        if not self._is_first:  # before this one's gradients are on their way, which would have to be waited for
            self._ask_until(self._forward_count + 2, _FORWARD)
        gradients = (None,) if self._is_last else self._take(number, _BACKWARD)
        begin, end = self._rows[number]
        if begin == end:
            return
        held = self._held.pop(number)
        # Running statistics have followed this micro-batch already; autograd wants those of a second forward as they are until backward.
        buffers = [(tensor, tensor.clone()) for tensor in pipe._named.values() if not isinstance(tensor, torch.nn.Parameter)
                   ] if pipe._recomputes else []
        outputs = self._recompute(number, held) if pipe._recomputes else held.outputs
        pairs = [(output, gradient) for output, gradient in zip(outputs, gradients, strict=True) if output.requires_grad]
        if pairs:
            torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
        with torch.no_grad():
            for tensor, old in buffers:
                tensor.copy_(old)
        if not self._is_first:
            self._send(number, _BACKWARD, (torch.zeros_like(value) if value.grad is None else value.grad for value in held.inputs))

    def _recompute(self, number: int, held: _Held) -> tuple[torch.Tensor, ...]:
        """Forward once more, as it was."""
        device = self._pipe.device
        with _devices.fork_random([device]), torch.enable_grad():
            _restore_random(device, held.random)
            output = self._forward(self._layers, held.inputs)
            if self._is_last:
                output = (self._compute_loss(number, output, counts=False),)
        result: tuple[torch.Tensor, ...] = output
        return result


class Evaluation(_Pass):
    """A batch forward alone, with the model in evaluation mode and no gradients; the mean over its rows of a function."""

    def __init__(self, pipe: Pipeline, inputs: Any, targets: Any, function: Callable[[Any, Any], torch.Tensor]) -> None:
        super().__init__(pipe, inputs, targets)
        self._function = function
        self._layers = [layer.forward for layer in pipe._evaluated]
        self._sum: torch.Tensor | None = None  # of this rank's micro-batches, each by its rows

    def _title(self) -> str:
        return f"evaluation before step {self._pipe._steps}"

    def run(self) -> torch.Tensor:
        """What the function gives, of the batch."""
        for number in range(len(self._micro_batches)):
            self._links.set_phase(self._pipe._steps, _EVALUATION)
            if inputs := self._take_inputs(number, _EVALUATION):
                output = self._forward(self._layers, inputs)
                if self._is_last:
                    self._count(number, output)
                else:
                    self._send(number, _EVALUATION, output)
        # How many values there are, or 0 for one without a dimension: of ranks that had rows.
        length = -1 if self._sum is None else self._sum.numel() if self._sum.dim() else 0
        length = int(torch.stack(self._exchange(torch.tensor(length))).max())
        own = torch.zeros((length,) if length else (), dtype=torch.float64) if self._sum is None else self._sum
        return torch.stack(self._exchange(own, 1)).sum(0)

    def _count(self, number: int, output: Any) -> None:
        value = self._function(output, self._take_targets(number))
        shape = None if self._sum is None else self._sum.shape
        if not isinstance(value, torch.Tensor) or value.dim() > 1 or value.numel() == 0 or shape not in (None, value.shape):
            found = f"tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            wanted = "one value, or several in one dimension" if shape is None else f"shape {tuple(shape)}, as before"
            raise ValueError(f"fn: it gave a {found}; accepted: a function that gives a tensor of {wanted}, the means over the rows")
        begin, end = self._rows[number]
        part = value.detach().to("cpu", torch.float64) * ((end - begin) / self._batch)
        self._sum = part if self._sum is None else self._sum + part


def _random_states(device: torch.device) -> Any:
    return torch.get_rng_state(), _devices.random_state(device)


def _restore_random(device: torch.device, states: Any) -> None:
    torch.set_rng_state(states[0])
    _devices.set_random_state(device, states[1])
