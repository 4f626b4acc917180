#!/usr/bin/env python3
"""Writes the two plans that the demo's pipeline is compared with: its fastest device alone, and balanced data parallelism.

    tools/demo_baselines.py PROFILE PLAN ONE_DEVICE DATA_PARALLEL

PROFILE and PLAN are those of the pipeline. A device's share of each batch is as large as it is fast.
"""
import json
import pathlib
import sys


def main():
    profile, plan, one_device, data_parallel = map(pathlib.Path, sys.argv[1:])
    plan = json.loads(plan.read_text())
    devices = {device["type"]: device for device in json.loads(profile.read_text())["devices"]}
    types = sorted({replicas["type"] for stage in plan["stages"] for replicas in stage["replicas"]})

    def seconds(device):
        parts = [layer[part] for layer in device["layers"] for part in ("forward", "backward")]
        batch = plan["global_batch_size"]
        return sum(part.get("fixed", 0) + batch * part.get("per_sample", 0) for part in parts)

    speeds = {name: 1 / seconds(devices[name]) for name in types}
    whole = {"first_layer": plan["layers"][0], "last_layer": plan["layers"][-1], "recompute": False}
    common = {key: plan[key] for key in ("version", "model", "layers", "global_batch_size", "pipeline_schedule", "cost_model")}
    common["micro_batches"] = 1
    fastest = max(types, key=speeds.get)
    one_device.write_text(json.dumps(common | {
        "method": "one-device",
        "stages": [whole | {"replicas": [{"type": fastest, "count": 1}], "gradient_sync": "none"}]}, indent=2) + "\n")
    replicas = [{"type": name, "count": 1, "batch_fraction": speeds[name] / sum(speeds.values())} for name in types]
    data_parallel.write_text(json.dumps(common | {
        "method": "data-parallel", "stages": [whole | {"replicas": replicas, "gradient_sync": "ring"}]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
