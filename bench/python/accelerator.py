"""The emulated accelerator: jobs on it against the same ones on CPUs, and every wait, event and pin of our own code left out in turn.

    accelerator.py [--quick]
"""
import functools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy

from rows import DEADLINE, print_rows, read_flags, row, say

BINARY = os.environ.get("MOTLEY_BINARY", "build/release/motley")
DEVICES = "devices=2,memory=512MB,pageable=refused"
RUNS = 5  # in each of which an omission is to be found
SECONDS = 120  # of a job at most
FOUND = "emulated accelerator:"  # what the device says begins so
SAMPLES = 600  # of a step of CPUs and accelerators: all that there are
FLOPS = 1e8  # at which the accelerators compute there: far below what this machine does
SPEEDUP = 5  # of an accelerator over a CPU


class Folder:
    """Jobs, and what their runs leave."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        random = numpy.random.default_rng(7)
        numpy.save(self.path / "train.npy", random.normal(size=(600, 12)).astype(numpy.float32))
        numpy.save(self.path / "train_targets.npy", random.integers(0, 4, size=600).astype(numpy.int64))
        common = ("global_batch_size: 60\nsteps: 12\nevaluate: {every_epochs: -1}\nreplan: false\nbatch_split: {mode: fixed}\n"
                  "gradient_sync: {bucket_size: 4 KiB}\n")
        (self.path / "mlp.yaml").write_text(
            "name: mlp\nmodel: {name: mlp, hidden_sizes: [64, 64, 64]}\n"
            "data: {name: npy, train: train.npy, train_targets: train_targets.npy}\n"
            f"optimizer: {{name: adam, learning_rate: 0.001}}\n{common}")
        (self.path / "wide.yaml").write_text(
            (self.path / "mlp.yaml").read_text().replace("[64, 64, 64]", "[128, 128]").replace("mode: fixed", "mode: dynamic"))
        (self.path / "clicks.yaml").write_text(
            "name: clicks\nmodel: {name: ctrdnn, hidden_sizes: [64, 64, 64]}\n"
            "data: {name: clicks, num_samples: 2000, num_categories: 1000}\n"
            f"optimizer: {{name: sgd, learning_rate: 0.01, momentum: 0}}\n{common}")

    def cluster(self, kinds, paces=None):
        """Of these kinds, those of `paces` emulated at so many seconds a sample."""
        path = self.path / f"{'-'.join(kinds)}{'-emulated' if paces else ''}.yaml"
        types = ", ".join(f"{{name: type{i}, kind: {kind}}}" for i, kind in enumerate(kinds))
        pace = {kind: f", seconds_per_sample: {seconds}" for kind, seconds in (paces or {}).items()}
        workers = ", ".join(f"{{name: worker{i}, device: type{i}{pace.get(kind, '')}}}" for i, kind in enumerate(kinds))
        path.write_text(f"version: 2\ndevice_types: [{types}]\nworkers: [{workers}]\n")
        return path

    def plan(self, model, layers, cut):
        """Of two stages, the second of which begins with this layer."""
        stage = {"gradient_sync": "none", "recompute": False}
        path = self.path / f"{model}.json"
        path.write_text(json.dumps({
            "version": 2, "model": model, "layers": layers, "global_batch_size": 60, "micro_batches": 4, "pipeline_schedule": "1f1b",
            "stages": [{"first_layer": layers[0], "last_layer": layers[layers.index(cut) - 1],
                        "replicas": [{"type": "type0", "count": 1}], **stage},
                       {"first_layer": cut, "last_layer": layers[-1], "replicas": [{"type": "type1", "count": 1}], **stage}]}))
        return path

    def train(self, run, job, *flags, options=DEVICES):
        """The exit code, and what was said."""
        command = [BINARY, "train", self.path / f"{job}.yaml", "--run-directory", self.path / run, "--overwrite", "--quiet", *flags]
        done = subprocess.run([str(word) for word in command], env=os.environ | {"MOTLEY_EMULATED": options}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False)
        logs = [log.read_text() for log in (self.path / run / "logs").glob("rank-*.log")]
        return done.returncode, "\n".join([done.stdout, *logs])

    def result(self, run, *arguments, **options):
        """Losses and weights of a run that succeeds."""
        code, text = self.train(run, *arguments, **options)
        if code:
            raise SystemExit(f"accelerator: {run} ended with {code}: {text}")
        weights = max((self.path / run / "checkpoint").glob("step-*")) / "weights.safetensors"
        return [line["loss"] for line in self.steps(run)], read_tensors(weights)

    def steps(self, run):
        lines = map(json.loads, (self.path / run / "metrics.jsonl").read_text().splitlines())
        return [line for line in lines if "step_seconds" in line]


def read_tensors(path):
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    return {name: numpy.frombuffer(data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]], numpy.float32)
            for name, entry in json.loads(data[8:begin]).items() if name != "__metadata__" and entry["dtype"] == "F32"}


def difference(one, other):
    """The largest of losses and of tensors, relative to each."""
    losses = max(abs(a - b) / abs(a) for a, b in zip(one[0], other[0], strict=True))
    tensors = max(numpy.linalg.norm(values - other[1][name]) / max(numpy.linalg.norm(values), 1e-30)
                  for name, values in one[1].items())
    return float(max(losses, tensors))


MLP = ["flatten", "fc1", "relu1", "fc2", "relu2", "fc3", "relu3", "output"]
CTRDNN = ["lookup", "fc1", "fc2", "fc3", "output"]


def equality(folder):
    """Jobs on CPUs, and with accelerators in their place."""
    kinds = {
        "data parallel": ("mlp", ("--batch-split.fixed", "36,24"), ["emulated", "emulated"]),
        "data parallel, mixed": ("mlp", ("--batch-split.fixed", "36,24"), ["cpu", "emulated"]),
        "pipeline": ("mlp", ("--plan", folder.plan("mlp", MLP, "fc2")), ["cpu", "emulated"]),
        "embeddings": ("clicks", ("--plan", folder.plan("ctrdnn", CTRDNN, "fc1")), ["cpu", "emulated"]),
        "server-side optimizer": ("mlp", ("--batch-split.fixed", "36,24", "--gradient-sync.method", "parameter-server"),
                                  ["emulated", "emulated"])}
    worst = {}
    for name, (job, flags, devices) in kinds.items():
        one = folder.result("cpu", job, *flags, "--cluster", folder.cluster(["cpu", "cpu"]))
        other = folder.result("emulated", job, *flags, "--cluster", folder.cluster(devices))
        worst[name] = difference(one, other)
        say(f"accelerator: {name}: {worst[name]:.3g} from the CPU's")
    return row("emulated-equality", "worst_relative_difference", max(worst.values()), "", "less", 1e-6, note=(
        "emulated; losses and weights after 12 steps against CPUs with the same split, float32: "
        + ", ".join(f"{name} {value:.2g}" for name, value in worst.items())))


class Workload:
    """A job whose code of ours keeps order with a device; `code` is how it ends when nothing is left out."""

    def __init__(self, folder, name, *flags, code=0):
        self.folder, self.name, self.code = folder, name, code
        self.flags = (*flags, "--steps", 2, "--deadline.step", "10s")

    def places(self):
        survey = self.folder.path / f"{self.name}.places"
        code, text = self.folder.train(f"{self.name}-survey", *self.flags, options=f"{DEVICES},survey={survey}")
        if code != self.code or FOUND in text:
            raise SystemExit(f"accelerator: {self.name} ended with {code} where nothing is left out: {text}")
        return sorted({line.split()[0] for line in survey.read_text().splitlines()})

    def finds(self, place, number):
        """Whether the run without this place is ended, or what is missing is said."""
        run = f"{self.name}-{place.replace(':', '-')}-{number}"
        code, text = self.folder.train(run, *self.flags, options=f"{DEVICES},omit={place}")
        shutil.rmtree(self.folder.path / run, ignore_errors=True)
        return code != self.code or FOUND in text


def list_workloads(folder):
    """In the last, gradients are still on their way to the device when the job ends."""
    devices = ("--cluster", folder.cluster(["cpu", "emulated"]))
    split = ("--batch-split.fixed", "36,24")
    return [Workload(folder, "pipeline", "mlp", "--plan", folder.plan("mlp", MLP, "fc2"), *devices),
            Workload(folder, "data-parallel", "mlp", *devices, *split),
            Workload(folder, "hot-rows", "clicks", "--cluster", folder.cluster(["emulated"]), "--batch-split.fixed", "60",
                     "--embedding.max-staleness", 2),
            Workload(folder, "not-finite", "mlp", *devices, *split, "--optimizer.name", "sgd", "--optimizer.learning-rate", 1e30, code=1)]


def count_in_jobs(folder, runs, every):
    """Of every so manieth place of the program in how many runs it was found, by the workload that finds it most often."""
    workloads, by_place = list_workloads(folder), {}
    for workload in workloads:
        for place in workload.places():
            by_place.setdefault(place, []).append(workload)
    found = {}
    with ThreadPoolExecutor(2) as pool:
        for place in sorted(by_place)[::every]:
            found[place] = 0
            for workload in by_place[place]:
                if found[place] < runs:
                    found[place] = max(found[place], sum(pool.map(functools.partial(workload.finds, place), range(runs))))
            say(f"accelerator: without {place} {found[place]} of {runs} runs were ended")
    return found


def count_in_group(folder, runs, every):
    """The same of a process group's places, by its ranks themselves."""
    command = [sys.executable, pathlib.Path(__file__).with_name("accelerator_job.py"), "--meeting", folder.path / "meeting", "--runs", runs,
               "--every", every]
    environment = os.environ | {"MOTLEY_EMULATED": DEVICES, "PYTHONWARNINGS": "ignore"}
    ranks = [subprocess.Popen([str(word) for word in (*command, "--rank", rank)], env=environment, text=True,
                              stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL) for rank in range(2)]
    try:
        text, _ = ranks[0].communicate(timeout=DEADLINE)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if ranks[0].returncode:
        raise SystemExit(f"accelerator: the process group ended with {ranks[0].returncode}")
    return json.loads(text)


