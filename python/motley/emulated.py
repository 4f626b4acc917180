"""An accelerator that needs no hardware: the device "emulated" of PyTorch, computed by the CPU, for tests and demonstrations.

It faults where the host touches the device's memory or a copy that is under way, and it fails where two streams use the same bytes
without an event between them, so that a missing wait shows in every run::

    motley.emulated.enable(devices=2, memory="1GB", host_link="2GB/s")      # or the environment: MOTLEY_EMULATED="devices=2"
    net = net.to("emulated:0")

Enable it before the first backward pass. ``torch.accelerator`` is this device from then on.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.backend_registration as registration

import motley_backend

from . import _motley

__all__ = ["DEVICE", "enable", "is_enabled", "violations"]

DEVICE = "emulated"
_module: types.ModuleType | None = None
_options = ""


def enable(**options: Any) -> None:
    """Makes the device known to PyTorch; once a process, later calls do nothing.

    Args:
        options: devices (how many, 1), memory (of each, "4GB"), host_link ("2GB/s", each way; as fast as this machine copies),
            host_link_latency ("10us"), flops, memory_bandwidth and kernel_overhead, which kernels take their time by (none: the CPU's).
    """
    enable_by_text(",".join(f"{name}={value}" for name, value in options.items()))


def enable_by_text(text: str) -> None:
    """As :func:`enable`, with options as the environment variable MOTLEY_EMULATED has them."""
    global _module, _options
    if _module is None:
        count = _motley.enable_emulated_accelerator(text)
        registration.rename_privateuse1_backend(DEVICE)
        _module, _options = _make_module(count), text
        torch._register_device_module(DEVICE, _module)  # type: ignore[no-untyped-call]
        registration.generate_methods_for_privateuse1_backend(for_storage=True)
        motley_backend.register()


def is_enabled() -> bool:
    """Whether the device is there."""
    return _module is not None


def describe() -> str:
    """Such a device in words, with what it was enabled with."""
    return _motley.describe_emulated_accelerator(_options)


@contextmanager
def violations() -> Iterator[list[str]]:
    """What is found within is put into the list, at its end, and makes nothing fail."""
    found: list[str] = []
    _motley.take_emulated_violations()
    _motley.collect_emulated_violations(True)
    try:
        yield found
    finally:
        found.extend(_motley.take_emulated_violations())
        _motley.collect_emulated_violations(False)


def _make_module(count: int) -> types.ModuleType:
    """What PyTorch looks for in ``torch.emulated``."""
    module: Any = types.ModuleType(f"torch.{DEVICE}")

    def generator(device: Any) -> torch.Generator:
        return module.default_generators[_index(device)]  # type: ignore[no-any-return]

    def manual_seed_all(seed: int) -> None:
        for each in module.default_generators:
            each.manual_seed(seed)

    module.default_generators = [_motley.emulated_generator(index) for index in range(count)]
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count = lambda: count
    module.current_device = torch.accelerator.current_device_index
    module.set_device = lambda device: torch.accelerator.set_device_index(_index(device))
    module.device = lambda device: torch.accelerator.device_index(_index(device))
    module.get_device_name = lambda device=None: "emulated accelerator"
    module.get_device_properties = lambda device=None: types.SimpleNamespace(
        name="emulated accelerator", total_memory=int(_motley.emulated_memory_bytes()))
    module.synchronize = lambda device=None: torch.accelerator.synchronize(_index(device))
    module.current_stream = lambda device=None: torch.accelerator.current_stream(_index(device))
    module.Stream = lambda device=None, **options: torch.Stream(f"{DEVICE}:{_index(device)}", **options)
    module.Event = lambda **options: torch.Event(DEVICE, **options)
    module.get_rng_state = lambda device=None: generator(device).get_state()
    module.set_rng_state = lambda state, device=None: generator(device).set_state(state)
    module.manual_seed_all = manual_seed_all
    module.manual_seed = lambda seed: generator(None).manual_seed(seed)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    module.empty_cache = lambda: None
    return module  # type: ignore[no-any-return]


def _index(device: Any) -> int:
    """The number of a device that is named in any of PyTorch's ways."""
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return torch.accelerator.current_device_index() if index is None else index
