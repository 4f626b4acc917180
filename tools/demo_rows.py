#!/usr/bin/env python3
"""Prints the demo's figures beside their targets, in the words of the documents, and keeps them in the demo's summary.

    tools/demo_rows.py shares SUMMARY
    tools/demo_rows.py mixed SUMMARY RUN SECONDS...
    tools/demo_rows.py pipeline SUMMARY PROFILE PIPELINE ONE_DEVICE DATA_PARALLEL

RUN and the last three are run directories; SECONDS are what a sample takes on each of RUN's workers, as they are emulated. The
pipeline's devices and the link between them are emulated, too, as PROFILE and the cluster file say. The last line says how many of
the targets in SUMMARY were missed, and which.
"""
import json
import os
import pathlib
import statistics
import sys


def times(value):
    return f"{value:.2f}×"


def percent(value):
    return f"{100 * value:.1f} %"


# What a row of a summary is called, and how its figures and its limit are written.
FIGURES = {
    "test_accuracy": ("test accuracy on Fashion-MNIST", percent, ""),
    "step_speedup_over_equal": ("steps faster than with the equal split", times, " (computing only)"),
    "worst_wait_share": ("largest wait fraction of step time, of all steps", percent, ""),
    "samples_not_used_exactly_once": ("samples lost or duplicated", "{:.0f}".format, ""),
    "gap_to_optimum": ("a step takes longer than at the sum of the workers' speeds", percent, ""),
    "speedup_over_best_single_device": ("pipeline, times as fast as the faster device alone", times, " (both devices' speeds)"),
    "speedup_over_data_parallel": ("pipeline, times as fast as balanced data parallelism", times, " (nothing sent)"),
    "step_prediction_error": ("a step takes more or less than predicted", percent, ""),
}


def is_met(row):
    return row["value"] >= row["target"] if row["better"] == "more" else row["value"] <= row["target"]


def table(rows):
    """The rows that have a target, as aligned columns."""
    lines = [("", "value", "target", "", "limit")]
    for row in rows:
        name, write, remark = FIGURES[row["metric"]]
        lines.append((name, write(row["value"]), ("≥ " if row["better"] == "more" else "≤ ") + write(row["target"]),
                      "met" if is_met(row) else "missed", write(row["limit"]) + remark if row["limit"] is not None else ""))
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def judge(rows):
    missed = [FIGURES[row["metric"]][0] for row in rows if not is_met(row)]
    if not missed:
        return f"all {len(rows)} targets met"
    load, cores = os.getloadavg()[1], os.cpu_count()
    busy = f" (this machine was busy, with a load average of {load:.1f} on {cores} cores: times say little)" if load > 2 * cores else ""
    return f"{len(missed)} of {len(rows)} targets missed: {'; '.join(missed)}{busy}"


def step_seconds(run):
    """The mean of the steps whose time is in the middle half, as what the run itself prints at its end."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seconds = sorted(line["step_seconds"] for line in lines if "step_seconds" in line)
    quarter = len(seconds) // 4
    return statistics.mean(seconds[quarter:len(seconds) - quarter])


def compare_mixed(run, seconds):
    """The rows of the run, and by how much its step is longer than that of workers who never wait and do nothing but compute."""
    rows = json.loads((run / "summary.json").read_text())
    step = next(row["value"] for row in rows if row["metric"] == "step_seconds")
    batch = json.loads((run / "run.json").read_text())["global_batch_size"]
    optimum = batch / sum(1 / each for each in seconds)
    gap = {"case": "mixed", "metric": "gap_to_optimum", "value": step / optimum - 1, "unit": "share", "better": "less", "target": 0.05,
           "limit": 0, "peer": None,
           "note": f"emulated; {1000 * step:.1f} ms a step of {batch} samples, {1000 * optimum:.1f} ms at the speeds of all workers together: "
                   + ", ".join(f"{1000 * each:g} ms" for each in seconds) + " a sample"}
    rows = [row for row in rows if row["metric"] != gap["metric"]] + [gap]
    (run / "summary.json").write_text(json.dumps(rows, indent=2) + "\n")
    return rows


def compare_pipeline(profile, pipeline, one_device, data_parallel):
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

    return [
        row("speedup_over_best_single_device", alone / step, "more", 1.5, limit,
            f"emulated; {1000 * alone:.0f} ms and {1000 * step:.0f} ms a step; limit: the sum of both devices' speeds"),
        row("speedup_over_data_parallel", parallel / step, "more", 1.1, parallel * limit / alone,
            f"emulated; balanced, over the same link: {1000 * parallel:.0f} ms; limit: both devices, nothing sent"),
        row("step_prediction_error", abs(step / plan["predicted"]["step_seconds"] - 1), "less", 0.1, 0,
            "emulated; of the predicted step, either way"),
    ]


def main(part, *arguments):
    summary, *paths = map(pathlib.Path, arguments[:2] if part == "mixed" else arguments)
    rows = json.loads(summary.read_text())
    if part == "shares":
        new = rows
    else:
        new = compare_mixed(*paths, list(map(float, arguments[2:]))) if part == "mixed" else compare_pipeline(*paths)
        rows = [row for row in rows if row["case"] != new[0]["case"]] + new
        summary.write_text(json.dumps(rows, indent=2) + "\n")

    def judged(of):
        return [row for row in of if row["target"] is not None and row["metric"] in FIGURES]

    print(table(judged(new)))
    print(f"demo: {judge(judged(rows))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
