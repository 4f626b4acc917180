"""How an ordinary torch.nn.Module is cut into layers that follow each other, so that it can be profiled layer by layer and run as the
stages of a pipeline: its forward is traced with real values, and cut wherever one tensor is all that later computation reads. What is
between two such places and calls several blocks, as a U-Net does, is cut between these, too, where several tensors are alive; each layer
hands on those that bypass it. Blocks are submodules with submodules; of a module that would be one layer, those with parameters.

A forward is traced by torch.fx, one module at a time: calls of submodules are steps, as are functions in between. Branches and loops are
those that the example takes. A layer that is one call of a submodule with submodules of its own is cut further, so that nested Sequentials
come out flat, and what a skip connection bypasses stays together. Numbers that follow from shapes are not passed on: they are computed anew
from a layer's own input. In the end the chain of layers is held against the module itself, outputs and gradients, and where they differ
the module is one layer.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.utils import _pytree as pytree

from . import _devices

_FEW, _MORE = 2, 3  # rows of the two batches with which modules are traced: what differs between them depends on the batch
_TOLERANCE = 1e-4  # relative, between gradients of the chain and of the module, whose sums may be taken in other orders
_KINDS = (("embedding", "embedding"), ("attention", "attention"), ("conv", "convolution"), ("linear", "fully-connected"),
          ("addmm", "fully-connected"), ("pool", "pooling"), ("norm", "normalization"), ("lstm", "recurrent"), ("gru", "recurrent"),
          ("rnn", "recurrent"), ("elu", "activation"), ("silu", "activation"), ("sigmoid", "activation"), ("tanh", "activation"),
          ("softmax", "activation"), ("swish", "activation"), ("cosine", "similarity"), ("dropout", "elementwise"),
          ("add", "elementwise"), ("mul", "elementwise"), ("concat", "concatenation"), ("sequential", "block"))

Values: TypeAlias = "dict[fx.Node, Any]"
Formula: TypeAlias = "Callable[[int, torch.device], Any]"  # of the rows and device of a layer's input


@dataclass
class Layer:
    """A part of a module's forward: what is computed between two places where it is cut.

    Attributes:
        name: the module's path, such as ``layer1.0``; of several steps the first and the last one's, with ``..`` between.
        kind: as in profile.json.
        tensors: names of the parameters and buffers that it reads, as the whole module has them.
        forward: of as many tensors as the layer before gives, or all inputs; gives a tensor or several in a tuple.
        outputs: of one that another layer follows, its outputs for two rows, on the device "meta".
    """

    name: str
    kind: str
    tensors: list[str]
    forward: Callable[..., Any]
    outputs: tuple[torch.Tensor, ...] = ()

    def describe_shapes(self, parameters: Mapping[str, torch.Tensor]) -> str:
        """The shapes of the parameters that it reads, of all of the model by name, as profiles and plans have them."""
        return ", ".join("x".join(map(str, parameters[name].shape)) or "scalar" for name in self.tensors if name in parameters)


@dataclass
class Chain:
    """A module as layers that follow each other; the first reads all inputs, each other one the outputs of the one before.

    Attributes:
        untrained: names of parameters that get no gradient.
        note: why the module is one layer; empty where it was cut.
    """

    name: str
    layers: list[Layer]
    untrained: set[str]
    note: str = ""


def cut(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], name: str) -> Chain:
    """The layers of a module in the mode (training or not) that it is in.

    Args:
        module: with real parameters; it, the random generators and the gradients are left as they are.
        inputs: of forward, each with a row a sample, on the module's device.
        name: of the module, by which a module of one layer calls it.

    Raises:
        Whatever the module raises on such inputs.
    """
    few, more = (tuple(take_rows(tensor, rows) for tensor in inputs) for rows in (_FEW, _MORE))
    whole = Layer(name, "block", list(_names(module)), module)
    with unchanged(module):
        expected, gradients = _outcome(module, [module], few)
        untrained = {key for key, gradient in gradients.items() if gradient is None}
        try:
            layers = _cut_whole(module, few, more)
        except _Uncut as problem:
            return Chain(name, [whole], untrained, str(problem))
        if (difference := _difference(module, layers, few, more, expected, gradients)) is not None:
            return Chain(name, [whole], untrained, difference)
    return Chain(name, layers, untrained)


def run_layers(layers: Sequence[Callable[..., Any]], inputs: tuple[torch.Tensor, ...]) -> Any:
    """What the last of layers that follow each other gives."""
    value: Any = inputs
    for layer in layers:
        value = layer(*as_tuple(value))
    return value


def as_tuple(value: Any) -> tuple[Any, ...]:
    """What a layer gives, as what the next one reads."""
    return value if isinstance(value, tuple) else (value,)


def _cut_whole(module: torch.nn.Module, few: tuple[torch.Tensor, ...], more: tuple[torch.Tensor, ...]) -> list[Layer]:
    """Several layers, or _Uncut."""
    def is_large(part: torch.nn.Module) -> bool:
        return any(True for _ in part.children())

    def is_trained(part: torch.nn.Module) -> bool:
        return any(True for _ in part.parameters())

    for is_block in (is_large, is_trained):
        with contextlib.suppress(_OneLayer):
            return _Cutter(module, is_block).cut(module, "", list(few), list(more), lambda proxies: (tuple(proxies), {}))
    raise _OneLayer


def take_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """A copy with so many rows, which are the tensor's, again and again."""
    return tensor.detach().index_select(0, torch.arange(rows, device=tensor.device) % tensor.shape[0])


