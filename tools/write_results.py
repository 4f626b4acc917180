#!/usr/bin/env python3
"""Writes the measured figures: one page of tables per benchmark, and the page of headline figures with its charts.

    tools/write_results.py FOLDER    takes the rows in FOLDER (NAME.json each) and its machine.txt; a benchmark without a
                                     file there keeps the page that it has
    tools/write_results.py           only writes the headline page again, from the tables that are there

Every page of docs/results says which commit, date and machine its rows come from.
"""
import datetime
import html
import json
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLES = ROOT / "docs/results"
PAGE = ROOT / "docs/results.md"
COLUMNS = ["case", "metric", "value", "unit", "better", "target", "met", "limit", "peer", "note"]


class Bar(NamedTuple):
    """One bar of a chart: a row of a benchmark, and what the chart calls it."""
    label: str
    row: str  # "BENCH CASE METRIC"


class Figure(NamedTuple):
    """One headline figure: its chart, the sentence above it, and the command that prints its rows."""
    name: str
    title: str
    text: str
    command: str
    unit: str  # behind each value; "%" shows fractions as percent
    bars: list[Bar]


FIGURES = [
    Figure("batch-split", "A batch split by measured speed",
           "How many times as fast a training step is as with equal shares of the batch: four emulated workers at relative speeds "
           "1, 1, ½ and ¼ (the demo, measured in the run itself), and two simulated settings that are fitted to published measurements.",
           "tools/demo, motley-bench partition", "×",
           [Bar("demo: 1, 1, ½, ¼", "demo speeds-1-1-half-quarter step_speedup_over_equal"),
            Bar("simulated: P2 and P3", "partition simulated-p2-p3 speedup_over_equal"),
            Bar("simulated: ResNet-50, delays", "partition simulated-resnet50-delay speedup_over_equal")]),
    Figure("collectives", "All-reduce against Gloo",
           "Time of one all-reduce as a fraction of the time that Gloo, called from C++ with the fastest of its algorithms, takes on the same machine in turns with it; 1 is Gloo.",
           "motley-bench exchange", "×",
           [Bar("shared memory, 2 ranks, 46.8 MB", "exchange shm-N2-46.8MB ratio_to_gloo"),
            Bar("shared memory, 4 ranks, 46.8 MB", "exchange shm-N4-46.8MB ratio_to_gloo"),
            Bar("TCP, geometric mean", "exchange tcp-geomean ratio_to_gloo"),
            Bar("TCP, worst case", "exchange tcp-worst ratio_to_gloo")]),
    Figure("parameter-server", "The parameter server against DistributedDataParallel",
           "Steps of VGG-11 on four workers behind shaped links of 1 Gb/s: how many times as fast as PyTorch's DDP on Gloo with the "
           "same type on the wire.",
           "motley-bench ps", "×",
           [Bar("float32", "ps train-vgg11-netns speedup_over_ddp_fp32"),
            Bar("bfloat16", "ps train-vgg11-netns speedup_over_ddp_bf16_hook")]),
    Figure("limits", "How near to the hardware",
           "Throughput as a fraction of the physical limit in the same run: a plain stream of the same bytes over the same links, or "
           "the bare kernel on pinned threads.",
           "motley-bench exchange, motley-bench ps", "%",
           [Bar("ring, 4 ranks, 1 Gb/s", "exchange netns-1Gbps-N4-46.8MB share_of_limit"),
            Bar("training VGG-11, 1 Gb/s", "ps train-vgg11-netns share_of_bound"),
            Bar("server, shared memory, 4 ranks", "ps shm-N4 share_of_limit")]),
    Figure("pipelines", "Pipelines over heterogeneous devices",
           "Planned steps on four emulated machines that do not match (links of 1 Gb/s, 32 samples a machine): how many times as fast "
           "as PyTorch's DDP, which gives every machine the same share.",
           "motley-bench pipeline --part tapp", "×",
           [Bar("AlexNet", "pipeline tapp-alexnet-batch-32 step_ratio_ddp"),
            Bar("VGG-11", "pipeline tapp-vgg11-batch-32 step_ratio_ddp"),
            Bar("ResNet-18", "pipeline tapp-resnet18-batch-32 step_ratio_ddp"),
            Bar("transformer", "pipeline tapp-transformer-batch-32 step_ratio_ddp")]),
    Figure("ctr", "CTR models: samples for a dollar",
           "What the cheapest plan at half of the highest throughput trains for a dollar, compared with AIBox's placement (embeddings on CPU "
           "cores, the rest on GPUs) in the counts that are cheapest for it (emulated, in slow motion; HeterPS's networks and prices).",
           "motley-bench pipeline --part heterps", "×",
           [Bar("MATCHNET", "pipeline heterps-matchnet ratio_to_heuristic"),
            Bar("CTRDNN", "pipeline heterps-ctrdnn ratio_to_heuristic"),
            Bar("2EMB", "pipeline heterps-2emb ratio_to_heuristic"),
            Bar("NCE", "pipeline heterps-nce ratio_to_heuristic")]),
    Figure("prediction", "Predicted against measured step time",
           "Relative error of the simulated step time over 28 plans of five networks, eight of them on devices that were not emulated.",
           "motley-bench pipeline --part prediction", "%",
           [Bar("median", "pipeline prediction-all median_error"),
            Bar("median, not emulated", "pipeline prediction-not-emulated median_error"),
            Bar("worst", "pipeline prediction-all worst_error")]),
    Figure("planning", "Seconds to a proven optimum",
           "Time of the exact planner for a model of so many layers on so many device types; all answers are proved optimal.",
           "motley-bench plan", "s",
           [Bar("20 layers, 2 types", "plan loose-20x2 exact_seconds"),
            Bar("20 layers, 64 types", "plan loose-20x64 exact_seconds"),
            Bar("128 layers, 16 types", "plan loose-128x16 exact_seconds")]),
    Figure("staleness", "What bounded staleness costs",
           "Test accuracy lost against synchronous training under random delays: mean of three seeds, speeds and delays emulated.",
           "motley-bench consistency", "%",
           [Bar("ssp, 3 steps", "consistency ssp-3 accuracy_loss_to_bsp"),
            Bar("async", "consistency async accuracy_loss_to_bsp")]),
    Figure("elastic", "What a death costs",
           "Time of the step in which a process is killed or stopped, less that of a usual step: 99th percentile over faults at named "
           "points and at any time, on four workers at emulated speeds 1, 1, ½ and ¼. No sample is lost, doubled or computed again by "
           "who is left. A stopped process counts as lost after one second of silence.",
           "motley-bench elastic", "s",
           [Bar("a worker is killed", "elastic kill-worker pause_p99_seconds"),
            Bar("rank 0 is killed", "elastic kill-coordinator pause_p99_seconds"),
            Bar("a worker is stopped", "elastic stop-worker pause_p99_seconds")]),
    Figure("scheduling", "Scheduling Microsoft's traces",
           "Mean job completion time of gadget-exact as a fraction of that of the best elastic peer, each with the objective that it was made for, "
           "on 128 devices; 1 is the best peer. Simulated, three seeds.",
           "motley-bench schedule --part elastic", "×",
           [Bar("ITP, cluster 3", "schedule itp03 jct_ratio_to_best_elastic_peer"),
            Bar("ITP, cluster 5", "schedule itp05 jct_ratio_to_best_elastic_peer"),
            Bar("ITP, cluster 6", "schedule itp06 jct_ratio_to_best_elastic_peer")]),
]


