"""Makes a process group's backend: lets its ranks find each other through the store that torch.distributed gives them, and makes
the gloo group that does what the backend leaves to it.

The store has no authorization. What goes through it is where ranks are and, only where all of them are on one host, which process
shares the secret with those of its user; between hosts the secret is the user's own, in a file that MOTLEY_SECRET_FILE names.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

import motley_backend

from . import _motley
from ._control import find_launcher, make_group_until_let_in

# Gradient buckets come from the backend's memory, which all ranks of a host map, unless the user says otherwise: PyTorch
# turned that off for the sake of NCCL's memory pools. It is read when a DistributedDataParallel makes its buckets.
os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")

# Threads end before the interpreter does: one that needed its lock after that would take the process down.
atexit.register(_motley.shutdown_backends)

NAME = motley_backend.NAME
_TRANSPORTS = ("auto", "tcp")
_MAKING = "motley: making a process group"
_GLANCE = 1.0  # seconds between looks at whether a rank that is waited for has another backend
_NO_GLOO = ("it goes over gloo, which is not authenticated, and the ranks are on several hosts: set GLOO_DEVICE_TRANSPORT=TCP_TLS and "
            "gloo's variables for keys and certificates on all ranks, or make a group with backend=\"gloo\" for it")


@dataclass(frozen=True)
class Options:
    """Of a group that torch.distributed does not know, named as its own are."""

    store: Store
    group_rank: int
    group_size: int
    timeout: timedelta
    global_ranks_in_group: list[int]
    group_id: str


def create(options: Any) -> Any:
    """The backend of one process group, by torch.distributed's options or ours. Waits for all of its ranks.

    Raises:
        ValueError: MOTLEY_TRANSPORT is not one of its values, or the ranks are on several hosts and have no secret.
        torch.distributed.DistBackendError: a rank did not come, or was refused.
    """
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    if (launcher := find_launcher()) is not None and launcher.is_replacement:
        return make_group_until_let_in(options)
    if size == 1:
        return _motley.Backend(rank, _ranks(options), timeout, None, _make_gloo(options.store, rank, size, timeout, True), "")
    return _motley.Backend(rank, _ranks(options), timeout, *_meet(options))


def renew(group: dist.ProcessGroup | None) -> None:
    """Begins again, with new connections, after a rank gave up. All ranks call it, and none before all know of that."""
    own: Any = group or dist.group.WORLD
    backend: Any = find(own)
    store = dist.distributed_c10d._world.pg_map[own][1]  # which lives as long as the group does
    options = Options(store, own.rank(), own.size(), backend.timeout, dist.get_process_group_ranks(own), own.group_name)
    backend.renew(_ranks(options), options.timeout.total_seconds(), *_meet(options))


def find(group: dist.ProcessGroup | None) -> _motley.Backend | None:
    """The backend ``motley`` of a process group, of all ranks by default; None where it has another."""
    try:
        backend: Any = (group or dist.group.WORLD)._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    except RuntimeError:  # a group for GPUs alone
        return None
    return backend if isinstance(backend, _motley.Backend) else None


def _ranks(options: Any) -> list[int]:
    return list(options.global_ranks_in_group) or list(range(options.group_size))


def _meet(options: Any) -> tuple[_motley.Rendezvous, Any, str]:
    """How the ranks join each other, the gloo group that does the rest, and why there is none."""
    rank, size, timeout, ranks = options.group_rank, options.group_size, options.timeout, _ranks(options)
    # A group may be made anew on the same store; each time has its own keys.
    store = PrefixStore(f"motley/{options.store.add(f'motley/{rank}', 1)}", options.store)
    _wait_for_all(options.store, store, ranks, rank, timeout)
    hosts = _gather(store, "host", rank, ranks, _motley.host_id(), timeout)
    one_host = len(set(hosts)) == 1
    gloo, why_none = None, _NO_GLOO
    if one_host or os.environ.get("GLOO_DEVICE_TRANSPORT") == "TCP_TLS":
        gloo = _make_gloo(store, rank, size, timeout, one_host)
    return _arrange(store, rank, one_host, timeout), gloo, why_none


def _arrange(store: Store, rank: int, one_host: bool, timeout: timedelta) -> _motley.Rendezvous:
    """What the ranks need to join each other. Rank 0 listens, and says where once it does; the others wait for that."""
    transport = os.environ.get("MOTLEY_TRANSPORT", "auto")
    if transport not in _TRANSPORTS:
        raise ValueError(f"MOTLEY_TRANSPORT is {transport!r}; {' or '.join(map(repr, _TRANSPORTS))} is accepted")
    host = "127.0.0.1" if one_host else find_reachable_address()
    secret = _motley.generate_secret() if one_host else _read_secret()

    # Open as long as publish() is, which goes when the ranks have joined.
    shared = open(_motley.share_secret(secret), "rb") if one_host and rank == 0 else None  # noqa: SIM115

    def publish(endpoint: str) -> None:
        store.set("endpoint", f"{endpoint} {os.getpid()} {shared.fileno()}" if shared else endpoint)

    if rank == 0:
        endpoint = f"{host}:0"
    else:
        _wait(store, ["endpoint"], [0], timeout, timeout)
        endpoint, *place = store.get("endpoint").decode().split()
        secret = _motley.read_shared_secret(*map(int, place)) if one_host else secret
    return _motley.Rendezvous(secret, not one_host, endpoint, host, publish, transport == "tcp", find_launcher() is None)


def _read_secret() -> str:
    path = os.environ.get("MOTLEY_SECRET_FILE")
    if not path:
        raise ValueError("the ranks are on several hosts, where anyone could connect: give each the same secret, a file of mode 0600 "
                         "that MOTLEY_SECRET_FILE names")
    return _motley.read_secret(path)


def find_reachable_address() -> str:
    """This host's address as others reach it: that from which it reaches the store's host; or, where that is this host by a name that
    stands for a loopback address here, that from which it reaches the rest of the network."""
    master = os.environ.get("MASTER_ADDR") or socket.gethostname()
    address = _own_address(master)
    if address.startswith("127.") and not master.startswith("127."):
        with contextlib.suppress(OSError):  # there is no other network
            address = _own_address("192.0.2.1")  # nobody's (RFC 5737)
    return address


def _own_address(other: str) -> str:
    """From which this host reaches another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))  # sends nothing
        return str(probe.getsockname()[0])


