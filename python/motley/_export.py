"""Writes a ``torch.nn.Module`` as a ``.pt2`` file of ``torch.export``, which ``motley train`` reads, with a job file beside it.

What is written is compared with the module before it is kept: with another number of samples, in training and in evaluation. In the file
a module stands as it computes in training; the program turns dropout and batch normalisation over to evaluation by the operators' own
arguments, which ``_evaluated`` does here in the same way.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import inspect
import io
import json
import logging
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ._arguments import CommandParser, log_level, name_type

_TYPES = {"float32": torch.float32, "int64": torch.int64, "int32": torch.int32}
_SAMPLES = 4  # of the batch that is recorded; with another number the result is compared
_FLAGS = ("train", "training", "use_input_stats")  # arguments of operators that say that a module trains
_log = logging.getLogger("motley.export")

_EXAMPLES = """FILE.py:NAME is a torch.nn.Module class or instance, or a function that returns a module. It takes a batch of samples, or
several inputs with one entry of the first dimension for each sample, and returns one tensor [samples, outputs] or, for tokens,
[samples, positions, outputs]. Of what models of transformers return, the logits are taken.

examples:
  motley export model.py:Net                                     a class, without arguments, for images of 1x28x28
  motley export model.py:Net --arguments '{"hidden": 64}'        a class or function with arguments
  motley export model.py:net --input 3,32,32 --output out/net.pt2
  motley export gpt.py:small --input 64:int64:50257              64 token ids a sample, each below 50257
"""


class ExportError(ValueError):
    """The module cannot be exported, or something that was given is not accepted; the text says what."""


@dataclass(frozen=True)
class Input:
    """One input of a module: the shape of a sample, the type, and what integers stay below."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    bound: int

    def batch(self, samples: int) -> torch.Tensor:
        """Random values ``[samples, shape...]``."""
        if self.dtype.is_floating_point:
            return torch.randn(samples, *self.shape, dtype=self.dtype)
        return torch.randint(self.bound, (samples, *self.shape), dtype=self.dtype)


def main(words: Sequence[str]) -> int:
    """``motley export``: the exit code."""
    parser = CommandParser("export", "Write a PyTorch module as a .pt2 file for motley train, and a job file beside it.", _EXAMPLES,
                           {"--force": "--overwrite"})
    parser.add_argument("model", metavar="FILE.py:NAME", help="the module, its class, or a function that returns it")
    parser.add_argument("--input", action="append", metavar="SIZES[:TYPE[:BOUND]]",
                        help="shape of one sample, such as 3,32,32; its type, float32, int64 or int32; and for integers what they stay "
                             "below (2). Once for each input of the module; default: 1,28,28")
    parser.add_argument("--output", default="model.pt2", metavar="FILE", help="file to write the network to")
    parser.add_argument("--job", metavar="FILE", help="job file to write; default: job.yaml beside --output")
    parser.add_argument("--arguments", default="{}", metavar="JSON", help="keyword arguments for the class or function")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    given = parser.parse_args(words)
    logging.basicConfig(format="motley: error: motley export: %(message)s", level=log_level(given))
    try:
        print(_export_command(given))
    except ExportError as problem:
        _log.error("%s", problem)
        return 2
    return 0


