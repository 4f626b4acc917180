"""Weights each rank's gradients by its samples, so that what the optimizer gets is the gradient of the whole batch.

DistributedDataParallel averages gradients over ranks, which is right only where all have the same number of samples. Here rank
i's gradients count n_i / N: a communication hook in C++ scales each bucket before it is summed (or, under FSDP2, scales what is
reduce-scattered), so that neither the loss nor the script's loop changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _backend, _motley
from ._arguments import name_type, read_integer
from ._loader import DataLoader
from ._ranks import Parameters, Ranks, check_alike, list_parameters

BatchNorm = torch.nn.modules.batchnorm._BatchNorm
Model = TypeVar("Model", bound=torch.nn.Module)


def weight_gradients(model: Model, loader: DataLoader | None = None, *, samples: Callable[..., int] | None = None,
                     by: str = "samples", hook: tuple[Any, Callable[..., Any]] | None = None, batch_norm: str = "weighted") -> Model:
    """Makes the gradients of a data-parallel model those of the mean over the whole batch, for any split of it.

    Args:
        model: a DistributedDataParallel, or a module to which FSDP2's ``fully_shard`` was applied; also compiled, or in a
            framework's wrapper. On one rank any module.
        loader: whose batches the model is trained on; called on all ranks before its first pass.
        samples: instead of a loader, for batches that come from elsewhere, such as an ``IterableDataset``: how many samples a
            batch has, of the arguments of the model's ``forward``. Ranks may have any numbers, but as many batches as each
            other, and one batch a step. Who gets which sample is then the script's affair.
        by: ``"samples"``; or ``"loss"`` where the script's loss is scaled by ``DataLoader.weigh`` or by a framework, and the
            hook measures times only.
        hook: a communication hook of your own, as ``(state, hook)`` of ``register_comm_hook``: it gets buckets whose average over
            ranks is the gradient. BatchNorm layers are then left alone.
        batch_norm: ``"weighted"`` makes the running statistics of BatchNorm layers those of all samples after each step;
            ``"local"`` leaves each rank its own. Either way no buffer is taken from rank 0 any more: others that forward changes are each
            rank's own. Under FSDP2 all are, as PyTorch has it.

    Returns:
        The same model.

    Raises:
        ValueError: a model that is not data-parallel, that has a hook already or was given before, or whose gradients are averaged
            over other ranks than the loader's or beside PyTorch's buckets; and unknown arguments.
    """
    if by not in ("samples", "loss"):
        raise ValueError(f"by is {by!r}; 'samples' or 'loss' is accepted")
    if batch_norm not in ("weighted", "local"):
        raise ValueError(f"batch_norm is {batch_norm!r}; 'weighted' or 'local' is accepted")
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"model is {name_type(model)}; a DistributedDataParallel, or a module to which fully_shard was applied, is "
                         "accepted")
    if hook is not None and not (isinstance(hook, tuple) and len(hook) == 2 and callable(hook[1])):
        raise ValueError(f"hook is {hook!r}; a pair (state, hook), whose second is a function, is accepted")
    if samples is not None and not callable(samples):
        raise ValueError(f"samples is {samples!r}; a function that counts a batch is accepted")
    if (loader is None) == (samples is None):
        raise ValueError("motley.weight_gradients takes a motley.DataLoader, or samples=, which counts a batch: one of the two")
    if samples is not None:
        return _weight_by_inputs(model, samples, by, hook, batch_norm)
    if not isinstance(loader, DataLoader):
        raise ValueError(f"loader is {name_type(loader)}; a motley.DataLoader is accepted, which knows each rank's samples")
    if loader._ranks is not None:
        raise ValueError("the loader's first pass has begun; call motley.weight_gradients before it")
    if loader._is_weighed and by == "samples":
        raise ValueError("the loss is scaled by loader.weigh already: use that or motley.weight_gradients, not both")
    minimum = 2 if any(norm.training for norm in _batch_norms(model)) else 1
    weight: _Weight
    if (parallel := _find(model, lambda module: isinstance(module, DistributedDataParallel))) is not None:
        _check_averaged_over(dist.get_process_group_ranks(parallel.process_group), loader._group)
        weight = _hook_into(parallel, by, minimum, _batch_norms(model) if batch_norm == "weighted" else [], hook)
    elif sharded := [module for module in model.modules() if _is_sharded(module)]:
        weight = _scatter_into(sharded, by, minimum, hook, loader._group)
    elif dist.is_available() and dist.is_initialized() and dist.get_world_size(loader._group) > 1:
        raise ValueError(f"the model is {name_type(model)}, whose ranks share no gradients: wrap it in DistributedDataParallel "
                         "or fully_shard first, or scale the loss by loader.weigh")
    else:
        return model
    loader._weights.append(weight)
    return model


def _weight_by_inputs(model: Model, samples: Callable[..., int], by: str, hook: tuple[Any, Callable[..., Any]] | None,
                      batch_norm: str) -> Model:
    """Counts each batch as it goes into forward; the ranks' numbers are added up while forward computes."""
    parallel = _find(model, lambda module: isinstance(module, DistributedDataParallel))
    if parallel is None or by != "samples":
        raise ValueError("samples= is for the gradients of a DistributedDataParallel, weighted by samples")
    weight = _hook_into(parallel, by, 1, _batch_norms(model) if batch_norm == "weighted" else [], hook)
    ranks = Ranks(parallel.process_group)
    counted: list[Any] = []

    def count(_: torch.nn.Module, inputs: Any, named: Any) -> None:
        if torch.is_grad_enabled():
            number = read_integer("what samples= gave for a batch", samples(*inputs, **named), 0)
            counted[:] = [number, ranks.start_gather([float(number)])]
            weight.begin_forward()

    def weigh(*_: Any) -> None:
        if counted:
            number, pending = counted
            counted.clear()
            weight.set_share(number, max(1, int(pending.wait().sum())))

    parallel.register_forward_pre_hook(count, with_kwargs=True, prepend=True)
    parallel.register_forward_hook(weigh)
    return model


