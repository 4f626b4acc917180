"""Starts motley schedule serve, and talks to it as its users do."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from harness import BINARY, Scenario

ROOT = pathlib.Path(__file__).resolve().parents[2]


class LiveService(Scenario):
    def setUp(self):
        super().setUp()
        self.environment = dict(os.environ)
        self.state = pathlib.Path(tempfile.mkdtemp(prefix="motley-live-"))
        self.addCleanup(shutil.rmtree, self.state, True)

    def serve(self, *flags, listen="127.0.0.1:0"):
        """The service, once it answers."""
        process = subprocess.Popen([BINARY, "schedule", "serve", "--state-dir", self.state, "--listen", listen, *flags],
                                   stderr=subprocess.PIPE, text=True, env=self.environment)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        line = process.stderr.readline()
        self.assertRegex(line, "page at https?://|listening at unix:")
        return process

    def schedule(self, command, *words, expect=0):
        done = subprocess.run([str(word) for word in (BINARY, "schedule", command, "--state-dir", self.state, *words)],
                              capture_output=True, text=True, timeout=60, cwd=ROOT)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout if expect == 0 else done.stderr

    def wait_for(self, holds, what, seconds=60):
        """What `holds` returns, once that is true."""
        deadline = time.monotonic() + seconds
        while not (value := holds()):
            self.assertLess(time.monotonic(), deadline, f"{what} did not come within {seconds} s")
            time.sleep(0.05)
        return value

    def wait_until(self, job, *wanted, seconds=240):
        """Until the job has this state and, if given, number of workers; returns the cells of its line."""
        deadline = time.monotonic() + seconds
        cells = []
        while time.monotonic() < deadline:
            lines = [line.split() for line in self.schedule("list").splitlines()]
            cells = next((cells for cells in lines if cells[1:2] == [job]), [])
            if cells[2 : 2 + len(wanted)] == [str(word) for word in wanted]:
                return cells
            time.sleep(0.1)
        self.fail(f"{job} did not come to be {wanted} within {seconds} s: {cells}")
