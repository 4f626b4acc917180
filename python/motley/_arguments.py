"""Arguments of public functions, checked: each gives the value, or raises ValueError with the argument's name, its value and what is
accepted. And the command lines of the package's own commands, which follow the program's."""

from __future__ import annotations

import argparse
import logging
import math
import numbers
import operator
import os
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from . import _motley


def name_type(value: Any) -> str:
    """``"a list"``, ``"an int"``."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def read_integer(name: str, value: Any, least: int, most: int = 2**31 - 1) -> int:
    """Also one of NumPy."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number <= most:
        raise ValueError(f"{name} is {value!r}; an integer of at least {least} and at most {most} is accepted")
    return number


def read_number(name: str, value: Any, *, may_be_zero: bool = False) -> float:
    """A finite number above 0, or of at least 0."""
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else -1.0
    if not 0 <= number < math.inf or (number == 0 and not may_be_zero):
        raise ValueError(f"{name} is {value!r}; {'a number of at least 0' if may_be_zero else 'a number above 0'} is accepted")
    return number


def read_seconds(name: str, value: Any) -> float:
    """Above 0, and at most what clocks count."""
    if read_number(name, value) > 1e9:
        raise ValueError(f"{name} is {value!r}; seconds above 0 and at most 1e9 are accepted")
    return float(value)


def read_duration(name: str, text: str) -> float:
    """Seconds of a text such as ``"90s"``, above 0."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|h|d)", text)
    if not found or not float(found[1]):
        raise ValueError(f"{name} is '{text}'; a duration such as '250ms', '90s' or '2h' is accepted")
    return float(found[1]) * {"ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400}[found[2]]


def read_mean(name: str, value: Any) -> float:
    """One value, in a tensor or not."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value.detach())
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise ValueError(f"{name} is {found}; a number, or a tensor of one value, is accepted")
    return float(value)


def check_group(group: Any) -> None:
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"process_group is {name_type(group)}; what torch.distributed.new_group gives is accepted")


class CommandParser(argparse.ArgumentParser):
    """The command line of one of the package's commands: help, messages and the flags of every command are as the program's."""

    def __init__(self, name: str, description: str, epilog: str, renamed: Mapping[str, str] | None = None) -> None:
        """``renamed`` has the flags of now by those that they were before."""
        super().__init__(prog=f"motley {name}", description=description, epilog=epilog, formatter_class=_HelpFormatter, allow_abbrev=False)
        self.renamed = renamed or {}
        for flag, text in (("--quiet", "print results, warnings and errors only"), ("--verbose", "also print what helps to find a fault"),
                           ("--no-color", "print without colours, as where the variable NO_COLOR is set")):
            self.add_argument(flag, action="store_true", help=text)

    def error(self, message: str) -> NoReturn:
        found = re.match(r"unrecognized arguments: (--[^ =]+)", message)
        if found:
            flag = found[1]
            flags = [known for known in self._option_string_actions if known.startswith("--")]
            near = _motley.nearest_key(flag[2:], [known[2:] for known in flags])
            meant = f"it is now '{self.renamed[flag]}'" if flag in self.renamed else f"did you mean '--{near}'?" if near else ""
            accepted = "" if meant else f"accepted: {', '.join(flags)}"
            message = f"unknown flag '{flag}'; {meant}{accepted}"
        self.exit(2, f"motley: error: {self.prog}: {message} (--help lists all flags)\n")

    def parse_args(self, words: Any = None, namespace: Any = None) -> Any:
        given = super().parse_args(words, namespace)
        if given.quiet and given.verbose:
            self.error("--quiet excludes --verbose")
        if given.no_color:
            os.environ["NO_COLOR"] = "1"
        return given


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Says of each flag what holds where it is not given: as ``"...; default: in words"`` has it, else its default."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=100)

    def _get_help_string(self, action: argparse.Action) -> str:
        text, _, words = (action.help or "").partition("; default: ")
        if action.nargs == argparse.REMAINDER:
            return text
        if action.required:
            return f"{text} [required]"
        if action.nargs == 0:
            return f"{text} [switch; default: off]"
        return f"{text} [default: {words or ('none' if action.default in (None, []) else action.default)}]"


def log_level(given: argparse.Namespace) -> int:
    """That ``--quiet`` and ``--verbose`` ask for."""
    return logging.WARNING if given.quiet else logging.DEBUG if given.verbose else logging.INFO
