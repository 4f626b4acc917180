"""Pages of runs, as motley report writes them: a resumed run's history, and runs compared, each figure against one computed here."""

import collections
import json
import pathlib
import re
import subprocess
import unittest

from harness import BINARY, Scenario, interrupt


def middle_half(lines):
    """Of the steps that a page takes its typical step from, those whose time is in the middle half; equal shares have settled
    from the beginning."""
    own = [line for line in lines if "step_seconds" in line and not line.get("baseline")]
    if own[0]["mode"] != "equal":
        own = [line for line in own if line["step"] > 20]
        splits = collections.Counter(tuple(line["batch_split"]) for line in own)
        commonest = max(sorted(splits), key=splits.get)
        if splits[commonest] >= max(5, len(own) / 4):
            own = [line for line in own if tuple(line["batch_split"]) == commonest]
    steps = sorted(own, key=lambda line: line["step_seconds"])
    quarter = len(steps) // 4
    return steps[quarter : len(steps) - quarter]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


class Reports(Scenario):
    def report(self, *words, expect=0):
        done = subprocess.run([str(word) for word in (BINARY, "report", *words)], capture_output=True, text=True, timeout=60,
                              cwd=self.folder)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout if expect == 0 else done.stderr

    def test_runs_are_compared(self):
        paces = self.cluster([0.0005, 0.0005, 0.002])
        for name, mode in (("even", "equal"), ("split", "dynamic")):
            self.train(name, "--cluster", paces, "--epochs", 6, "--batch-split.mode", mode)
        text = self.report("even", "split")
        page = (self.folder / "comparison.html").read_text()

        rows = {row[:28].strip(): row for row in text.splitlines()}
        for name in ("test accuracy", "samples per second", "a step", "– waiting for others", "duration"):
            self.assertIn(name, {key.split("  ")[0] for key in rows}, text)
        even, split = (middle_half(self.lines(name)) for name in ("even", "split"))
        seconds = [mean(line["step_seconds"] for line in lines) for lines in (even, split)]
        cells = re.search(r"(?m)^  samples per second +(\S+)( \*)? +(\S+)( \*)? *$", text)
        for cell, expected in zip((cells[1], cells[3]), (60 / value for value in seconds)):
            self.assertAlmostEqual(float(cell.replace(",", "")) / expected, 1, delta=0.01)
        self.assertEqual((cells[2], cells[4]), (None, " *"))
        self.assertRegex(text, r"(?m)^split takes \S+ ms a step instead of the \S+ ms of even .* less waiting for others")
        self.assertIn("Busy longest is w2 in even", text)
        self.assertRegex(text, r"(?m)^  batch_split\.mode +equal +dynamic")
        self.assertNotIn("optimizer.", text, "that is the same")
        self.assertIn("What got faster, and why", page)
        self.assertIn('href="even/report.html"', page)

        charts = [json.loads(data) for data in re.findall(r'<script type="application/json">(.*?)</script>', page)]
        against = {(chart["x"], chart["y"]): chart for chart in charts}
        tests = [series for series in against["step", "accuracy"]["series"] if series["name"].endswith("test")]
        self.assertEqual([series["name"] for series in tests], ["even, test", "split, test"])
        for name, series in zip(("even", "split"), tests):
            wanted = [[line["step"], line["evaluation"]["accuracy"]] for line in self.lines(name) if "evaluation" in line]
            self.assertEqual(len(series["points"]), len(wanted))
            for (step, accuracy), (wanted_step, wanted_accuracy) in zip(series["points"], wanted):
                self.assertEqual(step, wanted_step)
                self.assertAlmostEqual(accuracy, wanted_accuracy, delta=1e-4)

    def test_a_page_takes_nothings_place(self):
        self.train("one", "--steps", 3)
        self.train("two", "--steps", 3)
        taken = self.folder / "comparison.html"
        taken.write_text("mine")
        self.assertIn("'comparison.html' is there already; accepted: another file, or this one with --overwrite",
                      self.report("one", "two", expect=2))
        self.assertEqual(taken.read_text(), "mine")
        self.report("one", "two", "--output", "other.html")
        self.report("one", "two", "--overwrite")
        self.assertEqual(taken.read_text(), (self.folder / "other.html").read_text())
        self.assertIn("--output: ", self.report("one", "two", "--output", "nowhere/page.html", expect=2))
        self.assertIn("'nobody' is not a run directory", self.report("one", "nobody", "--output", "third.html", expect=2))
        self.assertIn("'one' is named twice", self.report("one", "one", "--output", "third.html", expect=2))
        self.assertFalse((self.folder / "third.html").exists())
        self.report("one", "--output", "third.html")
        self.assertEqual((self.folder / "third.html").read_text(), (self.folder / "one/report.html").read_text())

    def run_file(self, run):
        return json.loads((self.folder / run / "run.json").read_text())

    def test_a_resumed_run_tells_its_history(self):
        paces = self.cluster([0.004, 0.004])
        flags = ("--cluster", paces, "--epochs", 3, "--checkpoint.every-steps", 5)
        process = self.start("run", *flags)
        self.wait_for_step("run", 7)
        interrupt(process)
        process.communicate(timeout=60)
        first = self.run_file("run")
        before = self.lines("run")
        self.train("run", *flags, "--resume")
        self.train("run", *flags, "--resume")  # which has nothing left to do, and is no attempt
        run = self.run_file("run")
        done = max(line["step"] for line in before if "loss" in line)
        self.assertEqual(run["started"], first["started"])
        self.assertEqual([attempt["first_step"] for attempt in run["attempts"]], [1, done + 1])
        self.assertEqual([attempt["exit"] for attempt in run["attempts"]], ["interrupted", "done"])
        self.assertEqual(run["attempts"][1]["after_seconds"], max(line["time"] for line in before))
        times = [line["time"] for line in self.lines("run")]
        self.assertEqual(times, sorted(times), "an attempt's times go on after those of the one before")
        page = (self.folder / "run/report.html").read_text()
        self.assertIn(" in 2 attempts", page)
        self.assertIn(f"<td>1 to {done}</td>", page.replace(' class="number"', ""))
        self.assertIn(f"<td>{done + 1} to 30</td>", page)

    def test_steps_that_are_done_again_are_told(self):
        flags = ("--batch-split.mode", "fixed", "--batch-split.fixed", "30,30", "--workers", 2, "--checkpoint.every-steps", 5)
        self.train("run", *flags, "--steps", 12)
        newest = pathlib.Path(self.folder / "run/checkpoint/step-00000012/weights.safetensors")
        content = bytearray(newest.read_bytes())
        content[-5] ^= 1
        newest.write_bytes(content)
        self.train("run", *flags, "--steps", 20, "--resume")
        told = [line["text"] for line in self.lines("run") if line.get("event") == "resumed"]
        self.assertEqual(told, ["after step 10 with 2 workers; 2 steps that the run had done since its checkpoint are done again"])
        self.assertEqual([attempt["first_step"] for attempt in self.run_file("run")["attempts"]], [1, 11])


if __name__ == "__main__":
    unittest.main()