def mutants(folder, quick):
    """Every wait, event and pin of ours left out, one at a time."""
    runs, every = (1, 9) if quick else (RUNS, 1)
    jobs, group = count_in_jobs(folder, runs, every), count_in_group(folder, runs, every)
    missed = [f"{place} of {of}" for of, found in (("jobs", jobs), ("a process group", group))
              for place, times in found.items() if times < runs]
    kinds = sorted({place.split(":")[0] for place in (*jobs, *group)})
    return row("emulated-mutants", "not_found", len(missed), "", "less", 0, note=(
        f"emulated; {len(jobs)} places in jobs and {len(group)} in a process group of Python ({', '.join(kinds)}) left out one at a time, "
        f"in {runs} runs each; not found in all: {', '.join(missed) or 'none'}"))


def measure_worker(folder, kind, samples, **options):
    """The median seconds of a worker alone for so many samples."""
    flags = ("wide", "--cluster", folder.cluster([kind]), "--global-batch-size", samples, "--steps", 10)
    folder.result(f"alone-{samples}", *flags, **options)
    return statistics.median(line["compute_seconds"][0] + line["load_seconds"][0] for line in folder.steps(f"alone-{samples}")[4:])


def solve_split(costs, samples):
    """The least seconds in which workers take so many samples, each a fixed time and one a sample: the best integer split, as each
    sample goes to whoever is then done first."""
    counts = [0] * len(costs)
    for _ in range(samples):
        best = min(range(len(costs)), key=lambda worker: costs[worker][0] + costs[worker][1] * (counts[worker] + 1))
        counts[best] += 1
    return max(fixed + each * count for (fixed, each), count in zip(costs, counts)), counts


