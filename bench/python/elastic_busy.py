"""A busy machine puts nobody out: an elastic job beside eight busy loops.

    elastic_busy.py [--quick]
"""
import os
import subprocess
import sys
import time

from elastic_job import EXAMPLES, Job, NotRecovered
from rows import print_rows, read_flags, row, say

LOAD = 8  # busy loops
MINUTES = 30


def main():
    seconds = 20 if read_flags(__doc__).quick else 60 * MINUTES
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOAD)]
    job = Job(EXAMPLES / "demo/job.yaml", [None] * 4, "--elastic", "1:4", "--baseline.every", 0, "--epochs", 1000)
    try:
        job.wait_for_all()
        began, loads = time.monotonic(), []
        while time.monotonic() - began < seconds:
            job.wait_for_steps(1)
            loads.append(os.getloadavg()[0])
        evicted = [line["text"] for line in job.lines() if line.get("event") == "lost"]
        steps = len(job.steps())
    except NotRecovered as problem:
        raise SystemExit(f"elastic: {problem}") from None
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
        job.stop()
        job.close()
    for text in evicted:
        say(f"elastic: {text}")
    print_rows([row("busy-machine", "false_evictions", len(evicted), "workers", "less", 0, 0,
                    f"measured; four workers beside {LOAD} busy loops, {seconds / 60:.3g} minutes, {steps} steps, load up to "
                    f"{max(loads):.1f}")])


if __name__ == "__main__":
    main()