def figure(value):
    return "–" if value is None else f"{value:.4g}"


def verdict(row):
    if row["target"] is None:
        return ""
    value, target = row["value"], row["target"]
    met = value is not None and (value >= target if row["better"] == "more" else value <= target)
    return "yes" if met else "**no**"


def make_table(rows):
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        cells = [row["case"], row["metric"], figure(row["value"]), row["unit"], row["better"], figure(row["target"]),
                 verdict(row), figure(row["limit"]), figure(row["peer"]), row.get("note") or ""]
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def make_page(name, table, commit, date, machine):
    """The page of one benchmark; table is its rows as Markdown."""
    return (f"# {name}\n\n"
            f"Generated by `tools/{'gpu-check' if name == 'gpu' else 'bench'}`; do not edit. Commit: {commit}. Date: {date}.\n\n"
            f"{table}\n\n"
            f"## Machine\n\n```\n{machine}\n```\n")


def list_rows(page):
    """The rows of a benchmark's page, by case and metric."""
    rows = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == len(COLUMNS) and cells[0] not in ("case", "---"):
            row = dict(zip(COLUMNS, cells))
            rows[row["case"], row["metric"]] = row
    return rows


def number(cell):
    return None if cell in ("–", "") else float(cell)


def shown(value, unit):
    if unit == "%":
        return f"{100 * value:.3g} %"
    if unit == "s":
        return f"{1000 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} µs"
    return f"{value:.3g}{unit}"


