"""Makes a process group's backend: the ranks' own group, and the gloo group that does what it leaves to that."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from . import _motley

# Gradient buckets come from the backend's memory, which all ranks of a host map, unless the user says otherwise: PyTorch
# turned that off for the sake of NCCL's memory pools. It is read when a DistributedDataParallel makes its buckets.
os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")


def create(options: Any) -> dist.distributed_c10d.ProcessGroup:
    """The backend of one process group, as torch.distributed asks for it. Waits for all of its ranks."""
    gloo = _make_gloo(options)
    backend: Any = _motley.Backend(options.group_rank, options.group_size, options.timeout, gloo, "")
    return backend


def _make_gloo(options: Any) -> Any:
    """Over loopback, so that nothing outside this machine can connect to it."""
    gloo_options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    gloo_options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    gloo_options._timeout = options.timeout
    return dist.ProcessGroupGloo(dist.PrefixStore("gloo", options.store), options.group_rank, options.group_size, gloo_options)