def _names(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The module's parameters and buffers; one that has several names by its first."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


@contextlib.contextmanager
def unchanged(module: torch.nn.Module, *, with_parameters: bool = False) -> Iterator[None]:
    """Puts buffers, gradients and the states of random generators back in the end, and parameters if asked to."""
    kept = [*module.buffers(), *(module.parameters() if with_parameters else ())]
    state = [(tensor, tensor.detach().clone()) for tensor in kept]
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    devices = {tensor.device for tensor in module.parameters()}
    try:
        for parameter, _ in gradients:
            parameter.grad = None
        with _devices.fork_random(devices):
            yield
    finally:
        with torch.no_grad():
            for tensor, before in state:
                tensor.copy_(before)
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextlib.contextmanager
def in_mode(module: torch.nn.Module, *, training: bool) -> Iterator[None]:
    """The module in training or in evaluation mode; the modes of its parts are put back in the end."""
    modes = [(part, part.training) for part in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training


def _outcome(module: torch.nn.Module, layers: list[Callable[..., Any]],
             inputs: tuple[torch.Tensor, ...]) -> tuple[list[torch.Tensor], dict[str, torch.Tensor | None]]:
    """The tensors that the layers, one after the other, compute, and the gradients of the module's parameters for a sum of them."""
    _devices.seed_random({parameter.device for parameter in module.parameters()}, 0)
    before = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    with torch.enable_grad():
        value = run_layers(layers, tuple(tensor.clone() for tensor in inputs))
        outputs = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        sums = [(output * torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype, device=output.device).view_as(output)).sum()
                for output in outputs if output.requires_grad]
        if sums:
            torch.autograd.backward(torch.stack([part.to(sums[0].dtype) for part in sums]).sum())
    gradients = {key: parameter.grad for key, parameter in module.named_parameters()}
    for parameter in module.parameters():
        parameter.grad = None
    with torch.no_grad():
        for buffer, old in before:
            buffer.copy_(old)
    return [output.detach() for output in outputs], gradients


def _difference(module: torch.nn.Module, layers: list[Layer], few: tuple[torch.Tensor, ...], more: tuple[torch.Tensor, ...],
                expected: list[torch.Tensor], gradients: dict[str, torch.Tensor | None]) -> str | None:
    """In what the layers, one after the other, differ from the module; None where they do not."""
    forwards = [layer.forward for layer in layers]
    wanted_more, _ = _outcome(module, [module], more)
    try:
        outputs, found = _outcome(module, forwards, few)
        outputs_more, _ = _outcome(module, forwards, more)
    except Exception as problem:  # of the user's module: whatever it raises
        return f"its layers, one after the other, fail: {problem}"
    for one, other in ((outputs, expected), (outputs_more, wanted_more)):
        if len(one) != len(other) or not all(_are_close(a, b) for a, b in zip(one, other)):
            return "its layers, one after the other, compute something else: its forward depends on more than its inputs and parameters"
    for key, gradient in gradients.items():
        other_gradient = found[key]
        if (gradient is None) != (other_gradient is None) or (
                gradient is not None and other_gradient is not None and not _are_close(gradient, other_gradient)):
            return f"its layers, one after the other, give '{key}' another gradient"
    return None


def _are_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_sparse or other.is_sparse:
        one, other = one.to_dense(), other.to_dense()
    if not one.is_floating_point():
        return torch.equal(one, other)
    scale = float(other.abs().max()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True)


class _Uncut(Exception):
    """Why a module is one layer."""


class _OneLayer(_Uncut):
    """There is no place to cut it."""

    def __init__(self) -> None:
        super().__init__("no single tensor crosses between its parts, nor do several between its blocks")


class _Value(fx.Proxy):
    """A value while forward is traced, which is known: conditions, loops and lengths are those of the example."""

    def _example(self) -> Any:
        tracer: Any = self.tracer
        return tracer.values[self.node]

    def __getattr__(self, name: str) -> Any:
        example = self._example()
        if callable(getattr(example, name)):  # a method: recorded when it is called
            return fx.proxy.Attribute(self, name)
        return self.tracer.create_proxy("call_function", getattr, (self, name), {})

    def __len__(self) -> int:
        return len(self._example())

    def __int__(self) -> int:
        return int(self._example())

    def __index__(self) -> int:
        return operator.index(self._example())

    def __float__(self) -> float:
        return float(self._example())


class _Tracer(fx.Tracer):
    """Records the forward of one module, of whose submodules every call is a step, and computes each step at once."""

    proxy_buffer_attributes = True

    def __init__(self, inputs: list[torch.Tensor], call: Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]) -> None:
        super().__init__()
        self.inputs, self.call = inputs, call
        self.values: Values = {}
        self._computes = False

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        proxies = [self.create_proxy("placeholder", f"input_{number}", (), {}) for number in range(len(self.inputs))]

        def forward(root: torch.nn.Module, *given: Any) -> Any:
            args, kwargs = self.call(list(given))
            return root_fn(root, *args, **kwargs)

        return forward, [self.root, *proxies]

    def create_node(self, kind: str, target: Any, args: Any, kwargs: Any, name: str | None = None, type_expr: Any = None) -> fx.Node:
        node = super().create_node(kind, target, args, kwargs, name, type_expr)
        if kind == "placeholder":
            self.values[node] = self.inputs[len(self.values)]
        elif kind != "output":
            self._computes = True
            try:
                self.values[node] = _compute(node, self.values, self.root)
            finally:
                self._computes = False
        return node

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return True

    def call_module(self, m: torch.nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return forward(*args, **kwargs) if self._computes else super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self._computes else super().getattr(attr, attr_val, parameter_proxy_cache)

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.values[obj.node])

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        return iter([obj[number] for number in range(len(self.values[obj.node]))])  # type: ignore[index]

    def keys(self, obj: fx.Proxy) -> Any:
        return self.values[obj.node].keys()