def _batch_norms(model: torch.nn.Module) -> list[BatchNorm]:
    """Its layers that keep running statistics."""
    return [module for module in model.modules() if isinstance(module, BatchNorm) and module.running_mean is not None]


class _Weight:
    """A model's weights for the steps of a loader."""

    def __init__(self, by: str, minimum: int, ranks: int, device: torch.device | None = None) -> None:
        self.by_loss, self.minimum, self.ranks = by == "loss", minimum, ranks
        self.device = device or torch.device("cpu")

    def begin_pass(self) -> None:
        """Before the first batch of each pass over the loader."""

    def end_pass(self) -> None:
        """After the last batch of a pass: until the next one other uses of the model are averaged as PyTorch does."""

    def leave_pass(self) -> None:
        """Where no more batches of a pass are asked for, also before its end: likewise, unless the last one is still to be used."""
        self.end_pass()

    def __getstate__(self) -> NoReturn:
        raise TypeError("neither a model whose gradients are weighted nor its loader can be copied or pickled; accepted: the network "
                        "itself, model.module, and loader.state_dict()")

    def begin_step(self, samples: int, total: int, micro_batches: int = 1) -> None:
        """Sets the weights of a step in which this rank has so many of the samples, and begins to measure it."""
        raise NotImplementedError

    def begin_batch(self, is_last: bool) -> None:
        """Before each batch that is yielded: whether gradients are synchronised after it."""

    @property
    def finished(self) -> float:
        """When the gradients of the last backward were complete on this rank, by the monotonic clock; 0 where none were."""
        raise NotImplementedError

    @property
    def reduced(self) -> float:
        """When this rank had the sum of all ranks' gradients, by the monotonic clock; 0 where that is not known."""
        return 0.0

    def device_seconds(self) -> float:
        """Seconds of the step on the GPU until then; -1 on a CPU."""
        return -1.0

    def list_parameters(self) -> Parameters:
        """Of the model, which must be the same on all ranks; none where something else sees to that."""
        return []