def chart(wanted, rows):
    """A bar chart as SVG: each bar under its label, a dashed line at the row's target, a solid one at its limit."""
    width, step = 420, 50
    scale = 1.02 * max(v for row in rows for v in (number(row["value"]), number(row["target"]), number(row["limit"])) if v)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" class="figure" viewBox="0 0 {width} {step * len(rows)}" role="img" '
           f'aria-label="{html.escape(wanted.title)}" font-family="sans-serif" font-size="14" fill="currentColor">',
           "<style>:root{color:#24292f}@media(prefers-color-scheme:dark){:root{color:#d0d7de}}</style>"]
    for k, (bar, row) in enumerate(zip(wanted.bars, rows)):
        y = step * k
        value = number(row["value"])
        assert value is not None
        out.append(f'<text x="0" y="{y + 15}">{html.escape(bar.label)}</text>')
        out.append(f'<text x="{width}" y="{y + 15}" text-anchor="end" font-weight="bold">{html.escape(shown(value, wanted.unit))}</text>')
        out.append(f'<rect x="0" y="{y + 22}" width="{max(1.5, width * value / scale):.1f}" height="18" rx="3" fill="#4f6bed"/>')
        for kind, style in (("target", ' stroke-dasharray="3 3"'), ("limit", "")):
            mark = number(row[kind])
            if mark is not None:
                x = width * mark / scale
                out.append(f'<line x1="{x:.1f}" y1="{y + 19}" x2="{x:.1f}" y2="{y + 43}" stroke="currentColor" '
                           f'stroke-width="1.5"{style}><title>{kind} {figure(mark)}</title></line>')
    out.append("</svg>\n")
    return "\n".join(out)


def stamp(page):
    found = re.search(r"Commit: (\S+)\. Date: (\S+)\.", page)
    return f"commit {found[1]}, {found[2]}" if found else ""


def find(rows, name):
    bench, case, metric = name.split()
    return rows.get(bench, {}).get((case, metric))


def write_headlines():
    pages = {path.stem: path.read_text() for path in sorted(TABLES.glob("*.md"))}
    rows = {name: list_rows(page) for name, page in pages.items()}
    (TABLES / "figures").mkdir(exist_ok=True)
    out = ["# Results", "",
           "Generated by `tools/bench`; do not edit. Each chart comes from rows that a command of this repository prints, with a target "
           "(dashed line) where we hold ourselves to one and the physical or mathematical limit (solid line) where there is one. "
           "What was emulated, simulated or measured on real devices is said with each figure.", ""]
    for wanted in FIGURES:
        found = [find(rows, bar.row) for bar in wanted.bars]
        there = [(bar, row) for bar, row in zip(wanted.bars, found) if row and number(row["value"]) is not None]
        if not there:
            continue
        shortened = wanted._replace(bars=[bar for bar, _ in there])
        (TABLES / f"figures/{wanted.name}.svg").write_text(chart(shortened, [row for _, row in there]))
        benches = list(dict.fromkeys(bar.row.split()[0] for bar, _ in there))
        tables = ", ".join(f"[{bench}](results/{bench}.md) ({stamp(pages[bench])})" for bench in benches)
        figures = "; ".join(f"{bar.label}: {shown(float(row['value']), wanted.unit)}" for bar, row in there)
        commands = " and ".join(f"`{command}`" for command in wanted.command.split(", "))
        out += [f"## {wanted.title}", "", wanted.text, "", f"![{figures}](results/figures/{wanted.name}.svg)", "",
                f"Printed by {commands}. Tables: {tables}.", ""]
    missed = [(name, key) for name, table in rows.items() for key, row in table.items() if row["met"] == "**no**"]
    met = sum(row["met"] == "yes" for table in rows.values() for row in table.values())
    out += ["## All tables", "", f"{met} of {met + len(missed)} rows with a target meet it" +
            ("." if not missed else ", all but " + ", ".join(f"{name} `{case}` `{metric}`" for name, (case, metric) in missed) + "."),
            "", "| benchmark | rows | measured |", "|---|---|---|"]
    out += [f"| [{name}](results/{name}.md) | {len(rows[name])} | {stamp(page)} |" for name, page in pages.items()]
    PAGE.write_text("\n".join(out) + "\n")


def main():
    if len(sys.argv) > 1:
        folder = pathlib.Path(sys.argv[1])
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True).stdout.strip()
        machine = (folder / "machine.txt").read_text().rstrip()
        for name in sys.argv[2:] or sorted(file.stem for file in folder.glob("*.json")):
            file = folder / f"{name}.json"
            page = make_page(file.stem, make_table(json.loads(file.read_text())), commit, datetime.date.today(), machine)
            (TABLES / f"{file.stem}.md").write_text(page)
    write_headlines()


if __name__ == "__main__":
    main()