def _export_command(given: argparse.Namespace) -> str:
    path, name = parse_model(given.model)
    inputs = [parse_input(text) for text in given.input or ["1,28,28"]]
    try:
        arguments = json.loads(given.arguments)
    except ValueError as problem:
        raise ExportError(f"--arguments: not JSON: {problem}") from None
    if not isinstance(arguments, dict):
        raise ExportError("--arguments: must be an object of names and values, such as '{\"hidden\": 64}'")
    output = Path(given.output)
    if output.suffix != ".pt2":
        raise ExportError(f"--output: '{output}' must end in .pt2")
    job = Path(given.job) if given.job else output.parent / "job.yaml"
    for flag, file in (("--output", output), ("--job", job)):
        if file.exists() and not given.overwrite:
            raise ExportError(f"{flag}: '{file}' exists; accepted: another file, or --overwrite to replace it")
        _make_aside(flag, file).unlink()  # where it cannot be written, nothing is
    module = build(load_object(path, name), arguments, given.model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parameters, outputs = export(module, inputs, output)
    text = _job_text(job, Path(os.path.relpath(output, job.parent)), inputs[0], outputs)
    _write("--job", job, lambda file: file.write_text(text))
    told = f"wrote {output} ({parameters} parameters, {outputs[-1]} outputs) and {job}"
    return f"{told}; say there which data to train on, where it says 'replace'" if "# replace" in text else told


def parse_model(text: str) -> tuple[Path, str]:
    """``FILE.py:NAME`` as a file that exists and a name.

    Raises:
        ExportError: it is neither.
    """
    file, _, name = text.rpartition(":")
    if not file.endswith(".py") or not name:
        raise ExportError(f"model: '{text}' is not FILE.py:NAME")
    path = Path(file).resolve()
    if not path.is_file():
        raise ExportError(f"model: there is no file '{file}'")
    return path, name


def parse_input(text: str) -> Input:
    """``3,32,32`` or ``64:int64:50257``.

    Raises:
        ExportError: sizes that are not positive integers, an unknown type, a bound that is no positive integer or of real numbers.
    """
    words = text.split(":")
    sizes = words[0].split(",") if words[0] else []
    if not all(size.isdecimal() and int(size) > 0 for size in sizes) or (not sizes and len(words) == 1):
        raise ExportError(f"--input: '{text}' is not a list of sizes such as 1,28,28")
    kind = words[1] if len(words) > 1 else "float32"
    if kind not in _TYPES:
        raise ExportError(f"--input: '{text}' has the type '{kind}'; accepted: {', '.join(_TYPES)}")
    dtype = _TYPES[kind]
    has_bound = len(words) == 3
    if len(words) > 3 or (has_bound and (dtype.is_floating_point or not words[2].isdecimal()
                                         or not 0 < int(words[2]) <= torch.iinfo(dtype).max)):
        raise ExportError(f"--input: '{text}' must be SIZES:TYPE, or SIZES:TYPE:BOUND with integers, such as 64:int64:50257")
    return Input(tuple(int(size) for size in sizes), dtype, int(words[2]) if has_bound else 2)


def load_object(path: Path, name: str) -> Any:
    """What a Python file defines under a name. The file may import what lies beside it.

    Raises:
        ExportError: the file cannot be imported, or has no such name.
    """
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # of a file that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        raise ExportError(f"model: '{path}' cannot be imported: {type(problem).__name__}: {problem}") from problem
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if inspect.isclass(value) and issubclass(value, torch.nn.Module)]
        raise ExportError(f"model: '{path}' defines no '{name}'; modules in it: {', '.join(known) or 'none'}")
    return getattr(module, name)


def build(target: Any, arguments: dict[str, Any], text: str) -> torch.nn.Module:
    """The module itself, or what a class or function returns when it is called with the arguments, in float32 on the CPU.

    Raises:
        ExportError: it is no module, or has nothing to train; the call failed.
    """
    if isinstance(target, torch.nn.Module):
        if arguments:
            raise ExportError(f"--arguments: '{text}' is an instance and takes none")
        net = target
    elif callable(target):
        torch.manual_seed(0)
        try:
            net = target(**arguments)
        except Exception as problem:
            raise ExportError(f"model: calling '{text}' with {arguments} failed: {type(problem).__name__}: {problem} "
                              "(see --arguments)") from problem
        if not isinstance(net, torch.nn.Module):
            raise ExportError(f"model: '{text}' returned {name_type(net)} and not a torch.nn.Module")
    else:
        raise ExportError(f"model: '{text}' is {name_type(target)}; accepted: a torch.nn.Module class or instance, or a function")
    if not any(parameter.requires_grad for parameter in net.parameters()):
        raise ExportError(f"model: '{text}' has no parameters to train")
    return net.float().cpu()


