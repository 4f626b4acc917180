"""What it costs to be ready for losses that do not come: the demo's network on two workers as they are, with --elastic and without it, in
short runs and groups of four, plain, elastic, elastic, plain or the other way round, in which a machine that becomes slower or faster
cancels out. A group whose two runs of a kind differ by more than a twentieth was disturbed, and is left out, whatever it says of the other
kind. With two servers, which keep each other's state, the limit is the step without it and the time that the copies take on the
wire.

    elastic_membership.py [--quick]
"""
import contextlib
import math
import socket
import statistics
import threading
import time

from elastic_job import EXAMPLES, Job, Servers
from rows import print_rows, read_flags, row, say

STEPS, WARM = 180, 20  # of a run, and of these those that do not count
DISTURBED = 0.05  # that two runs of a kind differ by, in a group that does not count
PARAMETERS = 162_282  # of the demo's network
COPIED = 2 * 4 * PARAMETERS  # bytes a step that servers send each other: float32 weights and momentum
# By the number of groups: standard errors on either side of the mean within which it is in 95 of 100 cases, as Student's t has it.
CONFIDENCE = {3: 4.303, 24: 2.069, 60: 2.001}


def median_step(*flags):
    job = Job(EXAMPLES / "demo/job.yaml", [None, None], "--baseline.every", 0, "--batch-split.mode", "equal", "--steps", STEPS,
              "--checkpoint.keep", 0, *flags, faults=False)
    try:
        if code := job.process.wait(300):
            raise SystemExit(f"elastic: a run without faults ended with {code}")
        return statistics.median(line["step_seconds"] for line in job.steps() if line["step"] > WARM)
    finally:
        job.close()


def measure(method, groups, **kinds):
    """Elastic over plain, with the upper end of its interval, and the plain step's seconds. `kinds`: the flags of both."""
    ratios, plain, disturbed = [], [], 0
    while len(ratios) < groups:
        group = len(ratios) + disturbed
        if group == 4 * groups:
            raise SystemExit(f"elastic: {method}: {disturbed} of {group} groups were disturbed: the machine is not idle")
        seconds = {kind: [] for kind in kinds}
        outer, inner = kinds if group % 2 else reversed(kinds)
        for kind in (outer, inner, inner, outer):
            with Servers() if method == "parameter-server" else contextlib.nullcontext() as servers:
                seconds[kind].append(median_step(*(servers.flags if servers else ("--gradient-sync.method", method)), *kinds[kind]))
        if any(math.log(max(both) / min(both)) > DISTURBED for both in seconds.values()):
            disturbed += 1
            continue
        means = {kind: statistics.geometric_mean(both) for kind, both in seconds.items()}
        ratios.append(math.log(means["elastic"] / means["plain"]))
        plain.append(means["plain"])
        say(f"elastic: {method}: {1e3 * means['elastic']:.2f} ms a step, not elastic {1e3 * means['plain']:.2f} ms")
    mean = statistics.fmean(ratios)
    error = CONFIDENCE[groups] * statistics.stdev(ratios) / math.sqrt(groups)
    note = (f"mean {math.exp(mean):.4f}, 95 % interval of {groups} groups of four runs "
            f"{math.exp(mean - error):.4f} to {math.exp(mean + error):.4f}; {disturbed} more were disturbed")
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
    elastic = ("--elastic", "1:2")
    rows = []
    for case, method in (("equal-membership-shm", "shared-memory"), ("equal-membership-ring", "tcp-ring")):
        overhead, interval, _ = measure(method, 3 if quick else 60, elastic=elastic, plain=())
        rows.append(row(case, "overhead", overhead, "", "less", 1.01, 1.0, note + interval))
    replicated = (*elastic, "--gradient-sync.replication", "on")
    overhead, interval, plain = measure("parameter-server", 3 if quick else 24, elastic=replicated, plain=())
    limit = 1 + copy_seconds() / plain
    rows.append(row("equal-membership-server-replicated", "overhead", overhead, "", "less", None, limit,
                    f"{note}{interval}; two servers beside them, over TCP; limit: {COPIED / 1e6:.1f} MB more a step on the wire"))
    print_rows(rows)


if __name__ == "__main__":
    main()
