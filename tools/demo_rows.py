#!/usr/bin/env python3
"""Compares the demo's pipeline with its baselines, prints the rows, and adds them to the demo's summary.

    tools/demo_rows.py PROFILE SUMMARY PIPELINE ONE_DEVICE DATA_PARALLEL

The last three are run directories. All devices and the link between them are emulated, as PROFILE and the cluster file say.
"""
import json
import pathlib
import statistics
import sys

SETTLED = 3  # steps


def step_seconds(run):
    """The median of the run's steps, without the first ones, in which memory is touched for the first time."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(line["step_seconds"] for line in lines if "step_seconds" in line and line["step"] > SETTLED)


def main():
    profile, summary, pipeline, one_device, data_parallel = map(pathlib.Path, sys.argv[1:])
    step, alone, parallel = (step_seconds(run) for run in (pipeline, one_device, data_parallel))
    # Both devices together are at best as fast as the sum of their speeds.
    layers = {device["type"]: device["layers"] for device in json.loads(profile.read_text())["devices"]}
    plan = json.loads((pipeline / "plan.json").read_text())
    batch = plan["global_batch_size"]
    seconds = {name: sum(layer[part].get("fixed", 0) + batch * layer[part].get("per_sample", 0)
                         for layer in layers[name] for part in ("forward", "backward")) for name in ("newer", "older")}
    limit = min(seconds.values()) * sum(1 / value for value in seconds.values())

    def row(name, value, better, target, limit, note):
        unit = "share" if name.endswith("error") else "ratio"
        return {"case": "planned", "metric": name, "value": value, "unit": unit, "better": better, "target": target,
                "limit": limit, "peer": None, "note": note}

    rows = [
        row("speedup_over_best_single_device", alone / step, "more", 1.5, limit,
            f"emulated; {1000 * alone:.0f} ms and {1000 * step:.0f} ms a step; limit: the sum of both devices' speeds"),
        row("speedup_over_data_parallel", parallel / step, "more", 1.1, parallel * limit / alone,
            f"emulated; balanced, over the same link: {1000 * parallel:.0f} ms; limit: both devices, nothing sent"),
        row("step_prediction_error", abs(plan["predicted"]["step_seconds"] / step - 1), "less", 0.1, 0, "emulated; either way"),
    ]
    kept = [one for one in json.loads(summary.read_text()) if one["case"] != "planned"]
    summary.write_text(json.dumps(kept + rows, indent=2) + "\n")
    for one in rows:
        met = one["value"] >= one["target"] if one["better"] == "more" else one["value"] <= one["target"]
        print(f"{one['case']}  {one['metric']:<32} {one['value']:>7.3f} {one['unit']}  target {one['target']:g}  "
              f"limit {one['limit']:.3g}  {'met' if met else 'missed'}  ({one['note']})")


if __name__ == "__main__":
    main()
