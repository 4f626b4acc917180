"""Two ranks, each on a processor of its own, one of which a busy loop shares: that rank is half as fast. Nothing is emulated.

    pinned.py [--quick]          measures
    pinned.py SCRIPT ARGUMENT... a rank: runs the script on the processor of its number
"""
import os
import runpy
import subprocess
import sys

from rows import SCRIPTS, last_step_ms, print_rows, ratio_of_medians, read_flags, row, run, say

BATCH = 512  # of both ranks: of smaller ones the optimizer and the synchronisation, which no split changes, are a larger part


def measure(quick):
    processors = sorted(os.sched_getaffinity(0))[:2]
    if len(processors) < 2:
        raise SystemExit("two processors are needed")
    pairs = []
    busy = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{processors[1]}])\nwhile True: pass"])
    try:
        for _ in range(1 if quick else 5):
            plain, mixed = (last_step_ms(run(["motley", "launch", "--workers", 2, __file__, SCRIPTS / script, "--steps", 100,
                                              "--global-batch-size", BATCH])) for script in ("plain.py", "mixed.py"))
            say(f"python: a busy loop on one of two processors: {plain:.1f} ms a step, with three lines {mixed:.1f} ms")
            pairs.append((plain, mixed))
    finally:
        busy.kill()
        busy.wait()
    print_rows([row("ddp-pinned", "step_speedup_over_ddp", ratio_of_medians(pairs), "x", "more", 1.4, 1.5,
                    f"measured; a busy loop holds half of one of two processors; batches of {BATCH}")])


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
