"""What it costs to be ready for losses that do not come: the demo's network on two workers as they are, with --elastic and without it.
Both jobs of a pair live at the same time and run in turns of a quarter of a second, in which the other is stopped, so that a machine that
becomes slower or faster does so for both; each pair starts both anew, as where a process happens to lie in memory counts as much as what
is measured. With two servers, which keep each other's state, the limit is the step without it and the time that the copies take on the
wire.

    elastic_membership.py [--quick]
"""
import contextlib
import math
import os
import pathlib
import signal
import socket
import statistics
import threading
import time

from elastic_job import EXAMPLES, Job, Servers
from rows import print_rows, read_flags, row, say

TURN = 0.25  # seconds that a job runs while the other is stopped: less than the silence after which a worker is lost
TURNS = 20  # of each job of a pair
WARM = 20  # steps of a job before its first turn
PARAMETERS = 162_282  # of the demo's network
COPIED = 2 * 4 * PARAMETERS  # bytes a step that servers send each other: float32 weights and momentum
# By the number of pairs: standard errors on either side of the mean within which it is in 95 of 100 cases, as Student's t has it.
CONFIDENCE = {3: 4.303, 30: 2.045}


def signal_all(job, number):
    """To the job's launcher and its ranks."""
    ranks = pathlib.Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text().split()
    for process in (job.process.pid, *map(int, ranks)):
        os.kill(process, number)


def run_in_turns(jobs):
    """The median step of each job, seconds, of those that they did in their turns."""
    for job in jobs:
        job.wait_for_steps(WARM)
    try:
        for job in jobs:
            signal_all(job, signal.SIGSTOP)
        before = [len(job.steps()) for job in jobs]
        for _ in range(TURNS):
            for job in jobs:
                signal_all(job, signal.SIGCONT)
                time.sleep(TURN)
                signal_all(job, signal.SIGSTOP)
        after = [len(job.steps()) for job in jobs]
    finally:
        for job in jobs:
            signal_all(job, signal.SIGCONT)
    for job in jobs:
        if (code := job.stop()) not in (0, 130):
            raise SystemExit(f"elastic: a run without faults ended with {code}")
    return [statistics.median(line["step_seconds"] for line in job.steps()[start:end]) for job, start, end in zip(jobs, before, after)]


def measure_pair(method, flags):
    """The median steps of a job with each of these flags."""
    with contextlib.ExitStack() as stack:
        jobs = []
        for own in flags:
            shared = (stack.enter_context(Servers()).flags if method == "parameter-server" else ("--gradient-sync.method", method))
            jobs.append(Job(EXAMPLES / "demo/job.yaml", [None, None], "--baseline.every", 0, "--batch-split.mode", "equal",
                            "--epochs", 1000, "--checkpoint.keep", 0, *shared, *own, faults=False))
            stack.callback(jobs[-1].close)
        return run_in_turns(jobs)


def measure(method, pairs, elastic):
    """Elastic over plain, with the upper end of its interval, and the plain step's seconds. `elastic`: its flags."""
    ratios, plain = [], []
    for pair in range(pairs):
        first = pair % 2  # which of the two is started first and has the first turn
        flags = ((), elastic) if first else (elastic, ())
        steps = measure_pair(method, flags)
        ratios.append(math.log(steps[first] / steps[1 - first]))
        plain.append(steps[1 - first])
        say(f"elastic: {method}: {1e3 * steps[first]:.2f} ms a step, not elastic {1e3 * plain[-1]:.2f} ms")
    mean = statistics.fmean(ratios)
    error = CONFIDENCE[pairs] * statistics.stdev(ratios) / math.sqrt(pairs)
    note = f"mean {math.exp(mean):.4f}, 95 % interval of {pairs} pairs {math.exp(mean - error):.4f} to {math.exp(mean + error):.4f}"
    return math.exp(mean + error), note, statistics.median(plain)


def copy_seconds():
    """The median time of as many bytes as the servers send each other in a step, over TCP on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sender:
        receiver, _ = listener.accept()

        def answer():
            with receiver:
                while receiver.recv(COPIED, socket.MSG_WAITALL):
                    receiver.sendall(b"1")
        thread = threading.Thread(target=answer)
        thread.start()
        times = []
        for _ in range(50):
            begin = time.monotonic()
            sender.sendall(bytes(COPIED))
            sender.recv(1)
            times.append(time.monotonic() - begin)
        sender.shutdown(socket.SHUT_WR)
        thread.join()
    return statistics.median(times)


def main():
    quick = read_flags(__doc__).quick
    note = "measured; two workers, not emulated, step with --elastic over without, upper end of the interval; "
    elastic, pairs = ("--elastic", "1:2"), 3 if quick else 30
    rows = []
    for case, method in (("equal-membership-shm", "shared-memory"), ("equal-membership-ring", "tcp-ring")):
        overhead, interval, _ = measure(method, pairs, elastic)
        rows.append(row(case, "overhead", overhead, "", "less", 1.01, 1.0, note + interval))
    replicated = (*elastic, "--gradient-sync.replication", "on")
    overhead, interval, plain = measure("parameter-server", pairs, replicated)
    limit = 1 + copy_seconds() / plain
    rows.append(row("equal-membership-server-replicated", "overhead", overhead, "", "less", None, limit,
                    f"{note}{interval}; two servers beside them, over TCP; limit: {COPIED / 1e6:.1f} MB more a step on the wire"))
    print_rows(rows)


if __name__ == "__main__":
    main()
