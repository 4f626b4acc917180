"""torch.optim's optimizers, their step taken by a parameter server.

The server adds up the ranks' gradients and takes the step in the same pass over memory, so that neither gradients nor the
optimizer's state are at every rank, and nobody steps twice. Parameters and gradients are views of memory that the server
maps, where it is on the same host. While backward still runs, hooks in C++ announce each bucket of gradients that is
complete; step() waits for the new weights.

Each parameter group is a set of parameters of its own at the server, as it has its own weight decay; what may change from step to
step is its learning rate, which is sent with the gradients.

The norm of a gradient is known after all of it. With max_grad_norm a server that shares memory with all ranks steps a device's
parameters before that all the same, keeps what was there, and makes a step whose norm was too large again, scaled. Elsewhere the
server only adds up, and each rank steps by itself.
"""

from __future__ import annotations

import contextlib
import gc
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from .. import _motley
from .._arguments import name_type, read_mean, read_number, read_seconds
from .._loader import DataLoader
from .._ranks import Ranks, check_alike, describe, list_parameters
from .._server import Server, check_server, use_server
from .._weighting import _Weight

_Groups = list[dict[str, Any]]
# What is sent to the server once: of each optimizer what a group says beside its learning rate.
_FIXED = {
    torch.optim.SGD: ("momentum", "dampening", "weight_decay", "nesterov"),
    torch.optim.Adam: ("betas", "eps", "weight_decay", "decoupled_weight_decay"),
    torch.optim.AdamW: ("betas", "eps", "weight_decay", "decoupled_weight_decay"),
}
_MEGABYTE = 1 << 20