def _wait_for_all(outer: Store, store: Store, ranks: list[int], rank: int, timeout: timedelta) -> None:
    """Until all ranks have said that they make this group, with one version."""
    deadline = time.monotonic() + timeout.total_seconds()
    store.set(f"version/{rank}", _motley.version)
    waits = [index for index in range(len(ranks)) if index != rank]
    while waits:
        # What gloo's connections are made by: a rank that has written it waits for others that do.
        # Where this rank has written it, too, that was in a group before this one, which had the same store.
        if not outer.check([f"0/{rank}"]) and (foreign := [str(ranks[index]) for index in waits if outer.check([f"0/{index}"])]):
            raise dist.DistBackendError(f"{_MAKING}: rank {', '.join(foreign)} has the backend gloo, and this rank {NAME}; accepted: the "
                                        "same backend on all ranks")
        left = deadline - time.monotonic()
        keys = [f"version/{index}" for index in waits]
        if left <= _GLANCE:
            _wait(store, keys, [ranks[index] for index in waits], timedelta(seconds=max(left, 0.001)), timeout)
        with contextlib.suppress(RuntimeError):
            store.wait(keys, timedelta(seconds=_GLANCE))
        waits = [index for index, key in zip(waits, keys) if not store.check([key])]
    versions = [store.get(f"version/{index}").decode() for index in range(len(ranks))]
    for other, version in zip(ranks, versions):
        if version != versions[0]:
            raise dist.DistBackendError(f"{_MAKING}: rank {ranks[0]} has version {versions[0]} of motley, and rank {other} {version}; "
                                        "accepted: one version")


def _gather(store: Store, what: str, rank: int, ranks: list[int], value: str, timeout: timedelta) -> list[str]:
    """Each rank's value."""
    store.set(f"{what}/{rank}", value)
    keys = [f"{what}/{other}" for other in range(len(ranks))]
    _wait(store, keys, ranks, timeout, timeout)
    return [store.get(key).decode() for key in keys]


def _wait(store: Store, keys: list[str], ranks: Iterable[int], left: timedelta, timeout: timedelta) -> None:
    """Until the ranks have set their keys; what is left of the timeout."""
    try:
        store.wait(keys, left)
    except RuntimeError as problem:
        missing = [str(rank) for key, rank in zip(keys, ranks) if not store.check([key])]
        words = f"rank {', '.join(missing)} did not come within {timeout.total_seconds():g} s" if missing else str(problem)
        raise dist.DistBackendError(f"{_MAKING}: {words}") from problem


def _make_gloo(store: Store, rank: int, size: int, timeout: timedelta, one_host: bool) -> Any:
    """On one host over loopback, so that nothing outside it can connect; else as PyTorch's variables say."""
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1") if one_host
                        else dist.ProcessGroupGloo.create_default_device()]
    options._timeout = timeout
    return dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, options)
