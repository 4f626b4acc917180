"""Processes that may open no more files: they say so, lose nothing, and go on once they may."""

import itertools
import os
import resource
import select
import socket
import subprocess
import time
import unittest
import urllib.parse

from harness import relative_difference
from live_service import LiveService
from serving import ServingRun

LACK = "Too many open files"


def lack_descriptors(process, seconds=0):
    """Lets the process open none more; what it has stays, but for what it closes within these seconds. Returns the limits that it had."""
    before = resource.prlimit(process, resource.RLIMIT_NOFILE)
    end, opened = time.monotonic() + seconds, None
    while opened is None or time.monotonic() < end:
        now = {int(name) for name in os.listdir(f"/proc/{process}/fd")}
        opened = now if opened is None else opened & now
        time.sleep(0.01)
    lowest = next(number for number in itertools.count() if number not in opened)
    resource.prlimit(process, resource.RLIMIT_NOFILE, (lowest, before[1]))
    return before


def wait_for_output(test, stream, *texts, seconds=60):
    """Until the process has written all of these."""
    deadline, said = time.monotonic() + seconds, ""
    while any(text not in said for text in texts):
        ready = select.select([stream], [], [], max(0, deadline - time.monotonic()))[0]
        test.assertTrue(ready, f"{texts} was not written within {seconds} s: {said}")
        part = os.read(stream.fileno(), 1 << 16).decode()
        test.assertTrue(part, f"it ended: {said}")
        said += part


class Launcher(ServingRun):
    def test_a_launcher_that_lacks_descriptors_says_so(self):
        def lower():
            resource.setrlimit(resource.RLIMIT_NOFILE, (10, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

        done = subprocess.run(self.command("run", "--workers", 4), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
                              preexec_fn=lower, check=False)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(LACK, done.stdout.strip().splitlines()[-1])


class ParameterServer(ServingRun):
    def test_a_server_serves_those_it_has_and_lets_others_in_later(self):
        token = self.token()
        server, address = self.server(token)
        served = ("--gradient-sync.method", "parameter-server", "--gradient-sync.servers", address, "--gradient-sync.token-file", token,
                  "--batch-split.mode", "equal")
        one = self.start("one", *served, "--name", "one", "--cluster", self.cluster([0.002, 0.002]))
        self.wait_for_step("one", 3)
        for name in ("other", "third"):
            if name == "third":  # what the one before has had is free by then
                wait_for_output(self, server.stdout, "job 'local/other' has ended")
            before = lack_descriptors(server.pid)
            other = self.start(name, *served, "--name", name, "--workers", 2)
            wait_for_output(self, server.stdout, f"let in for now: {LACK}")
            output = one.communicate(timeout=120)[0]
            self.assertEqual(one.returncode, 0, output)
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)
            self.wait_for_step(name, 1)
            one = other
        output = other.communicate(timeout=120)[0]
        self.assertEqual(other.returncode, 0, output)
        self.train("alone", "--workers", 2, "--batch-split.mode", "equal")
        for run in ("one", "other", "third"):
            self.assertLess(relative_difference(self.weights(run), self.weights("alone")), 1e-5)
            self.assertEqual(self.not_used_once(run), 0)


class Scheduler(LiveService):
    def submit(self, name, script):
        self.schedule("submit", "--name", name, "--estimated-duration", "5s", "--", "bash", "-c",
                      f"echo >> {self.folder / name}; {script}")

    def begun(self, name):
        file = self.folder / name
        return len(file.read_text()) if file.exists() else 0

    def test_a_service_loses_and_doubles_nothing_and_answers_later(self):
        service = self.serve("--cluster", "1x1")
        ends = self.folder / "ends"
        self.submit("first", self.until(ends))
        self.submit("second", "true")
        self.wait_until("first", "running")
        before = lack_descriptors(service.pid, 1.5)
        address = urllib.parse.urlsplit((self.state / "address").read_text().strip())
        client = socket.create_connection((address.hostname, address.port), timeout=60)
        self.addCleanup(client.close)
        token = (self.state / "token").read_text().strip()
        client.sendall(f"GET /v1/jobs HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        wait_for_output(self, service.stderr, f"let in for now: {LACK}", "it could not be looked at")
        ends.touch()
        self.wait_for((self.state / "jobs/first/attempt-1/ended").exists, "the note of the end")
        self.assertEqual((self.begun("first"), self.begun("second")), (1, 0))
        resource.prlimit(service.pid, resource.RLIMIT_NOFILE, before)
        self.assertIn(b"200 OK", client.recv(1 << 12))
        self.wait_until("first", "completed")
        self.wait_until("second", "completed")
        self.assertEqual((self.begun("first"), self.begun("second")), (1, 1))


if __name__ == "__main__":
    unittest.main()