class ParameterServerOptimizer(torch.optim.Optimizer):
    """Takes the place of an optimizer, and of DistributedDataParallel: the model is not wrapped.

        optimizer = motley.optim.ParameterServerOptimizer(torch.optim.AdamW(net.parameters(), lr=3e-4), loader=loader)
        for inputs, targets in loader:
            loss_function(net(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    The weights that training begins with are rank 0's. The gradient of a step is the mean over the samples of all ranks: each
    rank's counts by its number of samples in the loader, or as much as any other's without a loader. Parameters that got no gradient
    in a step count as having one of zeros. Running statistics of BatchNorm layers stay each rank's own.

    Between backward() and step() weights may be moving already; read or change them after step(). After the first step they
    are the server's: load a checkpoint into model and optimizer before it, or the model first and then the optimizer by
    ``load_state_dict``, which sends both. After step() gradients are gone, as after zero_grad().

    On an accelerator weights and the optimizer's state are in the host's memory, and the device has a copy of the weights, whose
    parameters lie in flat buckets after the first step. Buckets come and go while the device computes.

    Attributes:
        rollbacks: with max_grad_norm, how many steps the server has made again because their norm was too large.

    Args:
        optimizer: a torch.optim.SGD, Adam or AdamW over float32 parameters; its groups, with their learning rates and the
            schedulers that set these, are this object's. Not stepped by itself any more.
        loader: the motley.DataLoader that training reads; made before its first pass.
        server: addresses of running servers, "HOST:PORT" or several; by default rank 0 runs one in its own process, for
            ranks on one host, which ends with it.
        token_file: the file (mode 0600) with those servers' token; by default the one that MOTLEY_TOKEN_FILE names. Ranks on several
            hosts also need MOTLEY_SECRET_FILE, a file with a secret of their own.
        max_grad_norm: scales a step's gradient down to this Euclidean norm, as clip_grad_norm_ does, over all groups together. For
            parameters on an accelerator the server then takes twice the memory.
        process_group: whose ranks train together; those of the loader by default, or all.
        bucket_cap_mb: gradients travel in buckets of about this size.
        timeout: seconds that any wait for ranks or servers may take.

    Raises:
        ValueError: wrong arguments, with what is accepted; on every rank where it is some ranks' arguments that differ.
        RuntimeError: from backward, step and state_dict, on every rank: a lost rank, a lost server, a wait that took too
            long. Such an optimizer is of no use any more, nor is one whose step was given up in the middle for another reason, unless all
            ranks load a state.

    All ranks make it, and call step() and load_state_dict(), in the same order. One thread uses it.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, loader: DataLoader | None = None, server: str | Sequence[str] | None = None,
                 token_file: str | None = None, max_grad_norm: float | None = None, process_group: dist.ProcessGroup | None = None,
                 bucket_cap_mb: float = 4, timeout: float = 300.0) -> None:
        group = loader._group if process_group is None and isinstance(loader, DataLoader) else process_group

        def check() -> None:
            _check_optimizer(optimizer)
            if max_grad_norm is not None:
                read_number("max_grad_norm", max_grad_norm)
            read_number("bucket_cap_mb", bucket_cap_mb)
            read_seconds("timeout", timeout)
            check_server(server, token_file)
            if loader is not None:
                _check_loader(loader)

        Ranks(group).agree(check)
        self._is_made = False
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._is_made = True
        self.state = optimizer.state
        self._optimizer, self._max_grad_norm, self.rollbacks = optimizer, max_grad_norm, 0
        self._bucket_bytes, self._timeout = int(bucket_cap_mb * _MEGABYTE), float(timeout)
        self._server = use_server(group, server, token_file, None, self._timeout)
        self._served = _Served(self._server.ranks.count, follows_loader=loader is not None)
        weakref.finalize(self, _leave, self._served, self._server)
        self._broadcast()
        self._join()
        if loader is not None:
            loader._weights.append(self._served)

    # ---- What scripts call

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Waits until the server has moved the weights by all ranks' gradients; what closure() gives, if there is one."""
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        served = self._served
        served.check()
        self._check_trained()
        if self._server_steps:
            self._check_fixed()
        if not served.is_loaded:
            self._load()
        with served.failing_for_good():
            served.arm()
            served.flush()
            if self._server_steps:
                self._check_learning_rates()
            served.wait(self._timeout)
            if self._max_grad_norm is not None and self._server_steps:
                self._clip(self._max_grad_norm)
            elif self._max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_([parameter for group in self.param_groups for parameter in group["params"]],
                                               self._max_grad_norm)
                self._optimizer.step()
                self._optimizer.zero_grad()
            served.end_step()
        return result

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it backward() adds gradients up and sends nothing: for all backward passes of a step but the last."""
        served = self._served
        if served.follows_loader:
            raise RuntimeError("the loader says when a step ends: give it gradient_accumulation_steps or micro_batch_size, and call step() "
                               "if loader.step_ends")
        served.disarm()
        try:
            yield
        finally:
            served.arm_if_loaded()

    def state_dict(self) -> dict[str, Any]:
        """As torch's own optimizer gives it, and takes it: on any rank, between steps."""
        self._served.check()
        if self._served.is_loaded and self._server_steps:
            for parameters, group, served in zip(self._trained, self.param_groups, self._served.groups):
                updates, arrays = served.save(self._timeout)
                fields = _fields(self._optimizer, group)
                for place, parameter in enumerate(parameters if updates and fields else []):
                    state = {field: array[place] for field, array in zip(fields, arrays)}
                    if len(fields) == 2:
                        state["step"] = torch.tensor(float(updates))
                    self.state[parameter] = state
        try:
            return self._optimizer.state_dict()
        finally:
            if self._served.is_loaded and self._server_steps:
                self.state.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with a state of this optimizer or of torch's own, and with the model's weights as they are now. Waits for all ranks.

        Raises:
            ValueError: a state of another optimizer or one that is damaged, which leaves this one as it was; or one whose parameters have
                had different numbers of steps.
        """
        self._server.ranks.agree(lambda: _check_state(self._optimizer, state_dict))
        self._served.leave()
        self._optimizer.load_state_dict(state_dict)
        self.param_groups, self.state = self._optimizer.param_groups, self._optimizer.state
        for group in self.param_groups:
            _check_group(self._optimizer, group)
        self._join()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only while it is made."""
        if self._is_made:
            raise ValueError("the server has the parameters: give the optimizer all groups before it is handed to "
                             "ParameterServerOptimizer, or load its state_dict into a new one")
        super().add_param_group(param_group)

    def __getstate__(self) -> NoReturn:
        raise TypeError("the server has the optimizer's state, which a copy or a pickle would lose; accepted: its state_dict()")

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # torch.amp.GradScaler asks this before it calls step().
        raise RuntimeError("torch.amp.GradScaler scales gradients that the server has already: train in bfloat16 (torch.autocast), which "
                           "needs no scaler")

    # ---- With the server

    def _broadcast(self) -> None:
        ranks, groups = self._server.ranks, self.param_groups
        named = [(name, parameter) for index, group in enumerate(groups)
                 for name, parameter in zip(group.get("param_names") or _number(index, group["params"]), group["params"])]
        settings = {f"{key} of parameter group {index}": group[key]
                    for index, group in enumerate(groups) for key in _FIXED[type(self._optimizer)]}
        settings = {"optimizer": type(self._optimizer).__name__, "max_grad_norm": self._max_grad_norm,
                    "number of parameter groups": len(groups)} | settings
        settings |= {f"memory layout of {name}": parameter.stride() for name, parameter in named}
        told = ranks.gather((list_parameters(named), settings))
        check_alike([parameters for parameters, _ in told])
        for rank, (_, other) in enumerate(told):
            for key, value in told[0][1].items():
                if other.get(key) != value:
                    raise ValueError(f"ranks differ in {key}: rank 0 has {value!r}, rank {rank} has {other.get(key)!r}; accepted: the same "
                                     "on every rank")
        with torch.no_grad():
            for group in groups:
                for parameter in group["params"]:
                    whole = parameter.detach().contiguous()
                    ranks.broadcast(whole)
                    parameter.copy_(whole)

    def _join(self) -> None:
        """Has the server make room; collective. Weights and state go there with the first step."""
        self._trained = [[parameter for parameter in group["params"] if parameter.requires_grad] for group in self.param_groups]
        self._required = [[parameter.requires_grad for parameter in group["params"]] for group in self.param_groups]
        self._sent: list[float | None] = [None] * len(self.param_groups)
        self._fixed = [_fixed(self._optimizer, group) for group in self.param_groups]
        everything = [parameter for parameters in self._trained for parameter in parameters]
        clips = self._max_grad_norm is not None
        self._server_steps = not (clips and any(self._server.ranks.gather(all(parameter.is_cpu for parameter in everything))))
        if self._server_steps:
            sets = [(_update_options(self._optimizer, group), parameters) for group, parameters in zip(self.param_groups, self._trained)]
            self._join_sets(sets, reversible=clips)
            if clips and not all(served.is_reversible for served in self._served.groups):  # not in memory: as all ranks see it
                self._served.leave()
                self._server_steps = False
        if not self._server_steps:
            self._join_sets([(_motley.UpdateOptions("sum"), everything)])

    def _join_sets(self, sets: list[tuple[_motley.UpdateOptions, list[torch.nn.Parameter]]], reversible: bool = False) -> None:
        for index, (update, parameters) in enumerate(sets):
            if not parameters:
                raise ValueError(f"parameter group {index} has no parameter that requires a gradient; leave it out")
            named = list(zip(_number(index, parameters), parameters))
            self._served.groups.append(_motley.ServedParameters(
                self._server.session, self._server.addresses, self._server.token, self._server.next_suffix(), update, named,
                self._bucket_bytes, _begin_step(self._served, self._optimizer, self._sent, index), self._timeout, reversible))

    def _clip(self, max_grad_norm: float) -> None:
        """Has the server make a step again whose gradient was too long; torch's formula. All ranks find the same."""
        norm = math.sqrt(sum(served.squares() for served in self._served.groups))
        factor = max_grad_norm / (norm + 1e-6)
        if not factor >= 1:  # also where the norm is not a number
            self.rollbacks += 1
            for served in self._served.groups:
                served.take_back(factor, self._timeout)

    def _load(self) -> None:
        self._server.ranks.agree(self._check_alone)
        if self._server_steps:
            states = self._server.ranks.agree(lambda: [
                _read_state(self._optimizer, group, parameters) for group, parameters in zip(self.param_groups, self._trained)])
            for served, (updates, arrays) in zip(self._served.groups, states):
                served.load(updates, arrays, self._timeout)
            self.state.clear()
        self._served.is_loaded = True

    def _check_alone(self) -> None:
        """Refuses a model whose gradients are averaged elsewhere, too."""
        if any(_find_models([parameter for parameters in self._trained for parameter in parameters], DDP)):
            raise ValueError("the model is wrapped in DistributedDataParallel, which would average the gradients that the server adds "
                             "up: train the model itself, and read and save that one")

    def _check_trained(self) -> None:
        """The server has the parameters that required a gradient: it would not move one more, and would go on moving one less."""
        for index, (group, required) in enumerate(zip(self.param_groups, self._required)):
            for place, (parameter, was_required) in enumerate(zip(group["params"], required)):
                if parameter.requires_grad != was_required:
                    now, before = ("a gradient", "none") if parameter.requires_grad else ("no gradient", "one")
                    raise ValueError(f"parameter {place} of group {index} requires {now} now and required {before} when the server was "
                                     "given the parameters; accepted: the same in every step, or a new ParameterServerOptimizer in place "
                                     "of this one")

    def _check_fixed(self) -> None:
        for index, group in enumerate(self.param_groups):
            for key, value in _fixed(self._optimizer, group).items():
                if value != self._fixed[index][key]:
                    raise ValueError(f"{key} of parameter group {index} is {value!r} now and was {self._fixed[index][key]!r}: the server "
                                     "follows the learning rate from step to step and keeps the rest (schedulers that cycle momentum "
                                     "or betas: cycle_momentum=False)")

    def _check_learning_rates(self) -> None:
        for index, sent in enumerate(self._sent):
            rate = float(self.param_groups[index]["lr"])
            if sent is not None and sent != rate:
                raise ValueError(f"lr of parameter group {index} is {rate} now and was {sent} when backward sent the gradients: set it "
                                 "before backward, as a scheduler does that is called after step()")