class _HookWeight(_Weight):
    def __init__(self, by: str, minimum: int, model: DistributedDataParallel, norms: list[BatchNorm]) -> None:
        super().__init__(by, minimum, dist.get_world_size(model.process_group), next(model.parameters()).device)
        self.shared = _motley.GradientWeight()
        self.shared.weight = 1 / self.ranks  # until a loader says otherwise: PyTorch's own average
        self.model, self._norms = model, norms
        self._kept: tuple[Any, torch.Tensor] | None = None  # for what it was computed, and what
        self._accumulates = True  # until a step begins, anything goes
        self._sizes = 0, 0  # of a batch in the step before, and in this one; 0 where this rank has no part of it
        self._was_used = True  # whether the model has computed since the step began
        self._is_ahead = False  # whether in this pass a step began before that
        self._due = 0  # micro-batches of a step that has begun and whose running statistics are not noted yet
        self._unused = 0  # batches that were yielded and on which the model has not computed

    def begin_pass(self) -> None:
        self._was_used, self._is_ahead, self._unused = True, False, 0

    def end_pass(self) -> None:
        if self._unused == 0:  # else the last batch was asked for ahead of its use
            self.shared.begin(self.device)
            self.shared.weight = self.shared.share = 1 / self.ranks
            self._accumulates, self._sizes, self._due = True, (0, 0), 0

    def leave_pass(self) -> None:
        if self.shared.finished or not self.model.require_backward_grad_sync:  # else its gradients are still to come
            self.end_pass()
        self.model.require_backward_grad_sync = True

    def begin_step(self, samples: int, total: int, micro_batches: int = 1) -> None:
        self._is_ahead |= not self._was_used
        self._was_used = False
        self._sizes = self._sizes[1], samples // micro_batches
        self.begin_forward(micro_batches)
        self.set_share(samples, total)

    def begin_forward(self, micro_batches: int = 1) -> None:
        """Begins to measure a step, whose running statistics are averaged after it."""
        self._accumulates, self._due = micro_batches > 1, micro_batches
        self.shared.begin(self.device)

    def set_share(self, samples: int, total: int) -> None:
        self.shared.share = samples / total
        self.shared.weight = 1 / self.ranks if self.by_loss else samples / total

    def note_forward(self, *_: Any) -> None:
        """Before each forward of the model: where the first one in training mode of a step begins, running statistics are as before it."""
        if not torch.is_grad_enabled():
            return
        self._unused = max(0, self._unused - 1)
        if self._due and any(norm.training for norm in self._norms):  # a script may set the mode of the network and not of its wrapper
            self._begin_statistics(self._due)
            self._due = 0

    def _begin_statistics(self, micro_batches: int) -> None:
        norms = [norm for norm in self._norms if norm.momentum != 0]  # one whose values never move has nothing to average
        if not norms:
            return
        layers: list[Any] = [norm.running_mean for norm in norms] + [norm.running_var for norm in norms]
        before_step = torch.cat([layer.detach() for layer in layers]).double()
        momenta = [norm.momentum for norm in self._norms]
        asked = micro_batches, before_step.device, momenta
        if self._kept is None or self._kept[0] != asked or None in momenta:
            self._kept = asked, self._compute_kept(norms, micro_batches).to(before_step.device)
        self.shared.begin_statistics(layers, before_step, self._kept[1][0], self._kept[1][1])

    @staticmethod
    def _compute_kept(norms: list[BatchNorm], micro_batches: int) -> torch.Tensor:
        """What of the running statistics' values stays, after a step and after one batch."""
        kept: list[float] = []
        kept_once: list[float] = []
        for norm in norms:
            if norm.momentum is not None:
                shares = (1 - norm.momentum) ** micro_batches, 1 - norm.momentum
            else:  # a plain average over all batches
                before = int(norm.num_batches_tracked)  # type: ignore[arg-type]
                shares = (before / (before + micro_batches),) * 2  # num_batches_tracked counts micro-batches
            channels = norm.running_mean.numel()  # type: ignore[union-attr]
            kept += [shares[0]] * channels
            kept_once += [shares[1]] * channels
        return torch.tensor([kept * 2, kept_once * 2], dtype=torch.float64)

    def begin_batch(self, is_last: bool) -> None:
        self.model.require_backward_grad_sync = is_last
        self._unused += 1

    @property
    def is_renewable(self) -> bool:
        """Whether ``renew()`` can: of all ranks, and with the hook of this module."""
        return self.model.process_group is dist.group.WORLD and self.model._comm_hooks[0][0] is _motley.register_gradient_hook

    def renew(self) -> None:
        """For the process group that has taken the place of the one before, of all ranks: a new reducer. Gradients stay."""
        model = self.model
        assert dist.group.WORLD is not None
        model.process_group = dist.group.WORLD
        for name in ("reducer", "logger"):
            vars(model).setdefault(name, None)  # where a call before has failed
        state = model.__getstate__()  # type: ignore[no-untyped-call]
        del model.reducer, model.logger  # with the hooks that they have at the parameters
        model.__setstate__(state)  # type: ignore[no-untyped-call]
        _motley.register_gradient_hook(model.reducer, model.process_group, self.shared)
        self.ranks = dist.get_world_size()

    def check(self, _: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Before each forward of the model: whether its gradients will be weighted as those of this batch."""
        if not torch.is_grad_enabled():
            return
        if not (self.model.require_backward_grad_sync or self._accumulates):
            raise RuntimeError(
                "gradients are accumulated over several batches, which may be split differently, and weighted as those of the last one: "
                "say gradient_accumulation_steps, with the same number, to motley.DataLoader too")
        self._was_used = True
        # An input may be as long as the batch before it by chance, where its first dimension is none of samples.
        size = next((len(value) for value in (*inputs, *named.values()) if isinstance(value, torch.Tensor) and value.dim()), None)
        if self._is_ahead and self._sizes[1] and size == self._sizes[0] != self._sizes[1]:
            raise RuntimeError(
                "a batch was asked for before the one before it was used, as Ray's prepare_data_loader does, and gradients are weighted as "
                "those of the last one: iterate over the motley.DataLoader itself (its num_workers load ahead)")

    @property
    def finished(self) -> float:
        return self.shared.finished

    @property
    def reduced(self) -> float:
        return self.shared.reduced

    def device_seconds(self) -> float:
        return self.shared.device_seconds()


def _hook_into(model: DistributedDataParallel, by: str, minimum: int, norms: list[BatchNorm],
               hook: tuple[Any, Callable[..., Any]] | None) -> _HookWeight:
    if getattr(model, "_motley_weight", None) is not None:
        raise ValueError("the model's gradients are weighted already; motley.weight_gradients is called once a model")
    if model._comm_hooks:
        raise ValueError("the model has a communication hook already, and PyTorch has room for one: instead of register_comm_hook, "
                         "hand it to motley.weight_gradients as hook=(state, hook)")
    if model._use_python_reducer or model._delay_all_reduce_params:
        raise ValueError("the model's gradients are averaged beside PyTorch's buckets, where nothing can be weighted: leave out "
                         "delay_all_reduce_named_params and optimize_ddp='python_reducer', or scale the loss by loader.weigh")
    weight = _HookWeight(by, minimum, model, norms if hook is None else [])
    if hook is None:
        _motley.register_gradient_hook(model.reducer, model.process_group, weight.shared)
        model._comm_hooks.append((_motley.register_gradient_hook, None))
    else:
        state, inner = hook
        model.register_comm_hook(state, _weighted_hook(weight, inner))
    # Buffers are not taken from rank 0, which waited in forward and hid who is slow.
    model.broadcast_buffers = False
    if by == "samples":
        model.register_forward_pre_hook(weight.check, with_kwargs=True)
    model.register_forward_pre_hook(weight.note_forward)
    model._motley_weight = weight  # type: ignore[assignment]
    model.join = _refuse_join  # type: ignore[method-assign]
    return weight


def _weighted_hook(weight: _HookWeight, inner: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that averages over ranks, given buckets scaled so that the average is the weighted sum."""

    def weighted(state: Any, bucket: Any) -> Any:
        if bucket.is_last():
            weight.shared.note_finished(bucket.buffer().device)
        _scale(bucket.buffer(), weight.shared.weight * weight.ranks)
        return inner(state, bucket)

    # PyTorch looks at what the hook says it takes.
    weighted.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}  # type: ignore[attr-defined]
    return weighted


