"""Faults of a parameter server of an elastic job, at named points of the workers' steps and at any time: the demo's network on four workers
of unequal emulated speeds, and two servers over TCP that keep each other's state.

    elastic_servers.py [--quick] [--rounds N] [--seed N]

A job loses one server, with whatever was in its memory, and goes on with the other one until the epoch's end, where it is audited. The
pause is read off the job's own metrics: the step around the loss, less the median of the steps before it.
"""
import itertools
import random
import signal
import statistics
import time

from elastic_faults import AFTER, BEFORE, POINTS, survivors_recomputed
from elastic_job import EXAMPLES, Job, NotRecovered, Servers, count_audits, lost_or_doubled, percentile, step_seconds
from rows import print_rows, read_flags, row, say

PACES = [0.0008, 0.0008, 0.0016, 0.0032]  # speeds 1, 1, 1/2, 1/4: as many steps a second as two slow cores can emulate, an epoch a fault
ROUNDS = 20  # of each point
SOURCE = "measured; worker speeds 1, 1, 1/2, 1/4 emulated; two servers on the workers' machine, over TCP, replicated; "


def strike(job, server, point, how, choose):
    """Lets the fault happen to this process."""
    if point == "any time":
        time.sleep(choose.random() * statistics.median(line["step_seconds"] for line in job.steps()[-BEFORE:]))
        server.send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        return
    rank = choose.randrange(job.size)
    if point == "joining":
        steps = len(job.steps())
        job.signal(rank, signal.SIGKILL)
        job.wait("the others go on", lambda: len(job.steps()) > steps and rank not in job.present())
    job.request(rank, point, f"{how} {server.pid}")
    job.wait(f"a worker comes to {point}", lambda: job.is_met(rank, point))


def lost_server(job):
    """The step after which the job has gone on without a server; None: it has not."""
    return next((line["step"] for line in job.lines() if line.get("event") == "server-lost"), None)


def run_job(point, how, choose):
    """Of one fault: the pause in seconds, samples lost or doubled, and samples that survivors have computed twice."""
    with Servers() as servers:
        job = Job(EXAMPLES / "demo/job.yaml", PACES, "--elastic", "1:4", "--replacements", 3, *servers.flags,
                  "--gradient-sync.replication", "on", "--gradient-sync.bucket-size", "64KiB", "--checkpoint.every-steps", 10,
                  "--baseline.every", 0, "--epochs", 100)
        try:
            job.wait_for_all()
            job.wait_for_steps(3 * BEFORE)
            strike(job, choose.choice(servers.processes), point, how, choose)
            job.wait(f"{how} at {point}: a server is lost", lambda: lost_server(job) is not None)
            job.wait_for_all()
            job.wait_for_steps(AFTER)
            job.wait("the epoch's end", lambda: count_audits(job) > 0, 300)
            if (code := job.stop()) not in (0, 130):
                raise NotRecovered(f"it ended with {code}")
            lines = job.reread()
            seconds, lost = step_seconds(lines), lost_server(job)
            usual = statistics.median(seconds[step] for step in range(lost - BEFORE + 1, lost + 1))
            return seconds[lost + 1] - usual, lost_or_doubled(lines), survivors_recomputed(job)
        finally:
            job.close()


def main():
    flags = read_flags(__doc__, seed={"type": int, "default": random.randrange(1 << 30), "help": "of which faults happen when"},
                       rounds={"type": int, "default": ROUNDS, "help": "faults at each point"})
    choose = random.Random(flags.seed)
    faults = [(point, "stop" if (turn + number) % 4 == 3 else "kill")
              for turn, (number, point) in itertools.product(range(1 if flags.quick else flags.rounds), enumerate(POINTS))]
    say(f"elastic: seed {flags.seed}, {len(faults)} faults of servers")
    pauses, lost, recomputed, unrecovered = [], 0, 0, 0
    for number, (point, how) in enumerate(faults, 1):
        try:
            pause, twice, again = run_job(point, how, choose)
        except NotRecovered as problem:
            unrecovered += 1
            say(f"elastic: {problem}")
            continue
        lost += twice
        recomputed += again
        if how == "kill" and point != "joining":
            pauses.append(pause)
        say(f"elastic: server {number} of {len(faults)}: {how} at {point}: {pause:.3f} s")
    note = f"{SOURCE}{len(faults)} faults, each in a job of its own, seed {flags.seed}"
    print_rows([
        row("kill-server", "pause_p99_seconds", percentile(pauses, 0.99), "s", "less", 1.0, None,
            f"{SOURCE}SIGKILL, {len(pauses)} faults, median {statistics.median(pauses):.3f} s"),
        row("server-faults", "samples_lost_or_doubled", lost, "samples", "less", 0, 0, f"{note}; audited at the epoch's end"),
        row("server-faults", "survivor_samples_recomputed", recomputed, "samples", "less", 0, 0, note),
        row("server-faults", "unrecovered", unrecovered, "jobs", "less", 0, 0, note),
    ])


if __name__ == "__main__":
    main()