class _Served(_Weight):
    """The sets of parameters that a server has, and when they are sent. It never refers to the optimizer, which so can end."""

    def __init__(self, ranks: int, follows_loader: bool) -> None:
        super().__init__("samples", 1, ranks)
        self.groups: list[_motley.ServedParameters] = []
        self.samples, self.follows_loader = 1, follows_loader
        self._under_way = 0  # steps of the loader that have begun and not ended
        self.is_loaded, self._is_armed, self._failure = False, False, ""

    def begin_pass(self) -> None:
        self._under_way = 0

    def end_pass(self) -> None:
        if self._under_way == 0:  # else the last batch was asked for ahead of its use
            self.samples = 1

    def begin_step(self, samples: int, total: int, micro_batches: int = 1) -> None:
        self.samples = samples
        self._under_way += 1

    def begin_batch(self, is_last: bool) -> None:
        self.arm_if_loaded() if is_last else self.disarm()

    @property
    def finished(self) -> float:
        return max((served.announced_at for served in self.groups), default=0.0)

    def arm_if_loaded(self) -> None:
        if self.is_loaded:
            self.arm()

    @contextlib.contextmanager
    def failing_for_good(self) -> Iterator[None]:
        """Of what is done for a step: where it ends in the middle, the server has some of its buckets and not others."""
        try:
            yield
        except BaseException as problem:
            self._failure = describe(problem)
            raise

    def check(self) -> None:
        """RuntimeError where a step has failed."""
        if self._failure:
            raise RuntimeError(f"the optimizer is of no use any more since a step failed: {self._failure}")

    def arm(self) -> None:
        if not self._is_armed and not self._failure:
            self._is_armed = True
            for served in self.groups:
                served.arm()

    def disarm(self) -> None:
        self.check()
        if self._is_armed and not all([served.disarm() for served in self.groups]):
            raise RuntimeError("gradients of the backward pass before are sent already: step() comes first, and backward passes whose "
                               "gradients are to be added up belong in no_sync() but for the last")
        self._is_armed = False

    def flush(self) -> None:
        for served in self.groups:
            served.flush()
        self._is_armed = False

    def wait(self, timeout: float) -> None:
        for served in self.groups:
            served.wait(timeout)

    def end_step(self) -> None:
        self._under_way = max(0, self._under_way - 1)
        if not self.follows_loader:
            self.arm()

    def leave(self) -> None:
        for served in self.groups:
            served.leave()
        self.groups.clear()
        self.is_loaded, self._is_armed, self._failure = False, False, ""