def export(module: torch.nn.Module, inputs: Sequence[Input], output: Path) -> tuple[int, tuple[int, ...]]:
    """Writes the module to ``output`` and returns how many parameters it trains and the shape of a sample's outputs.

    The module is left as it was, in training mode.

    Raises:
        ExportError: the module fails on such inputs, returns something else than one tensor, cannot be exported, or computes something
            else once it is.
    """
    net = _returning_one_tensor(module).train()
    torch.manual_seed(0)
    batch = tuple(one.batch(_SAMPLES) for one in inputs)
    state = {name: value.clone() for name, value in net.state_dict().items()}  # a run in training mode moves statistics
    outputs = tuple(_run(net, batch, "the module's forward").shape[1:])
    net.load_state_dict(state)
    program = _record(net, batch)

    def save(file: Path) -> None:
        saved = io.BytesIO()  # torch ends the process where a disk is full
        torch.export.save(program, saved)
        file.write_bytes(saved.getbuffer())
        _compare(net, torch.export.load(file), tuple(one.batch(_SAMPLES - 1) for one in inputs))

    _write("--output", output, save)
    net.load_state_dict(state)
    return sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad), outputs


def _returning_one_tensor(module: torch.nn.Module) -> torch.nn.Module:
    """The module, whose forward returns the logits where it returned a ``ModelOutput`` of transformers. Names of tensors stay."""
    if not hasattr(module, "config") or not hasattr(module.config, "use_cache"):
        return module
    module.config.use_cache = False  # keys and values for generation are no output to train
    cls = type(module)

    def forward(self: Any, *inputs: torch.Tensor) -> Any:
        output = cls.forward(self, *inputs)
        return getattr(output, "logits", output)

    module.__class__ = type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__})
    return module


