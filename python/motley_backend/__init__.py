"""Makes the name "motley" known to torch.distributed without importing the package motley.

PyTorch calls :func:`register` in every program of an environment that has Motley, through the entry points of pyproject.toml; so
it does nothing more, and what it stands for is imported when a process group asks for the backend. It is a package of its own because
importing a module of the package motley imports that one whole.
"""

from __future__ import annotations

from typing import Any

NAME = "motley"


def register() -> None:
    """Registers the backend with torch.distributed, where PyTorch has that. Any number of times, as more kinds of devices become known."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=_devices())
    known = dist.Backend.backend_capability[NAME]
    known.extend(device for device in _devices() if device not in known)


def _devices() -> list[str]:
    """The CPU and every kind of accelerator: their values go through this machine's memory."""
    import torch

    accelerator = torch.accelerator.current_accelerator()
    return ["cpu", "cuda"] if accelerator is None or accelerator.type == "cuda" else ["cpu", "cuda", accelerator.type]


def _create(options: Any, _: Any) -> Any:
    from motley._backend import create

    return create(options)
