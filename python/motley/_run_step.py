"""Repeats a step for whose samples one rank had not the memory, with fewer of them on that rank.

The rank that runs out of memory breaks the process group off, so that the other ranks, which wait for its gradients, leave the step as
well. All then make the group's connections anew, forget the step's gradients, lower what that rank is given, and begin the step again
with the same samples, split otherwise. No parameter has changed by then: the optimizer steps when all gradients are there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from . import _backend
from ._arguments import name_type
from ._loader import DataLoader
from ._weighting import _HookWeight

Result = TypeVar("Result")


def run_step(step: Callable[[Any], Result], batch: Any, loader: DataLoader) -> Result:
    """What ``step(batch)`` gives; where a rank runs out of memory, the step is begun again with fewer samples on that rank.

        def step(batch):
            inputs, labels = batch
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

        for batch in loader:
            loss = motley.run_step(step, batch, loader)

    For a DistributedDataParallel over the backend ``"motley"`` whose gradients ``motley.weight_gradients`` weights, one batch a step.
    Elsewhere memory that runs out ends the run, with an error that says what to set. From then on the rank gets at most three quarters
    of what it had not the memory for.

    Args:
        step: one whole step: forward, backward, and then the optimizer. May be called several times, with other batches; what it changes
            before its backward is over, other than gradients and the model's buffers, it finds as it left it.
        batch: what the loader has yielded.
        loader: that loader.

    Raises:
        torch.OutOfMemoryError: on all ranks, where the step cannot be repeated: the rank has its minimum of samples already, or the
            others cannot take more. Also, on that rank alone, where the model is none of the above or its gradients were
            complete already.
        ValueError: a loader that accumulates gradients over micro-batches.
    """
    if not isinstance(loader, DataLoader):
        raise ValueError(f"loader is {name_type(loader)}; the motley.DataLoader that yielded the batch is accepted")
    if loader._unit != 1:
        raise ValueError("motley.run_step takes one batch a step, and this loader accumulates gradients over several: what a micro-batch "
                         "needs follows from micro_batch_size")
    if loader._elastic is not None:
        result: Result = loader._elastic.run(lambda batch: _run(step, batch, loader), batch)
        return result
    return _run(step, batch, loader)


def _run(step: Callable[[Any], Result], batch: Any, loader: DataLoader) -> Result:
    weights = [weight for weight in loader._weights if isinstance(weight, _HookWeight)]
    backend = _backend.find(loader._group) if weights and loader._ranks.count > 1 else None
    buffers = [(buffer, buffer.detach().clone()) for weight in weights for buffer in weight.model.buffers()] if backend else []
    while True:
        missing = ""
        try:
            return step(batch)
        except Exception as problem:
            if _is_out_of_memory(problem):
                missing = f"rank {loader._ranks.rank} ran out of memory with {loader.samples} of the step's {loader.total} samples"
                why_not = _find_obstacle(loader, weights, backend)
                if why_not:
                    raise torch.OutOfMemoryError(f"{missing}: {why_not}") from problem
            elif backend is None or not backend.is_out_of_memory:
                raise
        # Here the exception is gone, and with it what its frames held.
        assert backend is not None
        if missing:
            gc.collect()
            if torch.accelerator.is_available():
                torch.accelerator.empty_cache()
            backend.give_up(missing)
        batch = _begin_again(missing, loader, weights, buffers)


def _find_obstacle(loader: DataLoader, weights: list[_HookWeight], backend: Any) -> str:
    """Why the step cannot be repeated; empty where it can."""
    most = f"max_local_batch_size={max(1, loader.samples * 3 // 4)} to motley.DataLoader on this rank"
    if loader._ranks.count == 1:
        return "say a smaller global_batch_size, or gradient_accumulation_steps"
    if backend is None or len(weights) < len(loader._weights) or not hasattr(weights[0].model.reducer, "_reset_state"):
        return (f"say {most}; over the backend 'motley', motley.run_step gives a rank fewer samples by itself where the model is a "
                "DistributedDataParallel")
    if any(weight.finished for weight in weights):
        return f"say {most}; its gradients were complete, so the other ranks may have ended the step"
    return ""


def _begin_again(missing: str, loader: DataLoader, weights: list[_HookWeight],
                 buffers: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """Takes the step back, lowers the maximum of the ranks that ran out of memory, and gives this rank's new part of the batch."""
    step = loader._step
    assert step is not None
    all_told = loader._ranks.gather((step.number, missing))  # no rank goes on before all know
    told = [other for _, other in all_told]
    _backend.renew(loader._group)
    for weight in weights:
        weight.model.reducer._reset_state()
        for parameter in weight.model.parameters():
            parameter.grad = None
    with torch.no_grad():
        for buffer, kept in buffers:
            buffer.copy_(kept)
    maximums = [samples * 3 // 4 if other else loader._batch for samples, other in zip(loader.split, told)]
    words = "; ".join(filter(None, told))
    if len({number for number, _ in all_told}) > 1:
        raise torch.OutOfMemoryError(f"{words} in step {max(all_told)[0]}, when others had not ended the step before, which they cannot "
                                     "repeat alone")
    if any(other and maximum < max(1, least) for maximum, other, (least, _) in zip(maximums, told, loader._limits)):
        raise torch.OutOfMemoryError(f"{words}, and min_local_batch_size is more than three quarters of that: it is given no fewer")
    try:
        loader._lower(maximums)
    except ValueError as problem:
        raise torch.OutOfMemoryError(f"{words}, and with less the ranks cannot hold the batch together: {problem}") from problem
    return loader._deal_again(step, repeats=True)


def _is_out_of_memory(problem: Exception) -> bool:
    """Also of a CPU, whose allocator raises a RuntimeError."""
    return isinstance(problem, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(problem, RuntimeError) and "can't allocate memory" in str(problem))
