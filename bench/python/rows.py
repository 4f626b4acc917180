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
DEADLINE = 600  # seconds of a run


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


def run(command, **variables):
    """What a run of ranks printed; its errors go where ours go."""
    done = subprocess.run([sys.executable, "-m", *map(str, command)], env=os.environ | variables, stdout=subprocess.PIPE, text=True,
                          timeout=DEADLINE, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}")
    return done.stdout


def last_step_ms(output):
    """The median step of the last 20, as the examples print it."""
    return float(re.findall(r"([0-9.]+) ms a step", output)[-1])


def ratio_of_medians(pairs):
    """How many times as long the first of each pair took as the second; each pair was run one after the other."""
    return statistics.median(first / second for first, second in pairs)
