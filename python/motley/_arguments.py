"""Arguments of public functions, checked: each gives the value, or raises ValueError with the argument's name, its value and what is
accepted."""

from __future__ import annotations

import math
import numbers
import operator
import re
from typing import Any

import torch
import torch.distributed as dist


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
        raise ValueError(f"process_group is a {type(group).__name__}; what torch.distributed.new_group gives is accepted")
