"""motley schedule simulate as a user meets it: the help's example as typed, what it prints and writes, and refusals."""

import csv
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from harness import BINARY

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRACE = ROOT / "examples/schedule/trace.csv"
POLICIES = ["fifo", "fifo-backfill", "smallest-first", "las", "las-seconds", "srtf", "srsf", "drf", "optimus", "elastic-srsf", "afs"]
POLICIES += ["gadget-exact", "gittins", "themis", "elasticflow", "gavel", "sia"]
if "needs HiGHS" in subprocess.run([BINARY, "schedule", "simulate", TRACE, "--cluster", "32", "--policy", "gavel"],
                                   capture_output=True, text=True, timeout=60).stderr:
    POLICIES = [name for name in POLICIES if name not in ("gavel", "sia")]


class ScheduleSimulate(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="motley-scenario-"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def simulate(self, *words, expect=0):
        command = [str(word) for word in (BINARY, "schedule", "simulate", "--overwrite", *words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout if expect == 0 else done.stderr

    def test_the_helps_example_works_as_typed(self):
        text = subprocess.run([BINARY, "schedule", "simulate", "--help"], capture_output=True, text=True, check=True).stdout
        example = text[text.index("Example:") :].split("\n", 1)[1].split()
        self.assertEqual(example[:3], ["motley", "schedule", "simulate"])
        done = subprocess.run([BINARY, *example[1:]], capture_output=True, text=True, cwd=ROOT)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_command_that_is_not_there_is_answered_with_those_that_are(self):
        for words, given in (((), "needs a command"), (("resize",), "'resize' is no command"), (("export", "x"), "'export' is no")):
            done = subprocess.run([BINARY, "schedule", *words], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"motley schedule: {given}", done.stderr)
            self.assertIn("accepted: simulate, serve, submit, list, why, logs, cancel, drain, what-if", done.stderr)

    def test_prints_a_line_a_policy_and_writes_what_became_of_each_job(self):
        file = self.folder / "jobs.csv"
        text = self.simulate(TRACE, "--cluster", "4x8", "--csv", file)
        self.assertIn("60 jobs", text)
        self.assertIn("32 devices on 4 nodes", text)
        lines = {cells[0]: cells[1:] for cells in map(str.split, text.splitlines()) if cells and cells[0] in POLICIES}
        self.assertEqual(list(lines), POLICIES)
        with file.open() as table:
            rows = list(csv.DictReader(table))
        self.assertEqual(len(rows), len(POLICIES) * 60)
        for policy, line in lines.items():
            own = [row for row in rows if row["policy"] == policy]
            completion = [float(row["finished_seconds"]) - float(row["arrival_seconds"]) for row in own]
            self.assertAlmostEqual(float(line[0]), sum(completion) / 60 / 3600, delta=0.006)
            for row in own:
                self.assertGreaterEqual(float(row["started_seconds"]), float(row["arrival_seconds"]))
        self.assertIn("\nunfair %: of the jobs, how many took longer than with an equal part of the cluster", text)
        heading = next(line for line in text.splitlines() if line.startswith("  policy "))
        self.assertNotIn("utility", heading, "every policy finishes all jobs")
        self.assertRegex(text, r"(?m)^the same under every policy: (.*, )?utility \(\d")
        alone = self.simulate(TRACE, "--cluster", "32", "--policy", "las")
        self.assertRegex(alone, r"(?m)^  policy .* utility ")
        self.assertRegex(alone, r"(?m)^  las ")

    def test_settings_of_papers_are_drawn_by_seed(self):
        flags = ("--policy", "gadget-exact", "--policy", "fifo")
        one = self.simulate("gadget:2:60", *flags)
        self.assertIn("60 jobs", one)
        self.assertIn("of bound %", one)
        self.assertNotEqual(one.splitlines()[0], self.simulate("gadget:2:60", "--seed", 1, *flags).splitlines()[0])
        several = self.simulate("gadget:2:60", "--repetitions", 5, *flags)
        line = next(cells for cells in map(str.split, several.splitlines()) if cells[:1] == ["gadget-exact"])
        shares = []
        for seed in range(5):
            lines = [line.split() for line in self.simulate("gadget:2:60", "--seed", seed, *flags[:2]).splitlines()]
            shares.append(float(next(cells for cells in lines if cells[:1] == ["gadget-exact"])[-1]))
        self.assertAlmostEqual(float(line[-3]), sum(shares) / 5, delta=0.01)
        self.assertEqual(line[-2], "±")
        self.assertIn("sjf-bco", self.simulate("sjf-bco:10", "--policy", "sjf-bco"))
        for words, message in ((("gadget:4",), "'gadget:4'; accepted: gadget:NODES:JOBS"),
                               (("gadget:4:0",), "'gadget:4:0'; accepted"),
                               (("gadget:2:60", "--cluster", "8"), "has a cluster of its own"),
                               (("gadget:2:60", "--save-trace", self.folder / "saved.csv"),
                                "--save-trace: our format has no utilities, iterations, reserves and measured speeds, as jobs of "
                                "'gadget:2:60' have; accepted: another trace"),
                               ((TRACE,), "--cluster: is missing"),
                               ((TRACE, "--cluster", "32", "--repetitions", 3), "nothing in this workload is random"),
                               (("gadget:2:60", "--repetitions", 3, "--csv", self.folder / "jobs.csv"), "with --repetitions 1 only")):
            with self.subTest(message):
                self.assertIn(message, self.simulate(*words, expect=2))
        self.assertFalse((self.folder / "saved.csv").exists())

    def test_heterogeneous_devices_and_failures(self):
        machines = ["--cluster", "2x4:v100,4x4:k80"]
        trace = self.folder / "heterogeneous.csv"
        trace.write_text("job,arrival_seconds,duration_seconds,workers,speed_v100,speed_k80\n"
                         "slow,0,3600,4,1,0.5\nneeds,0,3600,8,1,0\nany,0,3600,4,1,1\n")
        file = self.folder / "jobs.csv"
        text = self.simulate(trace, *machines, "--policy", "gadget-exact", "--objective", "completion", "--csv", file)
        self.assertIn("24 devices on 6 nodes", text)
        finished = {row["job"]: float(row["finished_seconds"]) for row in csv.DictReader(file.read_text().splitlines())}
        self.assertEqual(finished["needs"], 3600, "it alone needs all of the v100s")
        self.assertEqual(finished["slow"], 5400, "an hour on k80s, and then half an hour on v100s")
        self.assertEqual(finished["any"], 3600)
        self.assertIn("speed_p100 is ''", self.simulate(trace, "--cluster", "8:p100", expect=2))
        self.assertIn("knows one type of devices only",
                      self.simulate(trace, *machines, "--policy", "sjf-bco", expect=2))

        flags = ["--cluster", "4x8", "--policy", "las", "--mtbf", "5h", "--mttr", "30min"]
        text = self.simulate(TRACE, *flags, "--csv", file)
        self.assertIn("jobs lost places", text)
        lost = sum(int(row["failures"]) for row in csv.DictReader(file.read_text().splitlines()))
        row = next(line for line in text.splitlines() if line.startswith("  las ")).split()
        self.assertEqual(int(row[-2]), lost)
        self.assertGreater(lost, 0)
        self.assertIn("±", self.simulate(TRACE, *flags, "--repetitions", 3))
        self.assertIn("--mtbf", self.simulate(TRACE, "--cluster", "32", "--mtbf", 0, expect=2))

    def test_the_page_opens_offline_and_holds_no_markup_of_names(self):
        trace = self.folder / "trace.csv"
        trace.write_text("job,arrival_seconds,duration_seconds,workers,max_workers\n<script>alert(1)</script>,0,0,1,2\nb,0,0,2,2\n")
        page = self.folder / "page.html"
        self.simulate(trace, "--cluster", "2x4", "--html", page)
        html = page.read_text()
        self.assertNotIn("<script>alert", html)
        self.assertNotIn("nan", html.split("<main>")[1].split("</main>")[0].lower())
        drawn = [name for names in re.findall(r"<h2>Who ran where: (.*?)</h2>", html) for name in names.split(", ")]
        self.assertEqual(sorted(drawn), sorted(POLICIES), "once each, policies that do the same together")

    def test_consolidated_placement_keeps_jobs_together(self):
        trace = self.folder / "trace.csv"
        trace.write_text("job,arrival_seconds,duration_seconds,workers\na,0,10,6\nb,0,10,6\nc,0,10,4\n")
        for placement, finished in (("any", ["10.0", "10.0", "10.0"]), ("consolidated", ["10.0", "10.0", "20.0"])):
            file = self.folder / "jobs.csv"
            self.simulate(trace, "--cluster", "2x8", "--policy", "fifo", "--placement", placement, "--csv", file)
            with file.open() as table:
                self.assertEqual([f"{float(row['finished_seconds'])}" for row in csv.DictReader(table)], finished)

    def test_refusals_name_file_field_and_value(self):
        trace = self.folder / "trace.csv"
        header = "job,arrival_seconds,duration_seconds,workers\n"
        for text, words in ((header + "a,0,x,1\n", f"{trace}:2: duration_seconds is 'x'; accepted: seconds from 0"),
                            (header + "a,0,1,1\na,0,1,1\n", f"{trace}:3: job is 'a'; accepted: a name for each job"),
                            (header, f"{trace}: has no jobs"),
                            ("a,b\n", f"{trace}: the first line is none of a trace that is known here"),
                            (header + "big,0,1,9\n", "job 'big' asks for 9 devices and can never run; there are 8")):
            with self.subTest(words):
                trace.write_text(text)
                self.assertIn(words, self.simulate(trace, "--cluster", "8", "--policy", "fifo", expect=2))
        self.assertIn("'8 by 8'", self.simulate(TRACE, "--cluster", "8 by 8", expect=2))
        self.assertIn("--policy", self.simulate(TRACE, "--cluster", "32", "--policy", "best", expect=2))
        self.assertIn("--slot-duration", self.simulate(TRACE, "--cluster", "32", "--slot-duration", "nan", expect=2))
        for flag, value, words in (("--mtbf", 10, "--mtbf: '10' is not accepted; accepted: a duration such as"),
                                   ("--intra-node-bandwidth", 100, "accepted: a rate such as '10Gbps'"),
                                   ("--placement", "anywhere", "anywhere is now any")):
            self.assertIn(words, self.simulate(TRACE, "--cluster", "32", flag, value, expect=2))
        trace.write_text(header + "a,0,1,1\n")
        for flag in ("--csv", "--html"):
            self.assertIn(f"{flag}: '{trace}' is the file of TRACE", self.simulate(trace, "--cluster", "8", flag, trace, expect=2))
        both = self.folder / "both"
        self.assertIn("is the file of --html", self.simulate(trace, "--cluster", "8", "--csv", both, "--html", both, expect=2))
        self.assertEqual(trace.read_text(), header + "a,0,1,1\n")
        missing = self.folder / "none.csv"
        self.assertIn(str(missing), self.simulate(missing, "--cluster", "32", expect=2))
        target = self.folder / "no" / "jobs.csv"
        self.assertIn(str(target), self.simulate(TRACE, "--cluster", "32", "--csv", target, expect=2))


if __name__ == "__main__":
    unittest.main()
