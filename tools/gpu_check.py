#!/usr/bin/env python3
"""The runs of tools/gpu-check, with what it built; prints rows as `motley-bench` does. 1 where one fails or misses."""

import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = pathlib.Path(sys.argv[1]).resolve()
SETTLED = 10  # first steps of a run, whose times are not counted
MOST_SECONDS = 300  # of a run
MOST_DIFFERENCE = 0.01  # of the first losses on the GPU from those on the CPU, relative

PYTHON_TESTS = {"accelerators": ["accelerators"], "pipelines": ["pipelines.Alone.test_on_a_gpu"],
                "profiles": ["profiling.Profiling.test_a_gpu"]}

rows = []
failures = []


def row(case, metric, value, unit, better, target=None, limit=None, note=""):
    rows.append({"case": case, "metric": metric, "value": value, "unit": unit, "better": better, "target": target,
                 "limit": limit, "peer": None, "note": note})
    print(f"gpu-check: {case}: {metric} {value:.4g} {unit}", flush=True)


def missed(entry):
    if entry["target"] is None:
        return False
    below = entry["value"] < entry["target"] if entry["better"] == "more" else entry["value"] > entry["target"]
    return below


def table():
    name = max(len(entry["case"]) for entry in rows)
    metric = max(len(entry["metric"]) for entry in rows)

    def cell(value):
        return "-" if value is None else f"{value:.4g}"

    print(f"{'case':<{name}}  {'metric':<{metric}}  {'value':>9}  {'unit':<6}  {'target':>9}  {'limit':>9}  {'peer':>9}")
    for entry in rows:
        sign = ">=" if entry["better"] == "more" else "<="
        target = "-" if entry["target"] is None else f"{sign} {entry['target']:.4g}"
        end = "" if entry["target"] is None else "  MISSED" if missed(entry) else "  met"
        print(f"{entry['case']:<{name}}  {entry['metric']:<{metric}}  {entry['value']:>9.4g}  {entry['unit']:<6}  "
              f"{target:>9}  {cell(entry['limit']):>9}  {'-':>9}{end}")