def _refuse_join(*_: Any, **__: Any) -> None:
    raise RuntimeError("join() is for ranks with different numbers of batches; motley.DataLoader gives every rank the same number: "
                       "leave it out")


def _is_sharded(module: torch.nn.Module) -> bool:
    return hasattr(module, "set_custom_reduce_scatter")


def _scatter_into(modules: list[torch.nn.Module], by: str, minimum: int, hook: Any, group: Any) -> _Weight:
    if hook is not None:
        raise ValueError("hook is for DistributedDataParallel; fully_shard has none")
    if getattr(modules[0], "_motley_weight", None) is not None:
        raise ValueError("the model's gradients are weighted already; motley.weight_gradients is called once a model")
    ranks = dist.get_world_size(group)
    for info in _list_meshes(modules):
        _check_averaged_over(info.mesh.mesh.flatten().tolist(), group)
        if getattr(info, "shard_mesh_size", 1) == 1 and ranks > 1 and by == "samples":
            raise ValueError("each rank has the whole model, which fully_shard then reduces where nothing can be weighted: use "
                             "DistributedDataParallel, or scale the loss by loader.weigh")
    weight = _ScatterWeight(by, minimum, modules, ranks)
    for module in modules:
        module.set_custom_reduce_scatter(weight.reduce_scatter)  # type: ignore[operator]
    modules[0]._motley_weight = weight  # type: ignore[assignment]
    return weight


