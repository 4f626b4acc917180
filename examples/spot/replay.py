#!/usr/bin/env python3
"""Machines of a spot market come and go: replays a trace of that on this machine, with an elastic job.

    examples/spot/replay.py [--trace FILE] [--job FILE] [--run-directory FOLDER] [--scale FACTOR]

Each machine is one rank, started by hand as on a machine of its own: it joins the job at the address that the log names. One that gets
notice is sent SIGTERM, one that is lost is killed. A trace has a line for each change: seconds from the start of training, the machine's
number, and joins, notice or lost. All machines are there at the start. The last machine that trains does not go before another one has
joined: on a slow or busy machine changes come later than the trace says. After the last change the job is stopped with a checkpoint, and
the run's page says who came and went.
"""
import argparse
import csv
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
MOTLEY = os.environ.get("MOTLEY_BINARY", str(HERE.parents[1] / "build/release/motley"))
MACHINES = 4
PORT = 29531
DEADLINE = 120  # seconds of any wait
CHANGE = re.compile(r"ranks? ([\d, and]+) (?:was|were|has|have) (lost|left|joined)")
WORDS = {"joins": "joins", "notice": "gets notice", "lost": "is killed"}


class Replay:
    def __init__(self, job, run):
        self.job = job
        self.run = run
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="motley-spot-"))
        (self.folder / "hosts").write_text("\n".join([f"127.0.0.1:{PORT}"] + ["127.0.0.1"] * (MACHINES - 1)) + "\n")
        secret = self.folder / "secret"
        secret.touch(0o600)
        secret.write_text(secrets.token_hex(16) + "\n")
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.starts = 0

    def start(self, machine, *flags):
        log = self.folder / f"{self.starts:03}-machine-{machine}.log"
        self.starts += 1
        with log.open("w") as output:
            self.processes[machine] = subprocess.Popen(
                [MOTLEY, "train", str(self.job), "--run-directory", str(self.run), "--hosts", str(self.folder / "hosts"),
                 "--secret-file", str(self.folder / "secret"), "--rank", str(machine), *flags],
                stdout=output, stderr=subprocess.STDOUT)

    def lines(self):
        """What the run has written, up to its last whole line."""
        path = self.run / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def steps(self):
        return sum("loss" in line for line in self.lines())

    def present(self):
        """The machines that train."""
        there = set(range(MACHINES))
        for line in self.lines():
            for ranks, what in CHANGE.findall(line.get("text", "")):
                named = set(map(int, re.findall(r"\d+", ranks)))
                there = there | named if what == "joined" else there - named
        return there

    def address(self):
        """Where newcomers join: whoever writes the run's files has said it last."""
        found = {}
        for log in sorted(self.folder.glob("*.log")):
            for when, place in re.findall(r"\[([0-9:]+)\].*other workers can join at (\S+)", log.read_text()):
                found[when, log.name] = place
        return found[max(found)]

    def wait(self, what, condition):
        deadline = time.monotonic() + DEADLINE
        while not condition():
            if all(process.poll() is not None for process in self.processes.values()):
                raise SystemExit(f"replay: the job ended before {what}; the logs are in {self.folder}")
            if time.monotonic() > deadline:
                raise SystemExit(f"replay: waited {DEADLINE} s until {what}, in vain; the logs are in {self.folder}")
            time.sleep(0.05)

    def change(self, machine, event):
        if event == "joins":
            self.start(machine, "--join", self.address())
            return
        self.wait(f"another machine than {machine} trained", lambda: self.present() != {machine})
        process = self.processes[machine]
        process.send_signal(signal.SIGTERM if event == "notice" else signal.SIGKILL)
        self.wait(f"machine {machine} was gone", lambda: process.poll() is not None and machine not in self.present())
        del self.processes[machine]

    def stop(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGINT)
        for machine, process in self.processes.items():
            if process.wait(DEADLINE) not in (0, 130):
                raise SystemExit(f"replay: machine {machine} ended with {process.returncode}; the logs are in {self.folder}")
        shutil.rmtree(self.folder)


def report(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "loss" in line]
    wrong = sum(line.get("samples_lost_or_duplicated", 0) for line in lines) + len(steps) - len(set(steps))
    kinds = [line["event"] for line in lines if line.get("event") in ("joined", "left", "lost")]
    print(f"replay: {len(steps)} steps; {', '.join(f'{kinds.count(kind)} changes {kind}' for kind in ('joined', 'left', 'lost'))}; "
          f"{wrong} samples lost or duplicated; the run's page is {run}/report.html")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=pathlib.Path, default=HERE / "trace.csv")
    parser.add_argument("--job", type=pathlib.Path, default=HERE / "job.yaml", help="elastic, of four workers")
    parser.add_argument("--run-directory", type=pathlib.Path, default=pathlib.Path("runs/spot"), help="must not exist yet")
    parser.add_argument("--scale", type=float, default=1, help="of the trace's seconds")
    arguments = parser.parse_args()
    if arguments.run_directory.exists():
        parser.error(f"--run-directory: {arguments.run_directory} exists; accepted: a folder that does not")
    with arguments.trace.open() as file:
        trace = [(float(row["seconds"]), int(row["machine"]), row["event"]) for row in csv.DictReader(file)]
    replay = Replay(arguments.job, arguments.run_directory)
    for machine in range(MACHINES):
        replay.start(machine)
    replay.wait("training began", lambda: replay.steps() > 0)
    begin = time.monotonic()
    for seconds, machine, event in trace:
        time.sleep(max(0.0, begin + arguments.scale * seconds - time.monotonic()))
        print(f"replay: {time.monotonic() - begin:6.1f} s: machine {machine} {WORDS[event]}", flush=True)
        replay.change(machine, event)
    replay.wait("all machines that had joined trained", lambda: replay.present() >= set(replay.processes))
    steps = replay.steps()
    replay.wait("training had gone on for 50 steps", lambda: replay.steps() > steps + 50)
    replay.stop()
    subprocess.run([MOTLEY, "report", str(arguments.run_directory)], check=True)
    report(arguments.run_directory)


if __name__ == "__main__":
    main()
