"""What differs between kinds of devices, by the interface that PyTorch has for all of them: ``torch.cuda`` and its like."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

from . import _motley


def find_module(device: torch.device) -> Any:
    """``torch.cuda`` for a CUDA device, and likewise for others."""
    return torch.get_device_module(device)


def describe(device: torch.device) -> str:
    """Its name, as its maker has it where PyTorch knows that."""
    name = getattr(find_module(device), "get_device_name", None) if device.type != "cpu" else None
    return device.type if name is None else str(name(device))


def memory_bytes(device: torch.device) -> float:
    """All that a device has; infinite where nothing says how much that is."""
    if device.type == "cpu":
        return _motley.describe_machine()[1] or float("inf")
    properties = getattr(find_module(device), "get_device_properties", None)
    return float("inf") if properties is None else float(properties(device).total_memory)


def random_state(device: torch.device) -> torch.Tensor | None:
    """Of the device's generator; none on the CPU."""
    return None if device.type == "cpu" else find_module(device).get_rng_state(device)


def set_random_state(device: torch.device, state: torch.Tensor | None) -> None:
    """What :func:`random_state` gave."""
    if state is not None:
        find_module(device).set_rng_state(state, device)


def seed_random(devices: Iterable[torch.device], seed: int) -> None:
    """Of the CPU's generator and of these devices', and no others."""
    torch.default_generator.manual_seed(seed)
    for device in devices:
        set_random_state(device, torch.Generator(device).manual_seed(seed).get_state() if device.type != "cpu" else None)


def fork_random(devices: Iterable[torch.device]) -> AbstractContextManager[None]:
    """Puts the states of the CPU's generator and of these devices' back in the end. All are of one kind."""
    accelerators = sorted({device for device in devices if device.type != "cpu"}, key=str)
    kind = accelerators[0].type if accelerators else "cuda"
    return torch.random.fork_rng([device.index or 0 for device in accelerators], device_type=kind)
