"""What it costs to be ready for losses that do not come: the demo's network on two workers as they are, with --elastic and without it, in
turns.

    elastic_membership.py [--quick]
"""
import math
import statistics

from elastic_job import EXAMPLES, Job
from rows import print_rows, read_flags, row, say

STEPS, WARM = 120, 20  # of a run, and of these those that do not count
CONFIDENCE = 1.96  # standard errors on either side of the mean within which it is in 95 of 100 cases


def median_step(method, *flags):
    job = Job(EXAMPLES / "demo/job.yaml", [None, None], "--gradient-sync.method", method, "--baseline.every", 0, "--batch-split.mode",
              "equal", "--steps", STEPS, "--checkpoint.keep", 0, *flags)
    try:
        if code := job.process.wait(300):
            raise SystemExit(f"elastic: a run without faults ended with {code}")
        return statistics.median(line["step_seconds"] for line in job.steps() if line["step"] > WARM)
    finally:
        job.close()


def measure(method, pairs):
    ratios = []
    for pair in range(pairs):
        kinds = {"elastic": ("--elastic", "1:2"), "plain": ()}
        order = kinds if pair % 2 else reversed(kinds)
        seconds = {kind: median_step(method, *kinds[kind]) for kind in order}
        ratios.append(math.log(seconds["elastic"] / seconds["plain"]))
        say(f"elastic: {method}: {1e3 * seconds['elastic']:.2f} ms a step, not elastic {1e3 * seconds['plain']:.2f} ms")
    mean = statistics.fmean(ratios)
    error = CONFIDENCE * statistics.stdev(ratios) / math.sqrt(pairs)
    return math.exp(mean + error), f"mean {math.exp(mean):.4f}, 95 % interval of {pairs} pairs {math.exp(mean - error):.4f} to " \
        f"{math.exp(mean + error):.4f}"


def main():
    pairs = 3 if read_flags(__doc__).quick else 30
    rows = []
    for case, method in (("equal-membership-shm", "shared-memory"), ("equal-membership-ring", "tcp-ring")):
        overhead, note = measure(method, pairs)
        rows.append(row(case, "overhead", overhead, "", "less", 1.01, 1.0,
                        f"measured; two workers, not emulated, step with --elastic over without, upper end of the interval; {note}"))
    print_rows(rows)


if __name__ == "__main__":
    main()
