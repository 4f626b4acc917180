#!/usr/bin/env python3
"""Counts the single tests of a ctest run: prints "PASSED FAILED SKIPPED", and then of each test that failed its name and the
last lines of what it said. Names on standard error those that were skipped.

    count_tests.py JUNIT_FILE RESULTS_FOLDER

ctest's entries are whole programs and classes. RESULTS_FOLDER has a file NAME.xml of the tests in each; an entry without
one counts as a single test, and one that failed although none of its tests did (it crashed, or ran out of time) as one
that failed.
"""
import pathlib
import sys
import xml.etree.ElementTree as tree


LINES = 15  # of what a failed test said


def outcome(case):
    if case.find("failure") is not None or case.get("status") == "fail":
        return "failed"
    if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
        return "skipped"
    return "passed"


def said(case):
    lines = [line for part in case for line in (part.text or part.get("message") or "").splitlines() if line.strip()]
    return lines[-LINES:]


def tests(entry, folder):
    """The names and outcomes of an entry's tests, and what the failed ones said."""
    name = entry.get("name")
    file = folder / f"{name}.xml"
    found = []
    if file.exists():
        found = [(f"{case.get('classname')}.{case.get('name')}", outcome(case), said(case))
                 for case in tree.parse(file).iter("testcase")]
        if not found:
            return [(name, "failed", ["its filter, or its program, has no test"])]
    whole = outcome(entry)
    if not found or (whole == "failed" and all(each != "failed" for _, each, _ in found)):
        found.append((name, whole, said(entry)))
    return found


def main(junit, folder):
    count = {"passed": 0, "failed": 0, "skipped": 0}
    failures = []
    for entry in tree.parse(junit).getroot().iter("testcase"):
        for name, each, words in tests(entry, pathlib.Path(folder)):
            count[each] += 1
            if each == "skipped":
                print(f"  skipped: {name}", file=sys.stderr)
            elif each == "failed":
                failures += [name, *(f"    {line}" for line in words)]
    print(count["passed"], count["failed"], count["skipped"])
    print(*failures, sep="\n", end="\n" if failures else "")


if __name__ == "__main__":
    main(*sys.argv[1:])
