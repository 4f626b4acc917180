"""Starts the binary on small data in a folder of its own, and reads what runs leave behind."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import numpy

BINARY = os.environ.get("MOTLEY_BINARY", "build/release/motley")


def read_safetensors(path):
    """A safetensors file as {name: array}, read by the format's definition and nothing of ours."""
    raw = pathlib.Path(path).read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    types = {"F32": numpy.float32, "F64": numpy.float64, "I64": numpy.int64}
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            data = raw[8 + size + begin : 8 + size + end]
            tensors[name] = numpy.frombuffer(data, types[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def relative_difference(one, other):
    """The largest difference of any tensor, relative to the tensor's norm."""
    worst = 0.0
    assert one.keys() == other.keys()
    for name in one:
        norm = numpy.linalg.norm(one[name].astype(numpy.float64).ravel())
        difference = numpy.linalg.norm((one[name].astype(numpy.float64) - other[name]).ravel())
        worst = max(worst, difference / max(norm, 1e-300))
    return worst


def name_of_fork(entry):
    """The words of a process's name where it is a fork of its launcher: ["motley", "rank", "3"] or ["motley", "server"]."""
    words = (entry / "comm").read_text().split()
    return words if words[:1] == ["motley"] and len(words) > 1 else []


def children(process, mark):
    """Process ids of a process's children whose command line holds the mark; of forks, whose name does."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"\nPPid:\t{process}\n" in (entry / "status").read_text():
                words = name_of_fork(entry) or (entry / "cmdline").read_text().split("\0")
                if mark in words:
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


def handles(process, number):
    """Whether a process has a handler for this signal, or has blocked it so that a thread of its own takes it."""
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigCgt:", "SigBlk:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def interrupt_once(test, process, is_ready, seconds):
    """Sends SIGINT to a program once it takes that and is_ready()."""
    deadline = time.monotonic() + seconds
    while not (handles(process.pid, signal.SIGINT) and is_ready()):
        test.assertIsNone(process.poll(), "it ended before it was interrupted")
        test.assertLess(time.monotonic(), deadline)
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)


def computed_seconds(process):
    """The processor time that a process has had."""
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def process_state(process):
    """A letter, as ps has it; X for one that is gone."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "X"


def shared_memory(process):
    """The files in /dev/shm that a process has mapped, with " (deleted)" where they have no name."""
    maps = pathlib.Path(f"/proc/{process}/maps").read_text()
    return set(re.findall(r"(?m) /dev/shm/(.+)$", maps))


class Scenario(unittest.TestCase):
    """A folder with a small data set (npy, classes) and a job on it; helpers to run jobs."""

    samples = 600

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="motley-scenario-"))
        self.addCleanup(shutil.rmtree, self.folder, True)
        random = numpy.random.default_rng(7)
        centres = random.normal(size=(4, 12))
        for name, count in (("train", self.samples), ("test", 200)):
            classes = random.integers(0, 4, size=count)
            features = centres[classes] + random.normal(size=(count, 12))
            numpy.save(self.folder / f"{name}.npy", features.astype(numpy.float32))
            numpy.save(self.folder / f"{name}_targets.npy", classes.astype(numpy.int64))
        self.job = self.folder / "job.yaml"
        self.job.write_text(
            "name: scenario\n"
            "model: {name: mlp, hidden_sizes: [16]}\n"
            "data: {name: npy, train: train.npy, train_targets: train_targets.npy,\n"
            "       test: test.npy, test_targets: test_targets.npy}\n"
            "global_batch_size: 60\n"
            "epochs: 2\n"
            "optimizer: {name: sgd, learning_rate: 0.05, momentum: 0.9}\n"
            "gradient_sync: {bucket_size: 4 KiB}\n"
            "deadline: {join: 60 s, step: 20 s}\n"
        )

    def command(self, run, *flags, job=True):
        return [BINARY, "train", *([str(self.job)] if job else []), "--run-directory", str(self.folder / run), *map(str, flags)]

    def train(self, run, *flags, expect=0, job=True, environment=None):
        """Runs to the end; returns the output (standard output and error together)."""
        done = subprocess.run(
            self.command(run, *flags, job=job),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=180,
            env={**os.environ, **(environment or {})},
        )
        self.assertEqual(done.returncode, expect, done.stdout)
        return done.stdout

    def start(self, run, *flags, environment=None, within=()):
        """`within`: the words of a program that runs the command."""
        process = subprocess.Popen(
            [*within, *self.command(run, *flags)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **(environment or {})},
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process

    def as_on_another_machine(self):
        """What start() runs a rank within, which the others then take for one of another machine: they cannot kill it."""
        apart = ("unshare", "--pid", "--mount-proc", "--fork", "--kill-child=KILL")
        if not shutil.which("unshare") or subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
            self.skipTest("a process-number space of its own needs root")
        return apart

    def start_parameter_server(self, address, listen="127.0.0.1:0", faults=None):
        """A parameter server that runs apart and writes where it listens to the file `address`."""
        server = subprocess.Popen(
            [BINARY, "server", "--listen", listen, "--threads", "1", "--token-file", self.folder / "token",
             "--address-file", address, "--quiet"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, **({"MOTLEY_FAULTS": str(faults)} if faults else {})})
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        return server

    def start_service(self, *words, says):
        """A service by its command, and what its log says after these words, for which this waits."""
        service = subprocess.Popen([str(word) for word in (BINARY, *words)], stderr=subprocess.PIPE, text=True)
        self.addCleanup(service.stderr.close)
        self.addCleanup(service.wait)
        self.addCleanup(service.kill)
        for line in service.stderr:
            if says in line:
                return service, line.split(says)[1].strip()
        return self.fail("the service ended")

    def start_servers(self, count, faults=None):
        """Parameter servers that run apart, on ports of their own: their processes, and the flags of a job that uses them.

        `faults`: a folder of those of the last server.
        """
        token = self.folder / "token"
        token.write_text("a token that nobody guesses\n")
        token.chmod(0o600)
        servers, addresses = [], []
        for index in range(count):
            address = self.folder / f"address-{index}"
            address.unlink(missing_ok=True)
            servers.append(self.start_parameter_server(address, faults=faults if index == count - 1 else None))
            deadline = time.monotonic() + 120
            while not address.exists():
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)
            addresses.append(address.read_text().strip())
        return servers, ("--gradient-sync.method", "parameter-server", "--gradient-sync.servers", ",".join(addresses),
                         "--gradient-sync.token-file", token)

    def wait_for_step(self, run, step, seconds=60):
        """Until the run's metrics show this step."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            lines = self.lines(run)
            if any(line.get("step", 0) >= step and "loss" in line for line in lines):
                return
            time.sleep(0.02)
        self.fail(f"step {step} was not reached within {seconds} s")

    def worker_processes(self, launcher):
        """Process ids of the launcher's children, in the order of their ranks."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"\nPPid:\t{launcher}\n" in (entry / "status").read_text():
                    environment = (entry / "environ").read_text().split("\0")
                    rank = [e.split("=")[1] for e in environment if e.startswith("MOTLEY_RANK=")] or name_of_fork(entry)[2:]
                    found[int(rank[0])] = int(entry.name)
            except (OSError, IndexError):
                continue
        return [found[rank] for rank in sorted(found)]

    def lines(self, run):
        path = self.folder / run / "metrics.jsonl"
        if not path.exists():
            return []
        lines = []
        for text in path.read_text().splitlines():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                pass  # the last line of a run that is being written
        return lines

    def losses(self, run):
        return {line["step"]: line["loss"] for line in self.lines(run) if "loss" in line}

    def not_used_once(self, run):
        counts = [line["samples_lost_or_duplicated"] for line in self.lines(run)
                  if "samples_lost_or_duplicated" in line]
        self.assertTrue(counts, "the run audited no epoch")
        return sum(counts)

    def weights(self, run):
        newest = sorted((self.folder / run / "checkpoint").glob("step-*"))[-1]
        return read_safetensors(newest / "weights.safetensors")

    def assert_bitwise(self, run, other):
        one, two = self.weights(run), self.weights(other)
        self.assertEqual(one.keys(), two.keys())
        for name in one:
            self.assertEqual(one[name].tobytes(), two[name].tobytes(), name)

    def cluster(self, paces, **extra):
        """A cluster file with a worker of each emulated pace (seconds a sample), or None for one as it is."""
        text = "version: 2\ndevice_types: [{name: core, kind: cpu, count: 16}]\nworkers:\n"
        for rank, pace in enumerate(paces):
            text += f"  - {{name: w{rank}, device: core"
            text += f", seconds_per_sample: {pace} s" if pace else ""
            text += "".join(f", {key}: {value}" for key, value in extra.items()) + "}\n"
        path = self.folder / "cluster.yaml"
        path.write_text(text)
        return path


def interrupt(process):
    process.send_signal(signal.SIGINT)
