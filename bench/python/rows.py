"""Rows as motley-bench reads them, and the scripts that are timed."""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
DEADLINE = 1800  # seconds of a run, also on a slow machine
# Lets malloc keep what a step frees and the next one needs again, as motley.DataLoader does: the system would zero it anew.
KEEPS_FREED = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_MAX_": "0"}


def row(case, metric, value, unit, better, target, limit=None, note="", peer=None):
    return {"case": case, "metric": metric, "value": value, "unit": unit, "better": better, "target": target, "limit": limit,
            "peer": peer, "note": note}


def print_rows(rows):
    print(json.dumps(rows))


def read_flags(text, **others):
    """What is typed after the name of a script, of which `text` is what it says of itself: --quick, and others as argparse has them."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no rows that are marked long")
    for name, settings in others.items():
        parser.add_argument(f"--{name}", **settings)
    return parser.parse_args()


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(command, deadline=DEADLINE, **variables):
    """What a run of ranks printed; its errors go where ours go."""
    done = subprocess.run([sys.executable, "-m", *map(str, command)], env=os.environ | variables, stdout=subprocess.PIPE, text=True,
                          timeout=deadline, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}")
    return done.stdout


def run_on_ranks(text, file, be_rank, workers, **variables):
    """The whole of a script that starts ranks of itself, of which `text` is what it says of itself: each calls be_rank(quick), and what
    they print is what it prints."""
    quick = read_flags(text).quick
    if "RANK" in os.environ:
        be_rank(quick)
    else:
        print(run(["motley", "launch", "--workers", workers, file, *sys.argv[1:]], **variables), end="")


def last_step_ms(output):
    """The median step of the last 20, as the examples print it."""
    return float(re.findall(r"([0-9.]+) ms a step", output)[-1])


def median_ratio(times, index=0):
    """How many times as long the run of this index took as the last one, of runs made one after the other, in several rounds."""
    return statistics.median(each[index] / each[-1] for each in times)


def compare_scripts(command, arguments, steps, rounds, what):
    """Milliseconds of a step of the script without the three lines, of the same where malloc keeps what is freed, and of the script with
    them, in turns. A split is found in some steps, so the last script runs longer."""
    times = []
    for _ in range(rounds):
        plain, keeping, mixed = (last_step_ms(run([*command, SCRIPTS / script, "--steps", count, *arguments], **variables))
                                 for script, count, variables in (("plain.py", steps // 2, {}), ("plain.py", steps // 2, KEEPS_FREED),
                                                                  ("mixed.py", steps, {})))
        say(f"python: {what}: {plain:.1f} ms a step, where malloc keeps what is freed {keeping:.1f} ms, with three lines {mixed:.1f} ms")
        times.append((plain, keeping, mixed))
    return times


def describe_malloc(times):
    """Of what compare_scripts() gave, what a row says of the speedup that is not the split's."""
    return ("malloc keeps what is freed in both scripts, as the loader lets it; over the plain script as it is "
            f"{median_ratio(times):.2f}")
