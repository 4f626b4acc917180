"""Measures what each layer of a torch.nn.Module takes, within whole training passes, so that ``plan`` can lay it out: what the command
``profile`` does for the networks of a job, in the same file format.
"""

from __future__ import annotations

import copy
import json
import logging
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from . import _devices, _motley
from ._arguments import name_type
from ._layers import Chain, as_tuple, cut, in_mode, take_rows, unchanged
from ._results import Profile

_WARM_PASSES, _LEAST_ROUNDS, _MOST_ROUNDS = 2, 5, 50
_MEMORY_SHARE, _COPIES = 0.5, 4  # of the device's memory; of each activation
_TRUSTED_DEVIATION = 0.05  # relative; beyond it a point of a fit counts for less
_FIT_ROUNDS = 30
_VALUE_BYTES = 4  # profiles count every value as a float32
_log = logging.getLogger("motley")

Loss = Callable[..., torch.Tensor]
MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


def profile(model: torch.nn.Module, example_inputs: torch.Tensor | Sequence[torch.Tensor], *, loss: Loss | None = None,
            example_targets: Any = None, optimizer: MakeOptimizer | None = None, device: torch.device | str | None = None,
            batch_sizes: Sequence[int] | None = None, seconds: float = 20, name: str | None = None, device_type: str | None = None,
            scale: Mapping[str, float] | None = None) -> Profile:
    """Measures a module's layers on this machine: forward and backward seconds against the batch size, and sizes.

    The module is cut wherever one tensor, with a row a sample, is all that later computation reads; a module without such a place is one
    layer, and ``print`` of the profile says why. Whole passes run in rounds over the batch sizes; their medians count. The model is left
    as it was, buffers and random generators included. From now on the process keeps memory that it frees, as it does in a pipeline.

    Args:
        model: as it is trained. Branches in its forward are those that the example takes.
        example_inputs: what forward gets, one tensor or several, with a row a sample, on the model's device. Larger batches repeat their
            rows.
        loss: of the outputs, or with ``example_targets`` of outputs and targets: the loss that backward starts from, and a part of the
            layer ``step``. By default the mean of all outputs.
        example_targets: a tensor, or several in a tuple, list or dict, with a row a sample.
        optimizer: makes the optimizer whose step is measured, of parameters, such as ``lambda p: torch.optim.AdamW(p)``; by default SGD
            with momentum.
        device: of the model; a check, as nothing is moved.
        batch_sizes: ascending; by default 1, 4, 16 and 64. Those for which time or memory do not suffice are left out, as is a
            first one of 1 where the model refuses it (BatchNorm of a single value).
        seconds: about as long as it may take.
        name: of the model; by default its class.
        device_type: by which a cluster file knows this device; by default as PyTorch names it: ``"cpu"``, ``"cuda"``.
        scale: device types that are not here: how many times as long each takes, such as ``{"gpu": 0.05}``.

    Raises:
        ValueError: an argument that is refused; says its value and what is accepted.
        Whatever the model or the loss raise on the example.
    """
    inputs, targets = _check(model, example_inputs, example_targets, device, seconds)
    for argument, function, what in (("loss", loss, "outputs, or of outputs and targets"), ("optimizer", optimizer, "parameters")):
        if function is not None and not callable(function):
            raise ValueError(f"{argument}: {function!r}; accepted: a function of {what}")
    sizes = _check_batch_sizes(batch_sizes)
    here = inputs[0].device
    kind = device_type or here.type
    others = _check_scale(scale or {}, kind)
    _motley.keep_freed_memory()
    began, watch = time.perf_counter(), _motley.ProcessorWatch()
    with unchanged(model, with_parameters=True), in_mode(model, training=True), torch.enable_grad():
        chain = cut(model, inputs, name or type(model).__name__)
        graph = _describe(model, chain, inputs)
        passes = _Passes(model, chain, inputs, targets, loss, optimizer)
        times = _measure(passes, graph, sizes, seconds, began)
    return _assemble(model, chain, graph, times, kind, others, _describe_noise(times, watch), complete=len(times.series) == len(sizes))


def _check(model: Any, example_inputs: Any, example_targets: Any, device: torch.device | str | None,
           seconds: Any) -> tuple[tuple[torch.Tensor, ...], Any]:
    inputs = check_example(model, example_inputs)
    here = inputs[0].device
    if device is not None and not _is_same(read_device(device, is_used=False), here):
        raise ValueError(f"device: '{device}', but the model is on '{here}'; accepted: the model's device, to which the caller moves "
                         "model and example_inputs")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ValueError(f"seconds: {seconds!r}; accepted: a number above 0")
    for leaf in [] if example_targets is None else pytree.tree_leaves(example_targets):
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0 or leaf.shape[0] != inputs[0].shape[0]:
            raise ValueError(f"example_targets: {_describe_value(leaf)}; accepted: tensors of {inputs[0].shape[0]} rows, as example_inputs")
    return inputs, example_targets