def unit_tests():
    for program in ("nn_test", "device_rows_test"):
        results = FOLDER / f"{program}.json"
        results.unlink(missing_ok=True)
        done = subprocess.run([FOLDER / program, "--gtest_filter=*Accelerator*", f"--gtest_output=json:{results}"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
        suites = json.loads(results.read_text())["testsuites"] if results.exists() else []
        cases = [case for suite in suites for case in suite["testsuite"]]
        passed = [case for case in cases if case["result"] == "COMPLETED" and not case.get("failures")]
        row(f"CUDA tests of {program}", "passed", len(passed), "", "more", max(1, len(cases)), len(cases))
        if done.returncode != 0 or len(passed) < len(cases):
            failures.append(f"CUDA tests of {program}:\n{done.stdout[-4000:]}")


def run_python(*words):
    environment = {"PYTHONPATH": ":".join(map(str, (FOLDER / "python", ROOT / "tests/python", ROOT / "tests/scenarios"))),
                   "MOTLEY_BINARY": str(FOLDER / "motley")}
    try:
        return subprocess.run([sys.executable, *map(str, words)], env=os.environ | environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(late.args, -1, "", f"not done after {MOST_SECONDS} s: {late.stderr}")


def python_tests():
    for name, tests in PYTHON_TESTS.items():
        done = run_python("-m", "unittest", "-v", *tests)
        ran = re.search(r"^Ran (\d+) tests?", done.stderr, re.MULTILINE)
        passed = len(re.findall(r"\.\.\. ok$", done.stderr, re.MULTILINE))
        row(f"Python tests of {name}", "passed", passed, "", "more", max(1, int(ran[1]) if ran else 0))
        if done.returncode != 0:
            failures.append(f"Python tests of {name}:\n{done.stderr[-4000:]}")


def python_rows():
    done = run_python(ROOT / "bench/python/gpu.py", "--quick")
    if done.returncode != 0:
        failures.append(f"bench/python/gpu.py:\n{done.stderr[-4000:]}")
        return
    for entry in json.loads(done.stdout):
        rows.append(entry)
        print(f"gpu-check: {entry['case']}: {entry['metric']} {entry['value']:.4g} {entry['unit']}; {entry['note']}", flush=True)


def train(name, job, *flags):
    """Runs a job; its lines of metrics that are steps, or None where it failed."""
    run = FOLDER / "runs" / name
    shutil.rmtree(run, ignore_errors=True)
    command = [*map(str, (FOLDER / "motley", "train", job, "--run-directory", run, "--quiet", *flags))]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=MOST_SECONDS)
        printed = "" if done.returncode == 0 else done.stdout[-4000:] or f"exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        printed = f"not done after {MOST_SECONDS} s"
    if printed:
        failures.append(f"{' '.join(command)}\n{printed}")
        return None
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "step_seconds" in line]


def measure(case, note, job, on_gpu, on_cpu):
    """A job on the GPU with copies that overlap and without, and on the CPU: step times, and that the losses agree."""
    name = job.stem
    runs = {"copies overlap": train(f"{name}-overlap", job, *on_gpu),
            "copies waited for": train(f"{name}-waits", job, *on_gpu, "--gradient-sync.overlap", "false"),
            "on CPUs only": train(f"{name}-cpu", job, *on_cpu)}
    for name, steps in runs.items():
        if steps:
            seconds = statistics.median(line["step_seconds"] for line in steps if line["step"] > SETTLED)
            row(case, f"step, {name}", seconds, "s", "less", note=note)
    host = runs.pop("on CPUs only")
    for name, steps in runs.items():
        if steps and host:
            worst = max(abs(one["loss"] - other["loss"]) / abs(other["loss"])
                        for one, other in zip(steps[:SETTLED], host[:SETTLED]))
            row(case, f"first losses differ from the CPU's, {name}", worst, "", "less", MOST_DIFFERENCE)


def planned():
    """CTRDNN: rows on two CPU workers, fully connected layers on the GPU."""
    layers = ["lookup", "fc1", "fc2", "fc3", "output"]
    files = {}
    for name, kind in (("gpu", "cuda"), ("cpu", "cpu")):
        files[name] = FOLDER / f"plan-{name}.json"
        stage = {"gradient_sync": "none", "recompute": False}
        files[name].write_text(json.dumps({
            "version": 2, "model": "ctrdnn", "layers": layers, "global_batch_size": 2048, "micro_batches": 8, "pipeline_schedule": "1f1b",
            "stages": [
                {"first_layer": "lookup", "last_layer": "lookup", "replicas": [{"type": "rows", "count": 2}], **stage,
                 "gradient_sync": "ring"},
                {"first_layer": "fc1", "last_layer": "output", "replicas": [{"type": "dense", "count": 1}], **stage}]}))
        (FOLDER / f"cluster-{name}.yaml").write_text(
            "version: 2\n"
            f"device_types: [{{name: rows, kind: cpu, count: 2}}, {{name: dense, kind: {kind}, count: 1}}]\n")
    job = FOLDER / "planned.yaml"
    job.write_text(
        "name: planned\n"
        "model: {name: ctrdnn, hidden_sizes: [512, 512, 512]}\n"
        "data: {name: clicks, num_samples: 1000000, num_categories: 100000}\n"
        "global_batch_size: 2048\nsteps: 40\nevaluate: {every_epochs: -1}\ncheckpoint: {every: 0 s}\nreplan: false\n"
        "batch_split: {mode: fixed}\n"
        "optimizer: {name: sgd, learning_rate: 0.01, momentum: 0}\n")
    on = {name: ("--plan", files[name], "--cluster", FOLDER / f"cluster-{name}.yaml") for name in files}
    measure("ctrdnn, rows on CPUs", "measured; 2 workers with the embeddings, one with the other layers; 2,048 samples a step", job, on["gpu"], on["cpu"])


def data_parallel():
    """A transformer on the text of the documents, by two workers, which share a GPU where there is but one."""
    text = FOLDER / "text.txt"
    text.write_text("".join(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))))
    job = FOLDER / "parallel.yaml"
    job.write_text(
        "name: parallel\n"
        "model: {name: transformer, num_layers: 2, hidden_size: 128, num_heads: 4}\n"
        f"data: {{name: text, train: {text}, sequence_length: 64}}\n"
        "global_batch_size: 16\nsteps: 40\nworkers: 2\nevaluate: {every_epochs: -1}\ncheckpoint: {every: 0 s}\n"
        "batch_split: {mode: equal}\n"
        "optimizer: {name: sgd, learning_rate: 0.05, momentum: 0.9}\n")
    measure("transformer, 2 workers", "measured; both on one GPU, or on CPUs; 16 sequences a step", job, ("--device", "cuda"), ("--device", "cpu"))


def together():
    """The transformer by the GPU, by CPUs and by both, split by their measured speeds."""
    job = FOLDER / "parallel.yaml"
    seconds = {}
    for name, types in (("gpu", ["cuda"]), ("cpu", ["cpu"]), ("both", ["cuda", "cpu"])):
        cluster = FOLDER / f"together-{name}.yaml"
        cluster.write_text("version: 2\ndevice_types: [" + ", ".join(f"{{name: {kind}, kind: {kind}}}" for kind in types) + "]\n"
                           "workers: [" + ", ".join(f"{{name: on-{kind}, device: {kind}}}" for kind in types) + "]\n")
        steps = train(f"together-{name}", job, "--cluster", cluster, "--workers", len(types), "--batch-split.mode", "dynamic",
                      "--global-batch-size", 512, "--threads", max(1, (os.cpu_count() or 2) - 2))
        if steps:
            seconds[name] = statistics.median(line["step_seconds"] for line in steps if line["step"] > 2 * SETTLED)
            row("transformer, GPU and CPUs", f"step, {name}", seconds[name], "s", "less", note="measured; 512 sequences a step")
    if len(seconds) == 3:
        optimum = 1 / (1 / seconds["gpu"] + 1 / seconds["cpu"])
        row("transformer, GPU and CPUs", "gap to the optimum", seconds["both"] / optimum - 1, "share", "less", None, 0,
            f"measured; the optimum is {1e3 * optimum:.2f} ms")


def main():
    unit_tests()
    python_tests()
    planned()
    data_parallel()
    together()
    python_rows()
    table()
    (FOLDER / "rows.json").write_text(json.dumps(rows, indent=2) + "\n")
    for failure in failures:
        print(f"gpu-check: FAILED: {failure}", file=sys.stderr)
    return 1 if failures or any(missed(entry) for entry in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
