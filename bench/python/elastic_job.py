"""An elastic job of `motley train`, whose processes are made to end or stop at named points, or at any time."""
import contextlib
import json
import math
import os
import pathlib
import secrets
import signal
import subprocess
import tempfile
import time

from rows import SCRIPTS, say

BINARY = os.environ.get("MOTLEY_BINARY", "build/release/motley")
EXAMPLES = SCRIPTS.parent
RECOVERY = 60  # seconds after which a fault counts as one from which the job has not recovered


class NotRecovered(Exception):
    """What was waited for has not come in time, or the job has ended."""


def cluster_text(paces):
    """A cluster of workers of these paces (seconds a sample, emulated), or None for one as it is."""
    lines = ["version: 2", f"device_types: [{{name: core, kind: cpu, count: {len(paces)}}}]", "workers:"]
    for rank, pace in enumerate(paces):
        lines.append(f"  - {{name: worker-{rank}, device: core{f', seconds_per_sample: {pace} s' if pace else ''}}}")
    return "\n".join(lines) + "\n"


class Job:
    """`motley train JOB FLAGS...` in a folder of its own, with a worker of each pace. Without `faults` its processes do not look for
    requests, which takes them some microseconds at each point."""

    def __init__(self, job, paces, *flags, faults=True):
        self.size = len(paces)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="motley-bench-"))
        self.faults = self.folder / "faults"
        self.faults.mkdir()
        (self.folder / "cluster.yaml").write_text(cluster_text(paces))
        self.run = self.folder / "run"
        self.output = (self.folder / "output").open("w+")
        self.process = subprocess.Popen(
            [BINARY, "train", str(job), "--run-directory", str(self.run), "--cluster", str(self.folder / "cluster.yaml"),
             "--evaluate.every-epochs", "0", *map(str, flags)],
            env=os.environ | ({"MOTLEY_FAULTS": str(self.faults)} if faults else {}), stdout=self.output, stderr=subprocess.STDOUT)
        self._read, self._lines = 0, []

    def lines(self):
        """metrics.jsonl so far; a line that is being written is left for the next time."""
        try:
            with (self.run / "metrics.jsonl").open() as file:
                if os.fstat(file.fileno()).st_size < self._read:  # another rank has taken the file over
                    self._read, self._lines = 0, []
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return self._lines
        whole = text[:text.rfind("\n") + 1]
        self._read += len(whole.encode())
        for line in whole.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                self._lines.append(json.loads(line))
        return self._lines

    def reread(self):
        """metrics.jsonl from its beginning."""
        self._read, self._lines = 0, []
        return self.lines()

    def steps(self):
        return [line for line in self.lines() if "loss" in line]

    def present(self):
        """The ranks that had samples in the last step."""
        steps = self.steps()
        return [rank for rank, samples in enumerate(steps[-1]["samples"]) if samples] if steps else []

    def wait(self, what, condition, seconds=RECOVERY):
        """Until condition() holds; its value."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            if self.process.poll() is not None:
                raise NotRecovered(f"{what}: the job has ended with {self.process.returncode}")
            if time.monotonic() > deadline:
                raise NotRecovered(f"{what}: not within {seconds} s")
            time.sleep(0.02)
        return value

    def wait_for_steps(self, count):
        """Until so many more steps are done."""
        goal = len(self.steps()) + count
        self.wait(f"{count} more steps", lambda: len(self.steps()) >= goal)

    def wait_for_all(self):
        self.wait("all workers take part", lambda: len(self.present()) == self.size)

    def request(self, rank, point, how):
        """Whichever process of this rank comes to this point next is killed, or stops."""
        hidden = self.faults / f".{rank}"
        hidden.write_text(how)
        hidden.rename(self.faults / f"{rank}.{point}")

    def is_met(self, rank, point):
        return not (self.faults / f"{rank}.{point}").exists()

    def signal(self, rank, number):
        """To the newest process of a rank, at once."""
        for process in sorted(map(int, filter(str.isdigit, os.listdir("/proc"))), reverse=True):
            with contextlib.suppress(OSError):
                here = pathlib.Path(f"/proc/{process}")
                if (f"\nPPid:\t{self.process.pid}\n" in (here / "status").read_text()
                        and (here / "comm").read_text() == f"motley rank {rank}\n"):
                    os.kill(process, number)
                    return
        raise NotRecovered(f"rank {rank} has no process")

    def stop(self):
        """After the step under way; the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(RECOVERY)

    def close(self):
        """Ends what is left of it; the folder stays where the job has failed."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.output.close()
        if self.process.returncode in (0, 130):
            subprocess.run(["rm", "-rf", self.folder], check=True)
        else:
            say(f"elastic: the job ended with {self.process.returncode}: {self.folder}")


class Servers:
    """Two parameter servers that run apart, and the flags of a job that uses them."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="motley-bench-servers-")
        here = pathlib.Path(self.folder.name)
        token = here / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(16))
        files = [here / f"address-{number}" for number in range(2)]
        self.processes = [subprocess.Popen([BINARY, "server", "--listen", "127.0.0.1:0", "--threads", "1", "--token-file", token,
                                            "--address-file", file, "--quiet"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                          for file in files]
        deadline = time.monotonic() + 20
        while not all(file.exists() for file in files):
            if time.monotonic() > deadline:
                raise SystemExit("elastic: the parameter servers do not listen within 20 s")
            time.sleep(0.02)
        self.flags = ("--gradient-sync.method", "parameter-server", "--gradient-sync.token-file", token, "--gradient-sync.servers",
                      ",".join(file.read_text().strip() for file in files))
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        self.folder.cleanup()


def count_audits(job):
    return sum("samples_lost_or_duplicated" in line for line in job.lines())


def lost_or_doubled(lines):
    """Samples that the audits of the epochs found lost or duplicated, and steps that are not there exactly once."""
    steps = [line["step"] for line in lines if "loss" in line]
    audits = [line["samples_lost_or_duplicated"] for line in lines if "samples_lost_or_duplicated" in line]
    if not audits:
        raise SystemExit("elastic: no epoch was audited")
    return sum(audits) + sum(steps.count(step) != 1 for step in range(1, max(steps) + 1))


def step_seconds(lines):
    """From the end of each step to that of the next, by the later one's number."""
    steps = sorted((line for line in lines if "loss" in line), key=lambda line: line["step"])
    return {later["step"]: later["time"] - sooner["time"] for sooner, later in zip(steps, steps[1:])}


def percentile(values, share):
    """The smallest value that at least this share of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