def _leave(served: _Served, server: Server) -> None:
    served.leave()
    server.release()


def _begin_step(served: _Served, optimizer: torch.optim.Optimizer, sent: list[float | None],
                index: int) -> Callable[[], tuple[float, float]]:
    def begin() -> tuple[float, float]:
        sent[index] = rate = float(optimizer.param_groups[index]["lr"])
        return float(served.samples), rate

    return begin


def _number(index: int, parameters: Sequence[Any]) -> list[str]:
    """Names of a group's parameters."""
    return [f"parameter {place} of group {index}" for place in range(len(parameters))]


def _check_loader(loader: Any) -> None:
    if not isinstance(loader, DataLoader):
        raise ValueError(f"loader is {name_type(loader)}; a motley.DataLoader is accepted, which knows each rank's samples")
    if loader._ranks is not None:
        raise ValueError("the loader's first pass has begun; make the ParameterServerOptimizer before it")
    if loader._weights or loader._is_weighed:
        raise ValueError("the loader's gradients are weighted already, by motley.weight_gradients or loader.weigh; the server does that")


def _check_optimizer(optimizer: Any) -> None:
    if type(optimizer) not in _FIXED:
        raise ValueError(f"the optimizer is a {type(optimizer).__module__}.{type(optimizer).__name__}; torch.optim.SGD, Adam and AdamW are "
                         "what a server can step")
    for index, group in enumerate(optimizer.param_groups):
        _check_group(optimizer, group)
        for place, parameter in enumerate(group["params"]):
            if parameter.dtype != torch.float32:
                raise ValueError(f"parameter {place} of group {index} is {parameter.dtype}; a server takes float32")
            if parameter._post_accumulate_grad_hooks:
                raise ValueError(f"parameter {place} of group {index} has a hook of register_post_accumulate_grad_hook, in whose place the "
                                 "optimizer's own comes: remove it")
    for model in _find_models([parameter for group in optimizer.param_groups for parameter in group["params"]],
                              torch.nn.Embedding, torch.nn.EmbeddingBag):
        if model.sparse:
            raise ValueError(f"the model has an {type(model).__name__} with sparse=True, and a server takes whole gradients: say "
                             "sparse=False, or use motley.nn.EmbeddingBag, whose rows a server keeps")