def _list_meshes(modules: list[torch.nn.Module]) -> list[Any]:
    """Over which ranks fully_shard has sharded and copied each module's parameters, as PyTorch's own mesh_info says it."""
    meshes = []
    for module in modules:
        state: Any = module._get_fsdp_state()  # type: ignore[operator]
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]  # PyTorch 2.13; before it
        meshes += [group.mesh_info for group in groups if group]
    return meshes


def _check_averaged_over(ranks: list[int], group: dist.ProcessGroup | None) -> None:
    """ValueError where these are other ranks than those of the loader's process group, whose samples weights are relative to."""
    own = dist.get_process_group_ranks(group)
    if sorted(ranks) != sorted(own):
        raise ValueError(f"the model's gradients are averaged over ranks {sorted(ranks)}, and the loader splits a batch among ranks "
                         f"{sorted(own)}: give it the process group of the former, motley.DataLoader(..., process_group=)")


class _ScatterWeight(_Weight):
    def __init__(self, by: str, minimum: int, modules: list[torch.nn.Module], ranks: int) -> None:
        super().__init__(by, minimum, ranks, next(modules[0].parameters()).device)
        self._modules, self._finished, self._factor = modules, 0.0, 1.0
        self.reduce_scatter = _make_reduce_scatter(self)

    def end_pass(self) -> None:
        if self._finished:  # else the last batch was asked for ahead of its use
            self._finished, self._factor = 0.0, 1.0

    def leave_pass(self) -> None:
        self.end_pass()
        self.begin_batch(True)

    def begin_step(self, samples: int, total: int, micro_batches: int = 1) -> None:
        self._finished = 0.0
        self._factor = 1.0 if self.by_loss else samples * self.ranks / total

    def begin_batch(self, is_last: bool) -> None:
        for module in self._modules:
            module.set_requires_gradient_sync(is_last, recurse=False)  # type: ignore[operator]

    @property
    def finished(self) -> float:
        return self._finished

    def list_parameters(self) -> Parameters:
        return list_parameters(self._modules[0].named_parameters())

    def scale(self, gradients: torch.Tensor) -> None:
        self._finished = time.monotonic()
        _scale(gradients, self._factor)


def _make_reduce_scatter(weight: _ScatterWeight) -> Any:
    # FSDP2 has no public name for what set_custom_reduce_scatter takes.
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

    class Weighted(DefaultReduceScatter):
        """FSDP2's own, of gradients scaled so that its average is the weighted sum."""

        def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            weight.scale(input_tensor)
            return super().__call__(output_tensor, input_tensor, *arguments, **named)

    return Weighted()


def _scale(tensor: torch.Tensor, factor: float) -> None:
    if factor == 0:
        tensor.zero_()  # 0 times what is not a number would not be 0
    elif factor != 1:
        tensor.mul_(factor)


def _wrapped(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The module and, in order, what compiling or a framework has wrapped."""
    inner: Any = model
    while isinstance(inner, torch.nn.Module):
        yield inner
        if isinstance(inner, DistributedDataParallel):
            return
        inner = getattr(inner, "_orig_mod", None) or getattr(inner, "_forward_module", None) or getattr(inner, "module", None)


def _find(model: torch.nn.Module, wanted: Callable[[torch.nn.Module], bool]) -> Any:
    return next((module for module in _wrapped(model) if wanted(module)), None)


_build_parameters = DistributedDataParallel._build_params_for_reducer


def _build_same_parameters(model: DistributedDataParallel) -> Any:
    """What a DistributedDataParallel begins with. Over the backend ``motley`` ranks whose models differ are told in what, which PyTorch's
    own comparison cannot say: it broadcasts shapes, as many as there are dimensions on each rank."""
    if _backend.find(model.process_group) is not None:
        own = list_parameters(pair for pair in model.module.named_parameters() if pair[0] not in model.parameters_to_ignore)
        models: list[Any] = [None] * dist.get_world_size(model.process_group)
        dist.all_gather_object(models, own, group=model.process_group)
        check_alike(models)
    return _build_parameters(model)  # type: ignore[no-untyped-call]


DistributedDataParallel._build_params_for_reducer = _build_same_parameters  # type: ignore[method-assign]
