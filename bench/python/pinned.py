"""Two ranks, each on a processor of its own, one of which a busy loop shares: that rank is half as fast. Nothing is emulated.

    pinned.py [--quick]          measures
    pinned.py SCRIPT ARGUMENT... a rank: runs the script on the processor of its number
"""
import os
import runpy
import subprocess
import sys

from rows import compare_scripts, describe_malloc, median_ratio, print_rows, read_flags, row

BATCH, CHANNELS = 512, 48  # of both ranks: steps must be long against the system's time slices and what no split changes


def measure(quick):
    processors = sorted(os.sched_getaffinity(0))[:2]
    if len(processors) < 2:
        raise SystemExit("two processors are needed")
    busy = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{processors[1]}])\nwhile True: pass"])
    try:
        times = compare_scripts(["motley", "launch", "--workers", 2, __file__], ["--global-batch-size", BATCH, "--channels", CHANNELS], 80,
                                1 if quick else 5, "a busy loop on one of two processors")
    finally:
        busy.kill()
        busy.wait()
    print_rows([row("ddp-pinned", "step_speedup_over_ddp", median_ratio(times, 1), "x", "more", 1.4, 1.5,
                    f"measured; a busy loop holds half of one of two processors; batches of {BATCH}, CNN of {CHANNELS} channels; "
                    f"{describe_malloc(times)}")])


def be_rank(words):
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [processors[int(os.environ["RANK"])]])
    sys.argv = words
    sys.path[0] = os.path.dirname(words[0])
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    if "RANK" in os.environ:
        be_rank(sys.argv[1:])
    else:
        measure(read_flags(__doc__).quick)