def check_example(model: Any, example_inputs: Any) -> tuple[torch.Tensor, ...]:
    """The inputs as a tuple, where the model can be cut with them; ValueError where not."""
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"model: {_describe_value(model)}; accepted: a torch.nn.Module")
    given = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    if not given or not all(isinstance(value, torch.Tensor) for value in given):
        wrong = next((value for value in given if not isinstance(value, torch.Tensor)), given)
        raise ValueError(f"example_inputs: {_describe_value(wrong)}; accepted: a tensor, or a tuple of tensors as forward takes them")
    for number, value in enumerate(given):
        if value.dim() == 0 or value.shape[0] == 0 or value.shape[0] != given[0].shape[0]:
            raise ValueError(f"example_inputs[{number}]: its shape is {tuple(value.shape)}; accepted: a row a sample, at least one, and as "
                             "many in each tensor")
    tensors = [*model.parameters(), *model.buffers()]
    devices = {tensor.device for tensor in tensors}
    if torch.device("meta") in devices:
        raise ValueError("model: it has tensors on the device 'meta'; accepted: one whose parameters have values")
    if len(devices) > 1:
        raise ValueError(f"model: it is on several devices, {', '.join(sorted(map(str, devices)))}; accepted: a model on one device")
    here = next(iter(devices), given[0].device)
    for number, value in enumerate(given):
        if value.device != here:
            raise ValueError(f"example_inputs[{number}]: it is on '{value.device}', and the model on '{here}'; accepted: both on one "
                             "device")
    return tuple(given)


def read_device(device: Any, *, is_used: bool) -> torch.device:
    """ValueError where it is none or, if it is to be used, is not here."""
    try:
        found = torch.device(device)
        if is_used:
            torch.empty(0, device=found)
        return found
    except (RuntimeError, AssertionError, TypeError) as problem:
        raise ValueError(f"device: {device!r}: {str(problem).splitlines()[0]}; accepted: a device that is here, such as 'cpu'") from problem


def _is_same(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (one.index is None or other.index is None or one.index == other.index)


def _describe_value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return name_type(value) if not isinstance(value, (tuple, list)) or value else f"an empty {type(value).__name__}"


def _check_batch_sizes(batch_sizes: Sequence[int] | None) -> list[int]:
    sizes = [1, 4, 16, 64] if batch_sizes is None else list(batch_sizes) if isinstance(batch_sizes, Sequence) else []
    if (not sizes or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes)
            or any(size >= following for size, following in zip(sizes, sizes[1:]))):
        raise ValueError(f"batch_sizes: {batch_sizes!r}; accepted: integers from 1, ascending, such as [1, 4, 16, 64]")
    return sizes


def _check_scale(scale: Mapping[str, float], here: str) -> dict[str, float]:
    if not isinstance(scale, Mapping):
        raise ValueError(f"scale: {scale!r}; accepted: factors by the names of device types, such as {{'gpu': 0.05}}")
    for kind, factor in scale.items():
        if not isinstance(kind, str) or not kind or kind == here:
            raise ValueError(f"scale: {kind!r}; accepted: names of device types that are not here, which is '{here}'")
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < float("inf"):
            raise ValueError(f"scale[{kind!r}]: {factor!r}; accepted: a number above 0, by which the seconds of '{here}' are multiplied")
    return dict(scale)


# ---- Sizes