def _attribute(root: torch.nn.Module, path: str) -> Any:
    value: Any = root
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _nodes_in(value: Any) -> list[fx.Node]:
    """The nodes in what a node reads; one that stands there twice, twice."""
    nodes: list[fx.Node] = []

    def note(node: fx.Node) -> fx.Node:
        nodes.append(node)
        return node

    fx.node.map_arg(value, note)
    return nodes


def _compute(node: fx.Node, values: Values, root: torch.nn.Module) -> Any:
    args = fx.node.map_arg(node.args, values.__getitem__)
    kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
    target: Any = node.target
    if node.op == "get_attr":
        return _attribute(root, target)
    if node.op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    return (root.get_submodule(target) if node.op == "call_module" else target)(*args, **kwargs)


def _find_formula(few: Any, more: Any) -> Formula | None:
    """What gives a value that is no tensor for any number of rows, from those for _FEW and for _MORE; None where nothing simple does."""
    if isinstance(few, torch.device):
        return lambda rows, device: device
    if isinstance(few, (tuple, list)) and isinstance(more, (tuple, list)):
        parts = [_find_formula(one, other) for one, other in zip(few, more)]
        if len(few) != len(more) or any(part is None for part in parts):
            return None
        make = torch.Size if isinstance(few, torch.Size) else list if isinstance(few, list) else tuple
        return lambda rows, device: make(part(rows, device) for part in parts if part is not None)
    if type(few) is not type(more):
        return None
    if isinstance(few, int) and not isinstance(few, bool) and few != more:
        factor = few // _FEW
        return (lambda rows, device: factor * rows) if few == factor * _FEW and more == factor * _MORE else None
    if few is None or isinstance(few, (bool, int, float, str, torch.dtype, torch.layout, torch.memory_format)):
        return (lambda rows, device: few) if few == more else None
    return None


