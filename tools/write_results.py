#!/usr/bin/env python3
"""Prints docs/results.md from a folder of benchmark rows (NAME.json each) and machine.txt.

Benchmarks without a file there keep the section that the document has now.
"""
import datetime
import json
import pathlib
import subprocess
import sys


def figure(value):
    return "–" if value is None else f"{value:.4g}"


def verdict(row):
    if row["target"] is None:
        return ""
    met = row["value"] >= row["target"] if row["better"] == "more" else row["value"] <= row["target"]
    return "yes" if met else "**no**"


def section_of(rows):
    lines = ["| case | metric | value | unit | better | target | met | limit | peer | note |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = [row["case"], row["metric"], figure(row["value"]), row["unit"], row["better"], figure(row["target"]),
                 verdict(row), figure(row["limit"]), figure(row["peer"]), row.get("note") or ""]
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


folder = pathlib.Path(sys.argv[1])
commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True).stdout.strip()
print("# Results\n")
print("Written by `tools/bench` from the newest rows of each benchmark, which may be of different runs; do not edit. *Target* is what we hold ourselves to, *limit* the physical or mathematical")
print("bound and *peer* the compared system's value, both from the same run.\n")
print(f"Date: {datetime.date.today()}. Commit: {commit}. Machine:\n")
print("```\n" + (folder / "machine.txt").read_text().rstrip() + "\n```")
document = pathlib.Path(__file__).parent.parent / "docs/results.md"
sections = {}
for text in document.read_text().split("\n## ")[1:] if document.exists() else []:
    name, section = text.split("\n\n", 1)
    sections[name] = section.rstrip("\n") + "\n"
sections.update((file.stem, section_of(json.loads(file.read_text()))) for file in folder.glob("*.json"))
for name, section in sorted(sections.items()):
    print(f"\n## {name}\n\n{section}", end="")
