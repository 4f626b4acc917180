"""Planning, simulation and scheduling: what the commands ``plan``, ``simulate`` and ``schedule simulate`` do, in this process.

Arguments are named like the commands' flags, and have the same defaults. A profile, plan or cluster is a path, a dict as in its file,
a result of these functions, or a dataclass with the file's fields.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import logging
import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from . import _motley
from ._arguments import name_type
from ._results import Plan, Profile, Result, Schedule, Simulation

Document: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | Result | Any"  # Any: a dataclass
Duration: TypeAlias = "float | str"  # seconds, or a text such as "2h"

_DURATIONS = {"time_limit", "busiest_period", "mtbf", "mttr", "checkpoint_interval", "slot_duration"}
_LISTS = {"what_if", "straggler", "policy"}
_log = logging.getLogger("motley")


def estimate(model: str, cluster: Document, *, global_batch_size: int = 256) -> Profile:
    """The profile of a published model, estimated from the speeds of the cluster's device types.

    Args:
        model: a name such as ``"vgg16"``, ``"resnet50"`` or ``"ctrdnn-16"``.
        cluster: device types with their ``speed`` (docs/reference/cluster.md).
        global_batch_size: samples of the batch at which times are listed.

    Raises:
        ValueError: an unknown model, a cluster that is refused, or a device type without a speed; says what is accepted.
    """
    documents: dict[str, str] = {}
    keywords = _keywords({"model": model, "cluster": _document("cluster", cluster, documents), "global_batch_size": global_batch_size})
    return Profile(**_motley.estimate(keywords, documents))


def plan(profile: Document | None = None, cluster: Document | None = None, *, model: str | None = None, global_batch_size: int = 256,
         objective: str | None = None, min_throughput: float = 0, max_cost: float | None = None, max_hourly_cost: float | None = None,
         method: str = "exact", cost_model: str = "pipeline", pipeline_schedule: str = "1f1b", micro_batches: int = 0,
         total_samples: float = 1e9, recompute: bool = False, max_layers: int = 0, profile_batch_size: float = 0,
         heterogeneous_stages: bool = False,
         compare: bool = False, what_if: str | Sequence[str] = (), measure: str | os.PathLike[str] | None = None,
         measure_steps: int = 12, measure_plans: int = 30, time_limit: Duration = 60, seed: int = 1) -> Plan:
    """The best plan of a model on a cluster: its pipeline stages, and how many devices of which type each has.

    Args:
        profile: how long layers take where; ``motley profile`` or ``motley.estimate`` make one.
        cluster: device types, prices, counts and links; this machine where there is none.
        model: a published model in place of a profile, estimated from the speeds of the cluster's device types.
        global_batch_size: samples of a step.
        objective: ``"cost"``, ``"throughput"`` or ``"step-time"``; the cost where there is a ``min_throughput``, else the throughput.
        min_throughput: that the plan must reach, in samples per second.
        max_cost: of the whole training of ``total_samples``, in the currency of the cluster.
        max_hourly_cost: of all devices together.
        method: ``"exact"`` proves its answer; docs/reference/planners.md lists the others.
        cost_model: ``"pipeline"`` (synchronous) or ``"heterps"`` (steady state).
        pipeline_schedule: ``"1f1b"`` or ``"gpipe"``.
        micro_batches: of a step; 0: the best power of two up to 64.
        total_samples: of the whole training, for its cost.
        recompute: stages may recompute activations to save memory.
        max_layers: longer models are merged into so many blocks; 0: only those that are too long for the devices.
        profile_batch_size: samples of the minibatch that a profile of PipeDream (``graph.txt``) was made with; 0: as its last linear
            layer tells.
        heterogeneous_stages: then look for a shorter step with stages that mix device types.
        compare: run every method; the text and the page compare them.
        what_if: such as ``"gpu.price=0.5..3"``: plan again with these values.
        measure: a job file, whose real steps on this machine value plans instead of the cost model.
        measure_steps: of each plan that is measured; their median counts.
        measure_plans: that are measured, at most.
        time_limit: of each method, in seconds or as a text such as ``"2min"``; the best plan found so far is kept.
        seed: of randomised methods.

    Raises:
        ValueError: what is asked is refused, or it is proved that no plan exists; says the value and what would be accepted.
        RuntimeError: no plan was found, which does not mean that there is none.
        KeyboardInterrupt: Ctrl-C; nothing goes on.
    """
    documents: dict[str, str] = {}
    keywords = _keywords({
        "profile": _document("profile", profile, documents), "cluster": _document("cluster", cluster, documents), "model": model,
        "global_batch_size": global_batch_size, "objective": objective, "min_throughput": min_throughput, "max_cost": max_cost,
        "max_hourly_cost": max_hourly_cost, "method": method, "cost_model": cost_model, "pipeline_schedule": pipeline_schedule,
        "micro_batches": micro_batches, "total_samples": total_samples, "recompute": recompute, "max_layers": max_layers,
        "profile_batch_size": profile_batch_size, "heterogeneous_stages": heterogeneous_stages, "compare": compare,
        "what_if": what_if, "measure": measure, "measure_steps": measure_steps, "measure_plans": measure_plans,
        "time_limit": time_limit, "seed": seed})
    return Plan(**_motley.plan(keywords, documents, _log.warning, _log.info))


def simulate(plan: Document, profile: Document | None = None, cluster: Document | None = None, *, model: str | None = None,
             straggler: str | Sequence[str] = (), jitter: float = 0, seed: int = 0, global_batch_size: int | None = None,
             micro_batches: int | None = None, shared_links: bool = False, profile_batch_size: float = 0) -> Simulation:
    """Simulates a step of a plan, event by event: what each device does when, and where the time goes.

    Args:
        plan: that is simulated.
        profile: how long the layers take.
        cluster: device types and links; this machine where there is none.
        model: a published model in place of a profile.
        straggler: ``"STAGE:REPLICA:SLOWDOWN"``, such as ``"1:0:1.5"``: a device that is slower than its profile.
        jitter: relative standard deviation of computation times.
        seed: of the jitter.
        global_batch_size: samples of a step; the plan's where it is not given.
        micro_batches: of a step; likewise.
        shared_links: all stages between the same two device types share one link; otherwise each has its own to its neighbours.
        profile_batch_size: samples of the minibatch that a profile of PipeDream was made with; 0: as its last linear layer tells.

    Raises:
        ValueError: a file or value that is refused; says the value and what would be accepted.
    """
    documents: dict[str, str] = {}
    keywords = _keywords({
        "profile": _document("profile", profile, documents), "cluster": _document("cluster", cluster, documents), "model": model,
        "straggler": straggler, "jitter": jitter, "seed": seed, "global_batch_size": global_batch_size,
        "micro_batches": micro_batches, "shared_links": shared_links, "profile_batch_size": profile_batch_size})
    return Simulation(**_motley.simulate(_named("plan", plan, documents), keywords, documents))


def schedule(trace: Any, cluster: Document | None = None, *, policy: str | Sequence[str] = (), placement: str = "any",
             objective: str = "utility", slot_duration: Duration | None = None, decide_at: str = "slots", duration_error: float = 1,
             load: float | None = None, busiest_period: Duration | None = None, elastic: bool = False, mtbf: Duration | None = None,
             mttr: Duration = 3600,
             checkpoint_interval: Duration = 1800, seed: int = 0, throughputs: str | os.PathLike[str] | None = None,
             device_type: str = "v100", intra_node_bandwidth: str | None = None, inter_node_bandwidth: str | None = None,
             node_cpus: float | None = None, node_memory: str | None = None) -> Schedule:
    """Simulates a trace of jobs on a cluster under policies.

    Args:
        trace: a file (docs/reference/job-traces.md), the name of a random workload such as ``"gadget:50:100"``, a pandas DataFrame, or a
            sequence of dicts, with the columns of our format: ``job``, ``arrival_seconds``, ``duration_seconds``, ``workers``, ...
        cluster: such as ``"16x8"`` (16 nodes of 8 devices) or ``"8x4:v100,16x4:k80"``, or a cluster with nodes.
        policy: one or several; by default those that suit any trace (docs/reference/scheduling-policies.md).
        placement: ``"any"``, ``"consolidated"`` or ``"compact"``.
        objective: of the policy gadget-exact.
        slot_duration: between the decisions of policies that decide by slots.
        decide_at: ``"slots"``, or ``"events"``: those policies decide at every arrival and completion too.
        duration_error: policies are told durations that are wrong by up to this factor, either way, at random.
        load: fraction of all device-seconds that jobs ask for, to which arrival times are scaled.
        busiest_period: only the jobs of the busiest period of this length.
        elastic: makes rigid jobs elastic.
        mtbf: mean time between failures of each node; by default none fails.
        mttr: until a failed node is repaired.
        checkpoint_interval: training time between a job's checkpoints.
        seed: of all that is random.
        throughputs: table for Gavel's traces.
        device_type: of that table.
        intra_node_bandwidth: between the devices of a node, such as ``"300GB/s"``.
        inter_node_bandwidth: of a node's link to the others.
        node_cpus: CPUs of each node, of which each worker takes its job's ``cpus_per_worker``; by default there is no limit.
        node_memory: memory of each node, such as ``"512GB"``, of which each worker takes its job's ``memory_bytes_per_worker``.

    Durations are seconds, or texts such as ``"2h"``.

    Raises:
        ValueError: a file or value that is refused, such as a job that asks for more devices than there are.
        RuntimeError: a policy failed.
        KeyboardInterrupt: Ctrl-C; nothing goes on.
    """
    documents: dict[str, str] = {}
    keywords = _keywords({
        "cluster": _document("cluster", cluster, documents), "policy": policy, "placement": placement, "objective": objective,
        "slot_duration": slot_duration, "decide_at": decide_at, "duration_error": duration_error, "load": load,
        "busiest_period": busiest_period, "elastic": elastic, "mtbf": mtbf, "mttr": mttr,
        "checkpoint_interval": checkpoint_interval, "seed": seed, "throughputs": throughputs, "device_type": device_type,
        "intra_node_bandwidth": intra_node_bandwidth, "inter_node_bandwidth": inter_node_bandwidth,
        "node_cpus": node_cpus, "node_memory": node_memory})
    return Schedule(**_motley.schedule(_trace(trace, documents), keywords, documents))


def read_plan(plan: Document) -> dict[str, Any]:
    """A plan as its file has it, checked. ValueError where it is refused."""
    documents: dict[str, str] = {}
    read: dict[str, Any] = json.loads(_motley.read_plan(_named("plan", plan, documents), documents))
    return read


def list_proportions(stage: Mapping[str, Any]) -> list[float]:
    """In which the devices of a stage of a plan share the batch, in their order; equal ones where the plan says none."""
    return [float(replicas.get("batch_fraction", 1)) for replicas in stage["replicas"] for _ in range(replicas.get("count", 1))]


def _keywords(given: Mapping[str, Any]) -> dict[str, str | list[str]]:
    """As the commands' flags have them; those that are None are left to the commands' defaults."""
    keywords: dict[str, str | list[str]] = {}
    for key, value in given.items():
        if key in _LISTS:
            keywords[key] = _texts(key, value)
        elif value is not None:
            keywords[key] = _text(key, value)
    return keywords


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Real) and key in _DURATIONS:  # NumPy's, too
        return f"{float(value)!r}s"
    return str(value)


def _texts(key: str, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{key}: {value!r}; accepted: a text or a list of texts")
    return list(texts)


def _document(name: str, value: Document | None, documents: dict[str, str]) -> str | None:
    """A file's path, or `name`, by which `documents` has what is given in its place."""
    if value is None:
        return None
    if isinstance(value, (str, os.PathLike)):
        return str(value)
    if isinstance(value, Result):
        documents[name] = value.json
        return name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: {name_type(value)}; accepted: a path, a dict, a dataclass or a result of motley")
    try:
        documents[name] = json.dumps(value, ensure_ascii=False)
    except TypeError as problem:
        raise ValueError(f"{name}: {problem}; accepted: values as JSON has them") from problem
    return name


def _named(name: str, value: Document, documents: dict[str, str]) -> str:
    found = _document(name, value, documents)
    if found is None:
        raise ValueError(f"{name}: None; accepted: a path, a dict, a dataclass or a result of motley")
    return found


def _trace(value: Any, documents: dict[str, str]) -> str:
    if isinstance(value, (str, os.PathLike)):
        return str(value)
    if hasattr(value, "to_csv"):  # a DataFrame
        documents["trace"] = value.to_csv(index=False)
        return "trace"
    if not isinstance(value, Sequence) or not all(isinstance(job, Mapping) for job in value):
        raise ValueError(f"trace: {name_type(value)}; accepted: a path, a workload's name, a DataFrame or a sequence of dicts")
    lines = io.StringIO()
    writer = csv.DictWriter(lines, list(dict.fromkeys(key for job in value for key in job)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(value)
    documents["trace"] = lines.getvalue()
    return "trace"