def _find_models(parameters: Sequence[torch.nn.Parameter], *types: type[torch.nn.Module]) -> Iterator[Any]:
    """Those with any of the parameters, which do not say so: all of the program's are asked."""
    own = {id(parameter) for parameter in parameters}
    for model in [each for each in gc.get_objects() if issubclass(type(each), types)]:
        if any(id(parameter) in own for parameter in model.parameters()):
            yield model


def _check_group(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    for option in ("maximize", "amsgrad", "differentiable"):
        if group.get(option):
            raise ValueError(f"{type(optimizer).__name__}({option}=True) is not among what a server can step; {option}=False is accepted")


def _check_state(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Whether a state_dict is one of such an optimizer, with values that can be."""
    groups = state.get("param_groups") if isinstance(state, Mapping) else None
    states = state.get("state") if isinstance(state, Mapping) else None
    if not isinstance(groups, list) or not all(isinstance(group, Mapping) for group in groups) or not isinstance(states, Mapping):
        raise ValueError(f"state_dict is {name_type(state)} without param_groups and state; what state_dict() gave is accepted")
    sizes, own_sizes = ([len(group.get("params", ())) for group in each] for each in (groups, optimizer.param_groups))
    if sizes != own_sizes:
        raise ValueError(f"state_dict has parameter groups of {sizes} parameters; as many as here, {own_sizes}, are accepted")
    parameters: dict[Any, torch.Tensor] = {}
    for index, (group, own) in enumerate(zip(groups, optimizer.param_groups)):
        for key in ("lr", *_FIXED[type(optimizer)]):
            if key in group or key == "lr":
                _check_setting(f"state_dict: {key} of parameter group {index}", group.get(key), own[key])
        parameters |= zip(group["params"], own["params"])
    for place, (number, parameter) in enumerate(parameters.items()):
        values = states.get(number, {})
        for field in _fields(optimizer, optimizer.param_groups[0]):
            value = values.get(field)
            if value is not None and (not isinstance(value, torch.Tensor) or value.shape != parameter.shape):
                found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
                raise ValueError(f"state_dict: {field} of parameter {place} is {found}; a tensor of shape {tuple(parameter.shape)} is "
                                 "accepted")
        if not 0 <= read_mean(f"state_dict: step of parameter {place}", values.get("step", 0)) < math.inf:
            raise ValueError(f"state_dict: step of parameter {place} is {values['step']!r}; a number of at least 0 is accepted")


def _check_setting(name: str, value: Any, own: Any) -> None:
    if isinstance(own, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}; True or False is accepted")
    elif isinstance(own, (tuple, list)):
        if not isinstance(value, (tuple, list)) or len(value) != len(own) or not all(
                isinstance(part, (int, float, torch.Tensor)) and 0 <= part < 1 for part in value):
            raise ValueError(f"{name} are {value!r}; two numbers of at least 0 and below 1 are accepted")
    elif not isinstance(value, torch.Tensor) or not 0 <= read_mean(name, value) < math.inf:
        read_number(name, value, may_be_zero=True)


def _fixed(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> dict[str, Any]:
    return {key: group[key] for key in _FIXED[type(optimizer)]}


def _update_options(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> _motley.UpdateOptions:
    if isinstance(optimizer, torch.optim.SGD):
        options = _motley.UpdateOptions("nesterov" if group["nesterov"] else "momentum" if group["momentum"] else "sgd")
        options.momentum, options.dampening = float(group["momentum"]), float(group["dampening"])
    else:
        options = _motley.UpdateOptions("adamw" if group["decoupled_weight_decay"] else "adam")
        options.beta1, options.beta2 = (float(beta) for beta in group["betas"])
        options.epsilon = float(group["eps"])
    options.weight_decay = float(group["weight_decay"])
    return options


def _fields(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> list[str]:
    """What torch's state of a parameter calls the server's arrays, in their order."""
    if isinstance(optimizer, torch.optim.SGD):
        return ["momentum_buffer"] if group["momentum"] else []
    return ["exp_avg", "exp_avg_sq"]


def _read_state(optimizer: torch.optim.Optimizer, group: dict[str, Any],
                parameters: list[torch.nn.Parameter]) -> tuple[int, list[list[torch.Tensor]]]:
    """The number of steps and the arrays of a group's state. A server counts steps of a group, not of each parameter."""
    fields = _fields(optimizer, group)
    states = [optimizer.state.get(parameter, {}) for parameter in parameters]
    if len(fields) == 2:
        steps = {int(state.get("step", 0)) for state in states}
    else:  # torch does not count; only whether there was a first step makes a difference
        steps = {int(state.get("momentum_buffer") is not None) for state in states}
        if steps == {0, 1} and not group["dampening"]:
            steps = {1}  # the first step of a momentum is that of one of zeros
    if len(steps) > 1:
        raise ValueError(f"the parameters of a group have had different numbers of steps ({', '.join(map(str, sorted(steps)))}), which a "
                         "server counts for all of them together: put them into groups by that")
    arrays = [[torch.zeros_like(parameter) if state.get(field) is None else state[field] for parameter, state in zip(parameters, states)]
              for field in fields]
    return steps.pop(), arrays
