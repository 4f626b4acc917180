"""Faults of an elastic job, at named points and at any time: the demo's network on four workers of unequal emulated speeds, whose lost
workers are replaced.

    elastic_faults.py [--quick] [--seed N]

Every job is audited at the end of each epoch and runs until its faults have happened. A fault is recovered from once all four workers have
samples again. What a fault costs is read off the job's own metrics: the time between the two steps around it, less the median of the
steps before it. So what its survivors compute in the lost worker's place is part of the pause.
"""
import itertools
import random
import re
import signal
import statistics
import time
from typing import NamedTuple

from elastic_job import EXAMPLES, Job, NotRecovered, count_audits, lost_or_doubled, percentile, step_seconds
from rows import print_rows, read_flags, row, say

PACES = [0.001, 0.001, 0.002, 0.004]  # of examples/demo/cluster.yaml
METHODS = ("shared-memory", "tcp-ring")
POINTS = ("forward", "gradient-synchronisation", "between-buckets", "gathering-times", "checkpoint", "joining", "any time")
ROUNDS = 20  # of each point, of rank 0 and of another worker
BEFORE, AFTER = 8, 20  # steps whose median is a step without faults, and that are watched after an entry
FAULTS_PER_JOB = 70
SOURCE = "measured; worker speeds 1, 1, 1/2, 1/4 emulated; "


class Fault(NamedTuple):
    rank: int
    point: str
    how: str  # kill or stop


class Cost(NamedTuple):
    """Of a fault that is neither in a join nor beside another one; times in seconds, steps in median steps."""
    fault: Fault
    pause: float
    stall: float | None  # of the others by the join that followed, in median steps of as many workers


def list_faults(rounds, choose):
    faults = [Fault(choose.randint(1, 3) if is_other else 0, point, "stop" if (turn + number + is_other) % 4 == 3 else "kill")
              for turn, (number, point), is_other in itertools.product(range(rounds), enumerate(POINTS), (0, 1))]
    choose.shuffle(faults)
    return faults


def strike(job, fault, choose):
    """Lets a fault happen."""
    if fault.point == "any time":
        median = statistics.median(line["step_seconds"] for line in job.steps()[-BEFORE:])
        time.sleep(choose.random() * median)
        job.signal(fault.rank, signal.SIGKILL if fault.how == "kill" else signal.SIGSTOP)
        return
    if fault.point != "joining":
        job.request(fault.rank, fault.point, fault.how)
        job.wait(f"{fault} happens", lambda: job.is_met(fault.rank, fault.point))
        return
    # One is lost first: the fault is the newcomer's in its place, or rank 0's while another one joins.
    lost = fault.rank or choose.randint(1, 3)
    steps = len(job.steps())
    job.signal(lost, signal.SIGKILL)
    job.wait("the others go on", lambda: len(job.steps()) > steps and lost not in job.present())
    point = "regrouping" if fault.rank == 0 else "joining"
    job.request(fault.rank, point, fault.how)
    job.wait(f"{fault} happens", lambda: job.is_met(fault.rank, point))


def read_cost(job, fault, first):
    """Of the fault after step `first`; None where there was more than one."""
    lines, seconds = job.lines(), step_seconds(job.lines())
    changes = [(line["step"], line["text"]) for line in lines if line.get("event") in ("lost", "joined") and line["step"] >= first]
    if [bool(re.search("has joined", text)) for _, text in changes] != [False, True]:
        return None
    (lost, _), (joined, _) = changes
    usual = statistics.median(seconds[step] for step in range(first - BEFORE + 1, first + 1))
    ranks = {line["step"]: [rank for rank, samples in enumerate(line["samples"]) if samples] for line in lines if "loss" in line}
    alike = {}  # seconds of steps by the ranks that take them, those of the first step of each group aside
    for step in seconds:
        if ranks[step] == ranks.get(step - 1):
            alike.setdefault(tuple(ranks[step]), []).append(seconds[step])
    medians = {group: statistics.median(times) for group, times in alike.items() if len(times) >= BEFORE}
    watched = [*range(lost + 2, joined + 1), *range(joined + 1, joined + 1 + AFTER)]
    stall = None
    if joined > lost + 1 and all(step in seconds and tuple(ranks[step]) in medians for step in watched):
        stall = sum(seconds[step] - medians[tuple(ranks[step])] for step in watched) / medians[tuple(ranks[joined])]
    return Cost(fault, seconds[lost + 1] - usual, stall)


