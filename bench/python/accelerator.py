"""The emulated accelerator: jobs on it against the same ones on CPUs, and every wait, event and pin of our own code left out in turn.

    accelerator.py [--quick]
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy

from rows import print_rows, read_flags, row, say

BINARY = os.environ.get("MOTLEY_BINARY", "build/release/motley")
DEVICES = "devices=2,memory=512MB,pageable=refused"
RUNS = 5  # in each of which an omission is to be found
SECONDS = 120  # of a job at most


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
        (self.path / "clicks.yaml").write_text(
            "name: clicks\nmodel: {name: ctrdnn, hidden_sizes: [64, 64, 64]}\n"
            "data: {name: clicks, num_samples: 2000, num_categories: 1000}\n"
            f"optimizer: {{name: sgd, learning_rate: 0.01, momentum: 0}}\n{common}")

    def cluster(self, kinds):
        path = self.path / f"{'-'.join(kinds)}.yaml"
        types = ", ".join(f"{{name: type{i}, kind: {kind}}}" for i, kind in enumerate(kinds))
        workers = ", ".join(f"{{name: worker{i}, device: type{i}}}" for i in range(len(kinds)))
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
        return done.returncode, done.stdout

    def result(self, run, *arguments, **options):
        """Losses and weights of a run that succeeds."""
        code, text = self.train(run, *arguments, **options)
        if code:
            raise SystemExit(f"accelerator: {run} ended with {code}: {text}")
        lines = [json.loads(line) for line in (self.path / run / "metrics.jsonl").read_text().splitlines()]
        weights = max((self.path / run / "checkpoint").glob("step-*")) / "weights.safetensors"
        return [line["loss"] for line in lines if "step_seconds" in line], read_tensors(weights)


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


def count_in_jobs(folder, runs):
    """Of each place in the program, in how many runs of a pipeline it ended the run."""
    flags = ("mlp", "--plan", folder.plan("mlp", MLP, "fc2"), "--cluster", folder.cluster(["cpu", "emulated"]), "--steps", 2)
    survey = folder.path / "places"
    folder.result("survey", *flags, options=f"{DEVICES},survey={survey}")
    places = sorted({line.split()[0] for line in survey.read_text().splitlines()})
    found = {}
    for place in places:
        codes = [folder.train("omits", *flags, options=f"{DEVICES},omit={place}")[0] for _ in range(runs)]
        found[place] = sum(code != 0 for code in codes)
        say(f"accelerator: without {place} {found[place]} of {runs} runs ended")
    return found


def mutants(folder, quick):
    """Every wait, event and pin of ours left out, one at a time."""
    runs = 1 if quick else RUNS
    found = count_in_jobs(folder, runs)
    missed = [place for place, times in found.items() if times < runs]
    kinds = sorted({place.split(":")[0] for place in found})
    return row("emulated-mutants", "not_found", len(missed), "", "less", 0, note=(
        f"emulated; {len(found)} places ({', '.join(kinds)}) of a pipeline of CPU and accelerator left out one at a time, in {runs} runs "
        f"each; not found in all: {', '.join(missed) or 'none'}"))


def main():
    flags = read_flags(__doc__)
    with tempfile.TemporaryDirectory(prefix="motley-bench-") as path:
        folder = Folder(path)
        print_rows([equality(folder), mutants(folder, flags.quick)])


if __name__ == "__main__":
    sys.exit(main())
