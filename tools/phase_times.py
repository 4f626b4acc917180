#!/usr/bin/env python3
"""Adds the times of a run's phases to a file of runs (see tools/phases.sh, which calls this).

    phase_times.py FILE MODE FIRST LOAD FAILED <"BEGIN<tab>END<tab>NAME" lines

A run that was the first of its folder is named by what the compiler cache knew: MODE-cold, MODE-warm, or MODE-mixed.
"""
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys


def git(*words):
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()


def cache():
    """How many files were compiled, and of how many of them the compiler cache knew the result."""
    log = pathlib.Path(os.environ.get("CCACHE_STATSLOG", ""))
    counters = log.read_text().split("\n") if log.is_file() else []
    hits = sum(line in ("direct_cache_hit", "preprocessed_cache_hit") for line in counters)
    misses = counters.count("cache_miss")
    share = hits / (hits + misses) if hits + misses else None
    state = "unused" if share is None else "warm" if share >= 0.9 else "cold" if share <= 0.1 else "mixed"
    return {"state": state, "hits": hits, "misses": misses, "hit_share": share}


def machine(load):
    models = re.findall(r"(?m)^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {"processors": len(os.sched_getaffinity(0)), "processor": models[0] if models else platform.machine(),
            "memory_gigabytes": round(memory, 1), "load_at_start": float(load)}


def main(file, mode, first, load, failed):
    phases = [line.rstrip("\n").split("\t") for line in sys.stdin]
    run = {"commit": git("rev-parse", "HEAD"), "changed": git("status", "--porcelain", "--untracked-files=no") != "",
           "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "machine": machine(load),
           "cache": cache(), "failed": int(failed), "seconds": round(sum(float(end) - float(begin) for begin, end, _ in phases), 1),
           "phases": [{"name": name, "seconds": round(float(end) - float(begin), 1)} for begin, end, name in phases]}
    name = f"{mode}-{run['cache']['state']}" if first == "yes" else mode
    path = pathlib.Path(file)
    runs = json.loads(path.read_text()) if path.exists() else {}
    runs[name] = run
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(runs, indent=1) + "\n")
    aside.rename(path)
    for part in run["phases"]:
        print(f"{part['seconds']:8.1f} s  {part['name']}")
    print(f"{run['seconds']:8.1f} s  in all ({name}; compiler cache {run['cache']['state']}: "
          f"{run['cache']['hits']} of {run['cache']['hits'] + run['cache']['misses']} files); kept in {file}")


if __name__ == "__main__":
    main(*sys.argv[1:])
