"""A killed worker of an elastic job against one of a torchft job, in turns: the same network and emulated speeds on the same machine.

    elastic_torchft.py [--quick]

torchft is at its best: with the lowest time-outs of a list with which it recovers from all kills and never changes its quorum for
nothing. It gives every worker the same samples, throws the step away in which one is lost, and does not make up for the samples.
"""
import importlib.util
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import threading
import time

from elastic_faults import BEFORE, PACES, Fault, percentile, read_cost, start_job, strike
from elastic_job import RECOVERY, NotRecovered
from rows import SCRIPTS, print_rows, read_flags, row, say

WORKER = SCRIPTS.parents[1] / "bench/peers/torchft_worker.py"
BATCH = 256
# Seconds: without a heartbeat a replica is lost; others wait so long for it to join; an operation of gloo may take so long.
TIMEOUTS = ((0.1, 0.1, 0.25), (0.25, 0.1, 0.25), (0.1, 0.1, 0.5), (0.25, 0.1, 0.5), (0.5, 0.25, 0.5), (0.5, 0.25, 1.0), (1.0, 0.5, 1.0),
            (1.0, 1.0, 2.0))


class Replica:
    """A process of a torchft job, and the lines that it has printed."""

    def __init__(self, lighthouse, name, pace, seconds):
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), lighthouse, name, str(pace), str(BATCH // len(PACES)), str(seconds)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        self.lines: list[tuple[float, int, bool]] = []  # when, with how many, and whether the step counts
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            _, when, count, counts = line.split()
            self.lines.append((float(when), int(count), counts == "1"))

    def kill(self):
        self.process.kill()
        self.process.wait()


class TorchftJob:
    def __init__(self, timeouts):
        heartbeat, join, self.seconds = timeouts
        with socket.create_server(("localhost", 0)) as free:
            port = free.getsockname()[1]
        self.address = f"http://localhost:{port}"
        self.lighthouse = subprocess.Popen(
            ["torchft_lighthouse", "--bind", f"[::]:{port}", "--min_replicas", "1", "--join_timeout_ms", str(int(1e3 * join)),
             "--quorum_tick_ms", "10", "--heartbeat_timeout_ms", str(int(1e3 * heartbeat))],
            executable=str(pathlib.Path(sys.executable).parent / "torchft_lighthouse"), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        self.replicas = [self._start(rank, 0) for rank in range(len(PACES))]
        self.started = 0

    def _start(self, rank, number):
        return Replica(self.address, f"{rank}-{number}", PACES[rank], self.seconds)

    def wait(self, what, condition, seconds=RECOVERY):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise NotRecovered(f"torchft: {what}: not within {seconds} s")
            time.sleep(0.02)

    def wait_for_all(self, steps):
        """Until so many steps in a row were done by all replicas."""
        self.wait("all replicas take part", lambda: all(
            len(replica.lines) >= steps and all(count == len(PACES) and counts for _, count, counts in replica.lines[-steps:])
            for replica in self.replicas))

    def kill_one(self, rank, moment):
        """The seconds between the two steps that count around it, less the median of those before it. `moment`: of the step, 0 to 1."""
        survivor = self.replicas[(rank + 1) % len(PACES)]
        first = len(survivor.lines)
        usual = [later[0] - sooner[0] for sooner, later in zip(survivor.lines[-BEFORE - 1:], survivor.lines[-BEFORE:])]
        time.sleep(moment * statistics.median(usual))
        self.replicas[rank].kill()
        self.wait("the others go on", lambda: len(survivor.lines) > first + 3
                  and any(count < len(PACES) and counts for _, count, counts in survivor.lines[first:]))
        counted = [when for when, _, counts in survivor.lines if counts]
        gaps = [later - sooner for sooner, later in zip(counted, counted[1:]) if later > survivor.lines[first - 1][0]]
        self.started += 1
        self.replicas[rank] = self._start(rank, self.started)
        return max(gaps) - statistics.median(usual)

    def close(self):
        for replica in self.replicas:
            replica.kill()
        self.lighthouse.kill()
        self.lighthouse.wait()


def measure_torchft(timeouts, kills, choose, undisturbed):
    """Pauses after kills, and how many steps, of `undisturbed` at most, all did then until one was not done by all for no reason."""
    job = TorchftJob(timeouts)
    try:
        job.wait_for_all(BEFORE + 2)
        pauses = []
        for _ in range(kills):
            pauses.append(job.kill_one(choose.randrange(len(PACES)), choose.random()))
            job.wait_for_all(BEFORE + 2)
        begin = len(job.replicas[0].lines)

        def is_over():
            lines = job.replicas[0].lines[begin:]
            return len(lines) >= undisturbed or any(count < len(PACES) or not counts for _, count, counts in lines)
        job.wait("steps without faults", is_over, RECOVERY + undisturbed)
        return pauses, min(undisturbed, len(job.replicas[0].lines) - begin)
    finally:
        job.close()


def find_timeouts(kills, undisturbed, choose):
    """The lowest with which torchft recovers from all kills, and changes its quorum for nothing in none of so many steps."""
    for timeouts in TIMEOUTS:
        try:
            pauses, steps = measure_torchft(timeouts, kills, choose, undisturbed)
        except NotRecovered as problem:
            say(f"elastic: torchft with time-outs {timeouts} s: {problem}")
            continue
        say(f"elastic: torchft with time-outs {timeouts} s: median pause {statistics.median(pauses):.3f} s, {steps} of {undisturbed} steps "
            "until its quorum changed for nothing")
        if steps == undisturbed:
            return timeouts
    return None


def measure_ours(kills, choose):
    job = start_job("shared-memory")
    pauses = []
    try:
        job.wait_for_all()
        job.wait_for_steps(3 * BEFORE)
        while len(pauses) < kills:
            fault = Fault(choose.randrange(len(PACES)), "any time", "kill")
            first = job.steps()[-1]["step"]
            strike(job, fault, choose)
            job.wait("a worker is lost", lambda: len(job.present()) < job.size)
            job.wait_for_all()
            job.wait_for_steps(BEFORE + 2)
            if cost := read_cost(job, fault, first):
                pauses.append(cost.pause)
        job.stop()
        return pauses
    finally:
        job.close()


def main():
    quick = read_flags(__doc__).quick
    if not importlib.util.find_spec("torchft"):
        say("elastic: pause_ratio_to_torchft is left out: torchft is not installed")
        print_rows([])
        return
    choose = random.Random(1)
    kills, undisturbed, rounds = (2, 20, 1) if quick else (20, 1000, 4)
    timeouts = find_timeouts(kills, undisturbed, choose)
    if timeouts is None:
        raise SystemExit("elastic: torchft recovers with none of the time-outs")
    ours, theirs = [], []
    for _ in range(rounds):
        ours += measure_ours(kills // rounds, choose)
        theirs += measure_torchft(timeouts, kills // rounds, choose, 0)[0]
    for name, pauses in (("ours", ours), ("torchft", theirs)):
        say(f"elastic: {name}: {', '.join(f'{pause:.3f}' for pause in sorted(pauses))} s")
    own, peer = statistics.median(ours), statistics.median(theirs)
    heartbeat, join, operation = timeouts
    print_rows([row("kill-worker", "pause_ratio_to_torchft", own / peer, "x", "less", None, None,
                    f"measured; worker speeds emulated; medians of {len(ours)} kills each, in turns: {own:.3f} s and {peer:.3f} s (99th "
                    f"percentiles {percentile(ours, 0.99):.3f} s and {percentile(theirs, 0.99):.3f} s); torchft's time-outs: {heartbeat} s "
                    f"without heartbeat, {join} s to join, {operation} s for gloo; it throws the step and the lost worker's samples away; "
                    "goal 0.4")])


if __name__ == "__main__":
    main()