@dataclass
class _Piece:
    """Steps between two cuts."""

    steps: list[fx.Node]
    inputs: list[fx.Node]
    crossing: list[fx.Node]  # what the next piece reads; of the last one the output, where it is a tensor
    output: Any  # what forward returns, of the last one


@dataclass
class _Forward:
    """A traced forward."""

    module: torch.nn.Module
    path: str
    placeholders: list[fx.Node]
    steps: list[fx.Node]  # that depend on the inputs
    free: list[fx.Node]  # in their order: those that any layer can compute for itself
    formulas: dict[fx.Node, Formula]
    output: Any
    few: Values
    more: Values
    versions: dict[tuple[fx.Node, fx.Node], int] = field(default_factory=dict)  # of a tensor, after a step
    last_use: dict[fx.Node, int] = field(default_factory=dict)


class _Cutter:
    """Cuts a module, and those within it."""

    def __init__(self, root: torch.nn.Module, is_block: Callable[[torch.nn.Module], bool]) -> None:
        self._is_block = is_block
        self._first_names = {id(tensor): name for name, tensor in reversed(list(_names(root).items()))}
        self._given: dict[str, int] = {}

    def cut(self, module: torch.nn.Module, path: str, few: list[torch.Tensor], more: list[torch.Tensor],
            call: Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Layer]:
        """The module's layers; raises _Uncut where it has only one."""
        if _has_hooks(module) or "forward" in vars(module):
            raise _Uncut("it has hooks, or a forward of its own, which its layers would not run")
        with torch.no_grad():
            try:
                forward = _trace(module, path, [value.clone() for value in few], [value.clone() for value in more], call)
            except Exception as problem:  # of the user's module: whatever it raises
                reason = str(problem).split("\n")[0]
                raise _Uncut(f"its forward cannot be traced: {type(problem).__name__}: {reason}") from problem
        pieces = _find_pieces(forward, self._is_block)
        layers: list[Layer] = []
        for piece in pieces:
            inner = self._cut_within(forward, piece)
            if len(pieces) == 1 and not inner:
                raise _OneLayer
            layers += inner or [self._make_layer(forward, piece)]
        return layers

    def _cut_within(self, forward: _Forward, piece: _Piece) -> list[Layer]:
        """The layers of the submodule that a piece is one call of; none where it is not, or cannot be cut."""
        node = piece.steps[0]
        if len(piece.steps) != 1 or node.op != "call_module" or len(piece.inputs) != 1 or piece.crossing != [node]:
            return []
        module = forward.module.get_submodule(str(node.target))
        read = [one for one in _nodes_in((node.args, node.kwargs)) if not _is_constant(forward, one)]
        if not list(module.children()) or read != piece.inputs:
            return []

        def call(proxies: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            bound: Any = fx.node.map_arg((node.args, dict(node.kwargs)), lambda one: proxies[0] if one is read[0] else forward.few[one])
            return tuple(bound[0]), dict(bound[1])

        given = dict(self._given)
        try:
            return self.cut(module, _join(forward.path, str(node.target)), [forward.few[read[0]]], [forward.more[read[0]]], call)
        except _Uncut:
            self._given = given
            return []

    def _make_layer(self, forward: _Forward, piece: _Piece) -> Layer:
        first, last = (_step_name(forward, node) for node in (piece.steps[0], piece.steps[-1]))
        name = first if first == last or len(piece.steps) == 1 else f"{first}..{last}"
        self._given[name] = self._given.get(name, 0) + 1
        if self._given[name] > 1:
            name += f"#{self._given[name]}"
        nodes = _with_free(forward, piece)
        is_block = len(piece.steps) > 1 or (
            piece.steps[0].op == "call_module" and any(forward.module.get_submodule(str(piece.steps[0].target)).children()))
        kind = "block" if is_block else _find_kind(_word(forward, piece.steps[0]))
        return Layer(name, kind, self._list_tensors(forward, nodes), _Program(forward, piece, nodes),
                     tuple(forward.few[one].to("meta") for one in piece.crossing))

    def _list_tensors(self, forward: _Forward, nodes: list[fx.Node]) -> list[str]:
        names: dict[str, None] = {}
        for node in nodes:
            if node.op == "call_module":
                read = list(_names(forward.module.get_submodule(str(node.target))).values())
            elif node.op == "get_attr":
                read = [forward.few[node]]
            else:
                continue
            names |= dict.fromkeys(self._first_names[id(tensor)] for tensor in read if id(tensor) in self._first_names)
        return list(names)


def _is_constant(forward: _Forward, node: fx.Node) -> bool:
    """Whether a value follows from shapes and constants alone, such as a causal mask; what depends on the batch is found out in the end."""
    if node in forward.formulas:
        return True
    if node not in forward.free or node.op == "call_module" or (
            node.op == "get_attr" and _is_registered(forward.module, str(node.target))):
        return False
    return all(_is_constant(forward, one) for one in node.all_input_nodes)


def _has_hooks(module: torch.nn.Module) -> bool:
    return any(getattr(module, kind, None) for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _word(forward: _Forward, node: fx.Node) -> str:
    """What a step does, in a word: the class of the submodule, or the function."""
    if node.op == "call_module":
        return type(forward.module.get_submodule(str(node.target))).__name__
    word = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "call")
    return word.rstrip("_")


def _step_name(forward: _Forward, node: fx.Node) -> str:
    return _join(forward.path, str(node.target) if node.op == "call_module" else _word(forward, node))


def _find_kind(word: str) -> str:
    word = word.lower()
    return next((kind for part, kind in _KINDS if part in word), "concatenation" if word == "cat" else "other")


def _trace(module: torch.nn.Module, path: str, few: list[torch.Tensor], more: list[torch.Tensor],
           call: Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]) -> _Forward:
    own = set(vars(module))
    tracer = _Tracer(few, call)
    graph = tracer.trace(module)
    made = {name: vars(module)[name] for name in set(vars(module)) - own}  # constants, which the tracer leaves in the module
    nodes = list(graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    output = next(node for node in nodes if node.op == "output").args[0]
    computed = [node for node in nodes if node.op not in ("placeholder", "output")]
    last_use: dict[fx.Node, int] = {}
    for number, node in enumerate(computed):
        last_use |= dict.fromkeys(node.all_input_nodes, number)
    values: Values = dict(zip(placeholders, more))
    versions: dict[tuple[fx.Node, fx.Node], int] = {}
    alive = list(placeholders)
    for number, node in enumerate(computed):
        values[node] = _compute(node, values, module)
        alive = [one for one in [*alive, node] if last_use.get(one, len(computed)) > number and isinstance(values[one], torch.Tensor)]
        versions |= {(one, node): values[one]._version for one in alive}
    for name in made:
        delattr(module, name)
    forward = _Forward(module, path, placeholders, [], [], {}, output, tracer.values, values, versions)
    dependent = set(placeholders)
    for node in computed:
        formula = None
        if not dependent.isdisjoint(node.all_input_nodes):
            formula = _find_formula(tracer.values[node], values[node])
            if formula is None:
                dependent.add(node)
                forward.steps.append(node)
                continue
            forward.formulas[node] = formula
        forward.free.append(node)
    for number, node in enumerate(forward.steps):
        forward.last_use |= dict.fromkeys((one for one in node.all_input_nodes if one in dependent), number)
    forward.last_use |= dict.fromkeys(_nodes_in(output), len(forward.steps))
    return forward


def _find_pieces(forward: _Forward, is_block: Callable[[torch.nn.Module], bool]) -> list[_Piece]:
    """The steps between the places where one tensor is alive, with a row a sample, into which nothing is written later, and those between
    blocks where several are."""
    alive: list[list[fx.Node]] = []  # after each step
    now = list(forward.placeholders)
    for number, node in enumerate(forward.steps):
        now = [one for one in [*now, node] if forward.last_use.get(one, -1) > number]
        alive.append(now)
    pieces: list[_Piece] = []
    inputs, begin, blocks = forward.placeholders, 0, 0
    for number, node in enumerate(forward.steps):
        if number + 1 == len(forward.steps):
            output = forward.output
            crossing = [output] if isinstance(output, fx.Node) and isinstance(forward.few.get(output), torch.Tensor) else []
            pieces.append(_Piece(forward.steps[begin:], inputs, crossing, output))
            break
        blocks += node.op == "call_module" and is_block(forward.module.get_submodule(str(node.target)))
        following = forward.steps[number + 1]
        is_between = blocks > 0 and following.op == "call_module" and is_block(forward.module.get_submodule(str(following.target)))
        if (len(alive[number]) == 1 or is_between) and alive[number] != inputs and all(
                _can_cross(forward, one, node) for one in alive[number]):
            pieces.append(_Piece(forward.steps[begin:number + 1], inputs, alive[number], None))
            inputs, begin = alive[number], number + 1
            blocks = 0 if len(inputs) == 1 else blocks
    return pieces


def _can_cross(forward: _Forward, value: fx.Node, step: fx.Node) -> bool:
    few, more = forward.few[value], forward.more[value]
    return (isinstance(few, torch.Tensor) and type(few) in (torch.Tensor, torch.nn.Parameter) and few.is_floating_point() and few.dim() > 0
            and few.shape == (_FEW, *more.shape[1:]) and more.shape[0] == _MORE
            and more._version == forward.versions.get((value, step)))


def _with_free(forward: _Forward, piece: _Piece) -> list[fx.Node]:
    """A piece's steps and what they read that any layer can compute, in their order."""
    needed: set[fx.Node] = set()
    pending = [*piece.steps, *piece.crossing, *_nodes_in(piece.output)]
    free = set(forward.free)
    while pending:
        node = pending.pop()
        if node in needed or node in piece.inputs:
            continue
        needed.add(node)
        if node not in forward.formulas:
            pending += [one for one in node.all_input_nodes if one in free]
    return [node for node in piece.steps[0].graph.nodes if node in needed]


class _Program:
    """A piece as a function of its inputs."""

    def __init__(self, forward: _Forward, piece: _Piece, nodes: list[fx.Node]) -> None:
        self._inputs, self._output = piece.inputs, piece.output
        if piece.output is None:
            self._output = piece.crossing[0] if len(piece.crossing) == 1 else tuple(piece.crossing)
        self._steps: list[tuple[fx.Node, Callable[[Values, int, torch.device], Any]]] = [
            (node, _make_step(forward, node)) for node in nodes]

    def __call__(self, *inputs: torch.Tensor) -> Any:
        values: Values = dict(zip(self._inputs, inputs))
        rows, device = inputs[0].shape[0], inputs[0].device
        for node, step in self._steps:
            values[node] = step(values, rows, device)
        return fx.node.map_arg(self._output, values.__getitem__)


def _make_step(forward: _Forward, node: fx.Node) -> Callable[[Values, int, torch.device], Any]:
    if node in forward.formulas:
        formula = forward.formulas[node]
        return lambda values, rows, device: formula(rows, device)
    module, name, args, kwargs = forward.module, str(node.target), node.args, node.kwargs
    if node.op == "get_attr":
        value = forward.few[node]
        if isinstance(value, torch.Tensor) and not _is_registered(module, name):
            return lambda values, rows, device: value.to(device)
        return lambda values, rows, device: _attribute(module, name)
    if node.op == "call_method":

        def call_method(values: Values, rows: int, device: torch.device) -> Any:
            first, *rest = fx.node.map_arg(args, values.__getitem__)
            return getattr(first, name)(*rest, **fx.node.map_arg(kwargs, values.__getitem__))

        return call_method
    target: Any = module.get_submodule(name) if node.op == "call_module" else node.target
    if len(args) == 1 and isinstance(args[0], fx.Node) and not kwargs:
        read = args[0]
        return lambda values, rows, device: target(values[read])
    return lambda values, rows, device: target(*fx.node.map_arg(args, values.__getitem__), **fx.node.map_arg(kwargs, values.__getitem__))


def _is_registered(module: torch.nn.Module, path: str) -> bool:
    owner, _, name = path.rpartition(".")
    holder = module.get_submodule(owner) if owner else module
    return name in holder._parameters or name in holder._buffers