def mixed(folder, quick):
    """Two emulated CPU workers and two emulated accelerators five times as fast."""
    few, many = SAMPLES // 4, SAMPLES // 2
    options = {"options": f"devices=2,memory=512MB,flops={FLOPS:g}"}
    first, second = (measure_worker(folder, "emulated", samples, **options) for samples in (few, many))
    each = (second - first) / (many - few)
    pace = SPEEDUP * each
    fixed = max(0, first - few * each)
    optimum, split = solve_split([(0, pace)] * 2 + [(fixed, each)] * 2, SAMPLES)
    steps = 16 if quick else 80
    folder.result("mixed", "wide", "--cluster", folder.cluster(["cpu", "cpu", "emulated", "emulated"], {"cpu": f"{pace} s"}),
                  "--global-batch-size", SAMPLES, "--steps", steps, **options)
    lines = folder.steps("mixed")[-steps // 2:]
    step = statistics.median(line["step_seconds"] for line in lines)
    return row("emulated-mixed", "gap_to_optimum", step / optimum - 1, "share", "less", 0.05, 0.0, note=(
        f"emulated; two CPU workers of {1e3 * pace:.3g} ms a sample and two accelerators whose kernels take {1e3 * each:.3g} ms a sample "
        f"and {1e3 * fixed:.3g} ms a step, measured alone; {SAMPLES} samples a step, dynamic split {lines[-1]['samples']}, best {split}; "
        f"step {1e3 * step:.1f} ms, optimum {1e3 * optimum:.1f} ms"))


def main():
    flags = read_flags(__doc__)
    with tempfile.TemporaryDirectory(prefix="motley-bench-") as path:
        folder = Folder(path)
        print_rows([equality(folder), mutants(folder, flags.quick), mixed(folder, flags.quick)])


if __name__ == "__main__":
    sys.exit(main())