def _describe(model: torch.nn.Module, chain: Chain, inputs: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """The graph of profile.json."""
    from torch.utils.flop_counter import FlopCounterMode

    parameters = dict(model.named_parameters())
    named = parameters | dict(model.named_buffers())
    fixed = {tensor.untyped_storage().data_ptr() for tensor in named.values()}
    layers: list[dict[str, Any]] = []
    seen: set[str] = set()
    rows = 2
    values: Any = tuple(take_rows(tensor, rows) for tensor in inputs)
    source = "rows of the example run through the model's layers"
    if chain.note:
        source = f"rows of the example run through the model, which is one layer here: {chain.note}"
    for number, layer in enumerate(chain.layers):
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        arguments = as_tuple(values)
        own = fixed | {tensor.untyped_storage().data_ptr() for tensor in arguments}
        counter = FlopCounterMode(display=False)
        with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            values = layer.forward(*arguments)
        outputs = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        own |= {tensor.untyped_storage().data_ptr() for tensor in outputs}
        read = [tensor for tensor in layer.tensors if tensor not in seen]
        seen.update(read)
        layers.append({
            "name": layer.name, "kind": layer.kind, "inputs": [number - 1] if number else [],
            "parameters": sum(named[key].numel() for key in read if named[key].requires_grad),
            "activation_bytes": _VALUE_BYTES * sum(output.numel() for output in outputs) / rows,
            "inner_bytes": sum(size for storage, size in kept.items() if storage not in own) / rows,
            "flops": counter.get_total_flops() / rows, "parameter_shapes": layer.describe_shapes(parameters)})
        if number + 1 < len(chain.layers):
            values = tuple(value.detach().requires_grad_() for value in as_tuple(values))
    layers.append({"name": "step", "kind": "loss", "inputs": [len(layers) - 1], "activation_bytes": _VALUE_BYTES})
    return {"name": chain.name, "source": source, "layers": layers,
            "input_bytes": _VALUE_BYTES * sum(tensor[0].numel() for tensor in inputs)}


# ---- Times


@dataclass
class _Pass:
    """Seconds of a pass: of each layer, the last one for the step, and of the update of all weights."""

    forward: list[float]
    backward: list[float]
    update: float


class _Passes:
    """Runs whole passes, layer by layer, each on a tensor that is cut off from the layer before."""

    def __init__(self, model: torch.nn.Module, chain: Chain, inputs: tuple[torch.Tensor, ...], targets: Any, loss: Loss | None,
                 optimizer: MakeOptimizer | None) -> None:
        self._chain, self._inputs, self._targets, self._loss = chain, inputs, targets, loss
        self._device = inputs[0].device
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9))
        self._optimizer = make(self._parameters) if self._parameters else None
        if self._optimizer is not None and not isinstance(self._optimizer, torch.optim.Optimizer):
            raise ValueError(f"optimizer: it gave {_describe_value(self._optimizer)}; accepted: a function that makes a "
                             "torch.optim.Optimizer of parameters")
        if isinstance(self._optimizer, torch.optim.LBFGS):
            raise ValueError("optimizer: it gave an LBFGS, which passes over a batch several times in a step; accepted: one whose step() "
                             "needs no closure")
        for group in self._optimizer.param_groups if self._optimizer is not None else ():
            if not isinstance(group.get("lr"), torch.Tensor):
                group["lr"] = 1e-12  # a real one may diverge on the same rows again and again; the arithmetic is the same

    def run(self, rows: int) -> _Pass:
        """One pass over a batch of so many rows."""
        values: Any = tuple(take_rows(tensor, rows) for tensor in self._inputs)
        targets = None if self._targets is None else pytree.tree_map(lambda tensor: take_rows(tensor, rows), self._targets)
        for parameter in self._parameters:
            parameter.grad = None
        clock = _Clock(self._device if self._device.type != "cpu" else None)
        given: list[tuple[torch.Tensor, ...]] = []
        outputs: list[tuple[Any, ...]] = []
        for number, layer in enumerate(self._chain.layers):
            if number:
                values = tuple(value.detach().requires_grad_() for value in as_tuple(values))
            given.append(values)
            values = layer.forward(*values)
            outputs.append(as_tuple(values))
            clock.note()
        leaves, structure = pytree.tree_flatten(values)
        cut_off = [leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        loss = self._compute_loss(pytree.tree_unflatten(cut_off, structure), targets)
        trained = [leaf for leaf in cut_off if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        found = torch.autograd.grad(loss, trained, allow_unused=True) if trained else ()
        clock.note()
        roots = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        pairs = [(root, gradient) for root, gradient in zip(roots, found) if gradient is not None]
        for number in reversed(range(len(outputs))):
            if pairs:
                torch.autograd.backward([root for root, _ in pairs], [gradient for _, gradient in pairs])
            pairs = [(output, value.grad) for output, value in zip(outputs[number - 1], given[number])
                     if output.requires_grad and value.grad is not None] if number else []
            outputs[number] = given[number] = ()
            clock.note()
        if self._optimizer is not None:
            self._optimizer.step()
        clock.note()
        seconds = clock.seconds()
        count = len(self._chain.layers)
        return _Pass(seconds[:count + 1], seconds[-2:count:-1] + [0.0], seconds[-1])

    def count_state_arrays(self) -> float:
        """Of the optimizer, each as large as the parameters."""
        parameters = sum(parameter.numel() for parameter in self._parameters)
        states = list(self._optimizer.state.values()) if self._optimizer is not None else []
        tensors = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
        return sum(tensor.numel() for tensor in tensors if tensor.dim() > 0) / max(1, parameters)

    def _compute_loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        if self._loss is None:
            tensors = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
            if not tensors:
                raise ValueError(f"loss: None, and the model gives {_describe_value(outputs)}; accepted: a function of its outputs")
            return torch.stack([tensor.mean() for tensor in tensors]).sum()
        loss = self._loss(outputs) if targets is None else self._loss(outputs, targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ValueError(f"loss: it gave {_describe_value(loss)}; accepted: a function that gives a tensor of one value")
        return loss


class _Clock:
    """Seconds between moments: of this thread, or of a GPU's stream by its events."""

    def __init__(self, device: torch.device | None) -> None:
        self._device = device
        self._moments: list[Any] = []
        self.note()

    def note(self) -> None:
        """A moment."""
        if self._device is None:
            self._moments.append(time.perf_counter())
            return
        module = _devices.find_module(self._device)
        event = module.Event(enable_timing=True)
        event.record(module.current_stream(self._device))
        self._moments.append(event)

    def seconds(self) -> list[float]:
        """Between each moment and the one after it."""
        pairs = list(zip(self._moments, self._moments[1:]))
        if self._device is None:
            return [after - before for before, after in pairs]
        _devices.find_module(self._device).synchronize(self._device)
        return [before.elapsed_time(after) / 1e3 for before, after in pairs]


@dataclass
class _Series:
    """The passes of one batch size."""

    rows: int
    passes: list[_Pass] = field(default_factory=list)

    def measurement(self, layer: int) -> dict[str, float]:
        """Of a layer, as profile.json has it."""
        forward = [one.forward[layer] for one in self.passes]
        backward = [one.backward[layer] for one in self.passes]
        return {"batch_size": self.rows, "forward_seconds": statistics.median(forward), "backward_seconds": statistics.median(backward),
                "spread": _relative_spread([a + b for a, b in zip(forward, backward)])}

    def whole(self) -> list[float]:
        """Seconds of each pass, without the update."""
        return [sum(one.forward) + sum(one.backward) for one in self.passes]

    def drift(self) -> float:
        """By which the last third of the passes took longer than the first."""
        whole = self.whole()
        third = max(1, len(whole) // 3)
        first = statistics.median(whole[:third])  # 0: too short for the device's clock
        return statistics.median(whole[-third:]) / first - 1 if first > 0 else 0.0


def _relative_spread(seconds: list[float]) -> float:
    """The median absolute deviation, as a share of the median."""
    middle = statistics.median(seconds)
    return statistics.median(abs(one - middle) for one in seconds) / middle if middle > 0 else 0.0


@dataclass
class _Times:
    series: list[_Series]
    rounds: int
    state_arrays: float = 0.0

    @property
    def update(self) -> float:
        """Median seconds of the optimizer's step."""
        return statistics.median(one.update for series in self.series for one in series.passes)


def _measure(passes: _Passes, graph: Mapping[str, Any], sizes: Sequence[int], seconds: float, began: float) -> _Times:
    series = _warm_up(passes, graph, sizes, seconds, began)
    times = _Times(series, 0)
    while times.rounds < _MOST_ROUNDS and (times.rounds < _LEAST_ROUNDS or time.perf_counter() - began < seconds):
        for one in series:
            one.passes.append(passes.run(one.rows))
        times.rounds += 1
    times.state_arrays = passes.count_state_arrays()
    return times


def _warm_up(passes: _Passes, graph: Mapping[str, Any], sizes: Sequence[int], seconds: float, began: float) -> list[_Series]:
    """The batch sizes for which time and memory suffice, each of which has run."""
    bytes_per_sample = graph["input_bytes"] + sum(_COPIES * layer["activation_bytes"] for layer in graph["layers"])
    memory = _devices.memory_bytes(passes._device)
    series: list[_Series] = []
    round_seconds = last = 0.0
    for rows in sizes:
        if series:
            expected = last * rows / series[-1].rows
            left = seconds - (time.perf_counter() - began)
            if (rows * bytes_per_sample > _MEMORY_SHARE * memory
                    or _WARM_PASSES * expected + _LEAST_ROUNDS * (round_seconds + expected) > left):
                break
        try:
            for _ in range(_WARM_PASSES):
                before = time.perf_counter()
                passes.run(rows)
                last = time.perf_counter() - before
        except torch.OutOfMemoryError:
            if not series:
                raise
            break
        except ValueError:
            if rows == 1 and len(sizes) > 1:
                continue
            raise
        series.append(_Series(rows))
        round_seconds += last
    return series


def fit_line(points: Sequence[tuple[float, float]]) -> dict[str, float]:
    """The line ``fixed + per_sample * rows`` through (rows, seconds), both parts at least 0.

    By least squares of relative deviations, in which a point that is off by more than a few percent counts for little (Huber's weights).
    """
    trust = [1.0] * len(points)
    fixed = slope = 0.0
    for _ in range(_FIT_ROUNDS):
        weights = [trusted / max(seconds, 1e-9) ** 2 for trusted, (_, seconds) in zip(trust, points)]
        total = sum(weights)
        b = sum(weight * rows for weight, (rows, _) in zip(weights, points))
        t = sum(weight * seconds for weight, (_, seconds) in zip(weights, points))
        bb = sum(weight * rows * rows for weight, (rows, _) in zip(weights, points))
        bt = sum(weight * rows * seconds for weight, (rows, seconds) in zip(weights, points))
        determinant = total * bb - b * b
        if determinant <= 1e-12 * total * bb:  # one batch size
            fixed, slope = 0.0, bt / bb
        else:
            fixed, slope = (bb * t - b * bt) / determinant, (total * bt - b * t) / determinant
        if fixed < 0:
            fixed, slope = 0.0, bt / bb
        elif slope < 0:
            fixed, slope = t / total, 0.0
        off = [abs(fixed + slope * rows - seconds) / max(seconds, 1e-9) for rows, seconds in points]
        trust = [1.0 if one <= _TRUSTED_DEVIATION else _TRUSTED_DEVIATION / one for one in off]
    return {"fixed": fixed, "per_sample": slope}


# ---- The file


def _describe_noise(times: _Times, watch: _motley.ProcessorWatch) -> dict[str, float]:
    load_average, others, stolen = watch.load()
    return {"pass_spread": statistics.median(_relative_spread(series.whole()) for series in times.series),
            "drift": statistics.median(series.drift() for series in times.series),
            "load_average": load_average, "others_fraction": others, "stolen_fraction": stolen}


def _assemble(model: torch.nn.Module, chain: Chain, graph: dict[str, Any], times: _Times, kind: str, others: Mapping[str, float],
              noise: Mapping[str, float], complete: bool) -> Profile:
    parameters = sum(layer.get("parameters", 0) for layer in graph["layers"])
    layers = []
    for number, layer in enumerate(graph["layers"]):
        measurements = [series.measurement(number) for series in times.series]
        layers.append({
            **{way: fit_line([(one["batch_size"], one[f"{way}_seconds"]) for one in measurements]) for way in ("forward", "backward")},
            "update_seconds": times.update * layer.get("parameters", 0) / parameters if parameters else 0.0,
            "measurements": measurements})
    device = next((tensor.device for tensor in model.parameters() if tensor.device.type != "cpu"), None)
    where = _motley.describe_machine()[0] if device is None else _devices.describe(device)
    rule = (f"medians of {times.rounds} whole passes at batches of {', '.join(str(series.rows) for series in times.series)} with "
            f"{torch.get_num_threads()} threads on {where}")
    if not complete:
        rule += "; others did not fit into the time or the memory, or the model refused them"
    here = {"type": kind, "origin": "measured", "rule": rule, "threads": torch.get_num_threads(), "compute_fraction": 1.0,
            "communication_fraction": 1.0, "fractions_origin": "scaled", "fractions_rule": "not measured: perfect division is assumed",
            "layers": layers, "noise": noise}
    devices = [here, *(_scale(here, other, factor) for other, factor in others.items())]
    bandwidth, latency = _motley.measure_loopback()
    links = [{"from": kind, "to": kind, "bytes_per_second": bandwidth, "latency_seconds": latency, "origin": "measured"}]
    document = {"version": 2, "graph": graph, "batch_size": times.series[-1].rows, "state_arrays": times.state_arrays,
                "devices": devices, "links": links}
    return Profile(_motley.format_profile(json.dumps(document)))


def _scale(here: Mapping[str, Any], kind: str, factor: float) -> dict[str, Any]:
    """A device that is not here: its times are those of one that is, multiplied."""
    device = copy.deepcopy(dict(here))
    for layer in device["layers"]:
        for way in ("forward", "backward"):
            layer[way] = {key: factor * value for key, value in layer[way].items()}
        layer["update_seconds"] *= factor
        del layer["measurements"]
    rule = f"not here: {factor} times the seconds of '{here['type']}', as scale says"
    return device | {"type": kind, "origin": "scaled", "rule": rule, "fractions_rule": f"those of '{here['type']}'"}