def survivors_recomputed(job):
    """Samples that those who were there at the end have computed, less those that count, which the metrics have."""
    lines, count = job.lines(), 0
    for rank in range(job.size):
        entered = [line["step"] for line in lines if re.search(rf"\brank(s .*)? {rank}\b.* ha(s|ve) joined", line.get("text", ""))]
        counted = sum(line["samples"][rank] for line in lines if "loss" in line and line["step"] > max(entered, default=0))
        computed = re.findall(r"this worker has computed (\d+) samples", (job.run / f"logs/rank-{rank}.log").read_text())
        if computed:
            count += abs(int(computed[-1]) - counted)
    return count


def start_job(method):
    return Job(EXAMPLES / "demo/job.yaml", PACES, "--elastic", "1:4", "--replacements", 100000, "--gradient-sync.method", method,
               "--gradient-sync.bucket-size", "64KiB", "--checkpoint.every-steps", 10, "--baseline.every", 0, "--epochs", 100)


class Campaign:
    """Jobs until all faults have happened, and what came of them."""

    def __init__(self, faults, choose):
        self.faults, self.choose = faults, choose
        self.costs: list[Cost] = []
        self.jobs = self.lost = self.recomputed = self.unrecovered = 0

    def run(self):
        while self.faults:
            method = METHODS[self.jobs % 2]
            self.jobs += 1
            job = start_job(method)
            try:
                self.run_job(job)
            except NotRecovered as problem:
                self.unrecovered += 1
                say(f"elastic: {method}: {problem}")
            finally:
                job.close()
            say(f"elastic: {method}: {len(self.costs)} pauses so far, {len(self.faults)} faults to come")

    def run_job(self, job):
        job.wait_for_all()
        job.wait_for_steps(3 * BEFORE)
        for _ in range(min(FAULTS_PER_JOB, len(self.faults))):
            first = job.steps()[-1]["step"]
            fault = self.faults.pop()
            strike(job, fault, self.choose)
            job.wait(f"{fault}: a worker is lost", lambda: len(job.present()) < job.size)
            job.wait_for_all()
            job.wait_for_steps(AFTER)
            if cost := read_cost(job, fault, first):
                self.costs.append(cost)
        audited = count_audits(job)
        job.wait("the epoch's end", lambda: count_audits(job) > audited, 300)
        if (code := job.stop()) not in (0, 130):
            raise NotRecovered(f"it ended with {code}")
        self.lost += lost_or_doubled(job.reread())
        self.recomputed += survivors_recomputed(job)


def pause_row(case, target, costs, note):
    pauses = [cost.pause for cost in costs]
    say(f"elastic: {case}: {', '.join(f'{pause:.3f}' for pause in sorted(pauses))} s")
    return row(case, "pause_p99_seconds", percentile(pauses, 0.99), "s", "less", target, None,
               f"{SOURCE}{len(pauses)} faults, median {statistics.median(pauses):.3f} s; {note}")


def main():
    flags = read_flags(__doc__, seed={"type": int, "default": random.randrange(1 << 30), "help": "of which faults happen when"})
    say(f"elastic: seed {flags.seed}")
    choose = random.Random(flags.seed)
    faults = list_faults(1 if flags.quick else ROUNDS, choose)
    count = len(faults)
    done = Campaign(faults, choose)
    done.run()
    costs = done.costs
    note = f"{SOURCE}{count} faults in {done.jobs} jobs, of rank 0 and of others, seed {flags.seed}"
    stalls = [cost.stall for cost in costs if cost.stall is not None]
    alone = [cost for cost in costs if cost.fault.point != "joining"]  # what a join costs is in a row of its own
    killed = [cost for cost in alone if cost.fault.how == "kill"]
    print_rows([
        row("200-faults", "samples_lost_or_doubled", done.lost, "samples", "less", 0, 0, f"{note}; audited at each epoch's end"),
        row("200-faults", "survivor_samples_recomputed", done.recomputed, "samples", "less", 0, 0,
            f"{note}; forward passes, counted in the processes that were there at the end"),
        row("200-faults", "unrecovered", done.unrecovered, "jobs", "less", 0, 0, note),
        pause_row("kill-worker", 0.3, [cost for cost in killed if cost.fault.rank], "SIGKILL"),
        pause_row("kill-coordinator", 0.6, [cost for cost in killed if not cost.fault.rank], "SIGKILL of rank 0"),
        pause_row("stop-worker", 2.0, [cost for cost in alone if cost.fault.how == "stop"], "SIGSTOP; lost after 1 s of silence"),
        row("join", "others_stall_steps", statistics.median(stalls), "steps", "less", 1.0, None,
            f"{SOURCE}median of {len(stalls)} joins, worst {max(stalls):.2f}; excess over the median step of the same workers, "
            f"from the loss to {AFTER} steps after the entry"),
    ])


if __name__ == "__main__":
    main()
