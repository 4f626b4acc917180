"""What tools/compare-benches says of two builds whose benchmarks are scripts with known rows."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/compare-benches"

# Prints the rows of the run that it is, of a file with one list of rows a run; the last one again when they are used up.
BENCH = """#!{python}
import json, pathlib, sys, time
folder = pathlib.Path(__file__).parent
runs = json.loads((folder / "runs.json").read_text())
count = folder / "count"
number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
(folder / "words").write_text(" ".join(sys.argv[1:]))
if (folder.parent / "meet").exists():  # each run waits for the other side's of its pair
    began = {{side: folder.parent / f"{{side}}-began-{{number}}" for side in ("base", "this")}}
    began[folder.name].touch()
    deadline = time.monotonic() + 60
    while not all(file.exists() for file in began.values()):
        if time.monotonic() > deadline:
            sys.exit("the other side has not begun")
        time.sleep(0.01)
rows = runs[min(number, len(runs) - 1)]
if rows is None:
    sys.exit(1)
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(rows))
"""


def row(metric, value, better="less", target=None):
    return {"case": "case", "metric": metric, "value": value, "unit": "s", "better": better, "target": target}


class CompareBenches(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def bench(self, name, runs):
        folder = self.folder / name
        folder.mkdir()
        (folder / "runs.json").write_text(json.dumps(runs))
        program = folder / "bench"
        program.write_text(BENCH.format(python=sys.executable))
        program.chmod(0o755)
        return program

    def compare(self, base, this, *words):
        done = subprocess.run([sys.executable, TOOL, "--pairs", "3", self.bench("base", base), self.bench("this", this), "plan", *words],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_equal_rows_are_in_order(self):
        status, said = self.compare([[row("time", 1.0)]], [[row("time", 1.04)]])
        self.assertEqual(status, 0, said)
        self.assertIn("0 rows worse", said)

    def test_a_row_is_worse_by_its_median_not_by_one_run(self):
        base = [[row("time", 1.0)]]
        self.assertEqual(self.compare(base, [[row("time", 1.0)], [row("time", 9.0)], [row("time", 1.0)]])[0], 0)
        self.setUp()
        status, said = self.compare(base, [[row("time", 1.2)], [row("time", 0.9)], [row("time", 1.2)]])
        self.assertEqual(status, 3)
        self.assertIn("WORSE", said)

    def test_more_is_better_where_the_row_says_so(self):
        self.assertEqual(self.compare([[row("rate", 10.0, "more")]], [[row("rate", 12.0, "more")]])[0], 0)
        self.setUp()
        self.assertEqual(self.compare([[row("rate", 10.0, "more")]], [[row("rate", 8.0, "more")]])[0], 3)

    def test_a_row_that_was_met_stays_met(self):
        status, said = self.compare([[row("time", 0.99, target=1)]], [[row("time", 1.01, target=1)]])
        self.assertEqual(status, 3)
        self.assertIn("NO LONGER MET", said)

    def test_rows_of_one_side_and_failed_runs_are_named(self):
        status, said = self.compare([[row("old", 1)], None, [row("old", 1)]], [[row("new", 1)]])
        self.assertEqual(status, 0, said)
        self.assertRegex(said, r"old +only in BASE")
        self.assertRegex(said, r"new +only in THIS")
        self.assertIn("ended with 1", said)

    def test_both_of_a_pair_run_at_the_same_time(self):
        (self.folder / "meet").touch()
        status, said = self.compare([[row("time", 1.0)]], [[row("time", 1.0)]], "--together")
        self.assertEqual(status, 0, said)

    def test_a_part_and_further_arguments_reach_the_benchmark(self):
        self.compare([[row("time", 1)]], [[row("time", 1)]], "ps:memory", "--", "--quick")
        words = (self.folder / "this/words").read_text()
        self.assertTrue(words.startswith("ps --part memory --quick --json "), words)


if __name__ == "__main__":
    unittest.main()
