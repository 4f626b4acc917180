"""Starts motley schedule serve, and talks to it as its users do."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request

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
        lines = []
        for line in process.stderr:  # what it finds as it starts may come before
            if re.search("page at https?://|listening at unix:", line):
                return process
            lines.append(line)
        self.fail(f"the service ended before it answered: {''.join(lines)}")

    def schedule(self, command, *words, expect=0):
        done = subprocess.run([str(word) for word in (BINARY, "schedule", command, "--state-dir", self.state, *words)],
                              capture_output=True, text=True, timeout=60, cwd=ROOT)
        if expect is not None:
            self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout if expect == 0 else done.stderr

    def until(self, file):
        """A shell's wait for a file, which ends with its folder, too."""
        return f"until [ -e {file} ] || ! [ -d {file.parent} ]; do sleep 0.1; done"

    def wait_for(self, holds, what, seconds=60):
        """What `holds` returns, once that is true."""
        deadline = time.monotonic() + seconds
        while not (value := holds()):
            self.assertLess(time.monotonic(), deadline, f"{what} did not come within {seconds} s")
            time.sleep(0.05)
        return value

    def ask(self, path):
        """The answer to GET, where the service is reached by HTTP."""
        token = (self.state / "token").read_text().strip()
        request = urllib.request.Request((self.state / "address").read_text().strip() + path,
                                         headers={"Authorization": f"Bearer {token}"})
        return urllib.request.urlopen(request, timeout=20)

    def may_be(self, job, wanted):
        """Whether it is worth asking as users do: the service itself is asked first, which costs no start of a program."""
        address = (self.state / "address").read_text().strip()
        if not address.startswith("http://"):
            return True
        with self.ask("/v1/jobs") as answer:
            jobs = json.load(answer)["jobs"]
        return any([str(one["state"]), str(one["workers"])][: len(wanted)] == [str(word) for word in wanted]
                   for one in jobs if one["name"] == job)

    def wait_until(self, job, *wanted, seconds=240):
        """Until the job has this state and, if given, number of workers; returns the cells of its line."""
        deadline = time.monotonic() + seconds
        cells = []
        while time.monotonic() < deadline:
            if not self.may_be(job, wanted):
                time.sleep(0.05)
                continue
            lines = [line.split() for line in self.schedule("list").splitlines()]
            cells = next((cells for cells in lines if cells[1:2] == [job]), [])
            if cells[2 : 2 + len(wanted)] == [str(word) for word in wanted]:
                return cells
            time.sleep(0.1)
        self.fail(f"{job} did not come to be {wanted} within {seconds} s: {cells}")
