"""The example of machines that come and go, with a short trace and a job on small data."""
import pathlib
import re
import subprocess
import sys
import unittest

from harness import Scenario

REPLAY = pathlib.Path(__file__).resolve().parents[2] / "examples/spot/replay.py"
TRACE = """seconds,machine,event
0.5,3,lost
1,0,notice
1.5,3,joins
2,0,joins
"""


class SpotMarket(Scenario):
    def test_a_trace_is_replayed_and_no_sample_is_lost_or_used_twice(self):
        (self.folder / "trace.csv").write_text(TRACE)
        self.job.write_text(self.job.read_text().replace("epochs: 2", "epochs: 10000")
                            + f'elastic: "1:4"\ncluster: {self.cluster([0.001, 0.001, 0.002, 0.004])}\n')
        run = self.folder / "run"
        done = subprocess.run([sys.executable, REPLAY, "--trace", self.folder / "trace.csv", "--job", self.job, "--run-directory", run],
                              capture_output=True, text=True, timeout=180, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        audited = re.search(r"(\d+) steps; [12] changes joined, 1 changes left, 1 changes lost; 0 samples lost or duplicated", done.stdout)
        self.assertTrue(audited, done.stdout)
        # Two that join may come at the same step.
        self.assertGreater(int(audited[1]), 50)
        self.assertEqual(self.not_used_once("run"), 0)  # and there was an audit
        self.assertIn("Who came and went", (run / "report.html").read_text())


if __name__ == "__main__":
    unittest.main()