def _run(net: Callable[..., Any], batch: tuple[torch.Tensor, ...], what: str) -> torch.Tensor:
    shapes = ", ".join(str(list(one.shape)) for one in batch)
    try:
        output = net(*batch)
    except Exception as problem:
        raise ExportError(f"{what} failed on a batch of shape {shapes}: {type(problem).__name__}: {problem} (see --input)") from problem
    output = getattr(output, "logits", output)
    if not isinstance(output, torch.Tensor) or output.dim() < 2 or output.shape[0] != batch[0].shape[0]:
        shape = list(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise ExportError(f"{what} must return one tensor [samples, outputs] or [samples, positions, outputs] and returned {shape} for "
                          f"{batch[0].shape[0]} samples")
    return output


def _record(net: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.export.ExportedProgram:
    dimension = torch.export.Dim("batch")
    takes_any = any(one.kind == inspect.Parameter.VAR_POSITIONAL for one in inspect.signature(net.forward).parameters.values())
    named = len([one for one in inspect.signature(net.forward).parameters.values() if one.kind in
                 (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)])
    shapes: tuple[Any, ...] = tuple({0: dimension} for _ in batch)
    if takes_any and named < len(batch):
        shapes = (*shapes[:named], shapes[named:])
    level = logging.getLogger("torch").level
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    said = io.StringIO()  # the graph so far, where recording stops
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            program = torch.export.export(net, batch, dynamic_shapes=shapes, strict=False)
    except Exception as problem:
        lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
        of_user = [frame for frame in traceback.extract_tb(problem.__traceback__) if not _is_of_packages(frame.filename)]
        where = f"{of_user[-1].filename}:{of_user[-1].lineno}: '{of_user[-1].line}': " if of_user else ""
        raise ExportError(f"torch.export cannot record the module: {where}{type(problem).__name__}: {' '.join(lines[:4])}") from problem
    finally:
        logging.getLogger("torch").setLevel(level)
    for graph in (one for one in program.graph_module.modules() if isinstance(one, torch.fx.GraphModule)):
        for node in graph.graph.nodes:
            node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def _compare(net: torch.nn.Module, program: torch.export.ExportedProgram, batch: tuple[torch.Tensor, ...]) -> None:
    """What was written must compute what the module does, with the same random numbers, for another number of samples."""
    state = {name: value.clone() for name, value in net.state_dict().items()}
    for what, module in (("training", copy.deepcopy(program).module()), ("evaluation", _evaluated(program))):
        net.load_state_dict(state)  # that statistics start from those in the file
        net.train(what == "training")
        torch.manual_seed(1)
        expected = _run(net, batch, "the module's forward")
        torch.manual_seed(1)
        actual = _run(module, batch, "the exported module's forward")
        if expected.shape != actual.shape or not torch.allclose(expected, actual, rtol=1e-4, atol=1e-5):
            raise ExportError(f"the exported module computes something else in {what} than the original; accepted: modules whose forward "
                              "takes the same path for all values, and in evaluation differs by dropout and batch normalisation alone")
    net.train()


def _evaluated(program: torch.export.ExportedProgram) -> torch.nn.Module:
    """The recorded module as the program runs it in evaluation: without dropout, with running statistics, and with no buffer written."""
    module = program.module()
    assert isinstance(module, torch.fx.GraphModule)
    for node in list(module.graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        values = {argument.name: value for argument, value in zip(schema.arguments, node.args)} | dict(node.kwargs)
        tracks = values.get("running_mean") is not None or "running_mean" not in {one.name for one in schema.arguments}
        changed: dict[str, bool | float] = {name: False for name in _FLAGS if values.get(name) is True and tracks}
        if isinstance(values.get("dropout_p"), float):
            changed["dropout_p"] = 0.0
        positions = {argument.name: number for number, argument in enumerate(schema.arguments)}
        for name, value in changed.items():
            if positions[name] < len(node.args):
                node.update_arg(positions[name], value)
            else:
                node.update_kwarg(name, value)
        written = [values[one.name] for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write]
        if written and isinstance(written[0], torch.fx.Node) and written[0].op == "get_attr":
            node.replace_all_uses_with(written[0])
            module.graph.erase_node(node)
    module.recompile()
    return module


def _write(flag: str, path: Path, writer: Callable[[Path], Any]) -> None:
    """Has ``writer`` write a file aside, which takes the place of ``path``, the flag's, once it is whole.

    Raises:
        ExportError: it cannot be written.
    """
    aside = _make_aside(flag, path)
    try:
        writer(aside)
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except OSError as problem:
        raise ExportError(f"{flag}: '{path}' cannot be written: {problem.strerror or problem}") from problem
    finally:
        aside.unlink(missing_ok=True)


def _make_aside(flag: str, path: Path) -> Path:
    """An empty file beside ``path``, the flag's. Raises ExportError where none can be made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=path.stem + ".", suffix=path.suffix)
    except OSError as problem:
        raise ExportError(f"{flag}: '{path}' cannot be written: {problem.strerror}") from problem
    os.close(handle)
    return Path(aside)


def _is_of_packages(file: str) -> bool:
    """Whether a file of Python is PyTorch's, Python's own or this package's, and none of the module's author."""
    return any(Path(file).is_relative_to(folder) for folder in (
        Path(torch.__file__).parent, Path(os.__file__).parent, Path(__file__).parent)) or not os.path.exists(file)


def _job_text(job: Path, model: Path, first: Input, outputs: tuple[int, ...]) -> str:
    if first.dtype.is_floating_point:
        fits = first.shape == (1, 28, 28) and outputs == (10,)
        sizes = " x ".join(map(str, first.shape)) or "1"
        remark = "" if fits else f"  # replace by your data: the network takes samples of {sizes} numbers and has {outputs[-1]} outputs"
        data = f"  name: fashion-mnist{remark}"
        optimizer = "  name: sgd\n  learning_rate: 0.05\n  momentum: 0.9"
    else:
        data = _token_data(first, outputs)
        optimizer = "  name: adamw\n  learning_rate: 0.001"
    name = re.sub("[^A-Za-z0-9_.-]", "-", model.stem)[:64] or "exported"
    return f"""# Written by motley export. Train with: motley train {job.name}
name: {json.dumps(name)}
model:
  name: exported
  path: {json.dumps(model.as_posix())}
  input_shape: {list(first.shape)}
  outputs: {outputs[-1]}
data:
{data}
global_batch_size: {256 if first.dtype.is_floating_point else 32}
epochs: 1
loss: cross-entropy
optimizer:
{optimizer}
"""


def _token_data(first: Input, outputs: tuple[int, ...]) -> str:
    """The keys of the data of a network that reads integers: tokens, where it has outputs for each of them."""
    if len(first.shape) != 1 or outputs[:-1] != first.shape:
        return "  name: text  # replace: the network has other inputs or outputs than a language model"
    if outputs[-1] == 256:
        return f"  name: text  # its bytes are tokens below 256; data.name tokens takes other ones\n  sequence_length: {first.shape[0]}"
    return ("  name: tokens\n  train: train.bin  # replace: token ids as uint16 (data.token_dtype) or in a .npy file\n"
            f"  test: val.bin\n  vocab_size: {outputs[-1]}\n  sequence_length: {first.shape[0]}")
