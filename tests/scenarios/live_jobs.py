"""motley schedule serve as its users meet it: a training job is resized by another one, the service is killed meanwhile,
and every sample is used once nevertheless; refusals."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import unittest

from harness import BINARY
from live_service import ROOT, LiveService


class LiveJobs(LiveService):
    def test_a_training_job_shrinks_and_goes_on_though_the_service_is_killed(self):
        job = self.folder / "job.yaml"
        job.write_text((ROOT / "examples/fashion-mnist/job.yaml").read_text().replace("epochs: 1", "epochs: 2"))
        flags = ("--cluster", "1x2", "--policy", "drf", "--slot-duration", "1s", "--preemption-cooldown", "0")
        service = self.serve(*flags)
        self.schedule("submit", "--name", "train", "--train", job, "--workers", 1, "--max-workers", 2, "--restart-cost", "1s")
        self.wait_until("train", "running", 2)
        run = self.state / "jobs/train/work"
        shutil.rmtree(self.folder / "train", True)
        (self.folder / "train").symlink_to(run)
        self.wait_for_step("train", 20)
        self.schedule("submit", "--name", "other", "--estimated-duration", "5s", "--restart-cost", 0, "--",
                      "bash", "-c", self.until(self.state / "enough"))
        self.wait_until("train", "running", 1)
        self.assertIn("shrunk from 2 to 1 worker for other", self.schedule("why", "train"))
        service.send_signal(signal.SIGKILL)
        service.wait()
        self.serve(*flags)
        (self.state / "enough").touch()
        self.wait_until("other", "completed")
        cells = self.wait_until("train", "completed")
        self.assertGreaterEqual(int(cells[4]), 2, "attempts")
        jobs = json.loads(self.schedule("list", "--json"))["jobs"]
        costs = {job["name"]: (job["restart_cost"], job["measured_restart_cost"]) for job in jobs}
        self.assertEqual(costs["train"][0], 1)
        self.assertGreater(costs["train"][1], 0, "from SIGTERM to the end, and from the start to the first step")
        self.assertEqual(costs["other"], (0, None))
        self.assertEqual(self.not_used_once("train"), 0)
        with self.ask("/v1/jobs/train/report") as report:
            self.assertEqual(report.status, 200)
            self.assertIn("text/html", report.headers["Content-Type"])
        self.assertEqual(len([1 for line in self.lines("train") if "samples_lost_or_duplicated" in line]), 2, "epochs")

    def test_why_and_what_if_tell_what_blocks_a_job(self):
        self.serve("--cluster", "2x2", "--slot-duration", "1000s")
        self.schedule("submit", "--name", "small", "--workers", 3, "--estimated-duration", "60s", "--", "sleep", 600)
        self.wait_until("small", "running")
        self.schedule("submit", "--name", "large", "--workers", 4, "--estimated-duration", "60s", "--", "sleep", 600)
        self.assertIn("it needs 4 devices, and 1 of 4 is free", self.schedule("why", "large"))
        table = self.schedule("what-if", "--add-node", "new:4")
        self.assertIn("large", table)
        self.assertIn("on average done in", table)
        self.schedule("drain", "node0")
        self.wait_for(lambda: "blocked by: nodes" in self.schedule("why", "large"), "that the drained node is missed")
        self.assertIn("cancelled", self.schedule("cancel", "large"))
        self.schedule("cancel", "small")
        self.wait_until("small", "cancelled")

    def test_jobs_are_reached_by_number_and_their_output_is_printed(self):
        self.serve("--cluster", "1x2")
        submitted = self.schedule("submit", "--name", "talks", "--estimated-duration", "5s", "--",
                                  "bash", "-c", f"echo first; {self.until(self.folder / 'go')}; echo last")
        number = submitted.split()[-1]
        self.wait_until("talks", "running")
        self.wait_for(lambda: "first" in self.schedule("logs", "talks"), "the first line")
        follower = subprocess.Popen([BINARY, "schedule", "logs", number, "--follow", "--state-dir", self.state],
                                    stdout=subprocess.PIPE, text=True)
        self.addCleanup(follower.kill)
        (self.folder / "go").touch()
        self.assertEqual(follower.communicate(timeout=60)[0], "first\nlast\n")
        self.assertEqual(follower.returncode, 0)
        self.wait_until("talks", "completed")
        why = self.schedule("why", number)
        self.assertIn("talks is completed", why)
        self.assertRegex(why, r"last change: completed after .* with 1 worker\n")

        again = self.schedule("submit", "--name", "talks", "--estimated-duration", "5s", "--",
                              "bash", "-c", "echo goes wrong; exit 3")
        self.assertNotEqual(again.split()[-1], number)
        self.wait_for(lambda: "failed" in self.schedule("why", "talks"), "the second job's end")
        why = self.schedule("why", "talks")
        self.assertIn("it failed 1 time, last", why)
        self.assertIn("its command ended with exit code 3", why)
        self.assertIn("    goes wrong\n", why)
        self.assertIn("/attempt-1/output", why)
        self.assertEqual(self.schedule("logs", number), "first\nlast\n", "the former job's is still there")
        self.schedule("submit", "--name", "waits", "--workers", 2, "--estimated-duration", "60s", "--", "sleep", 600)
        waits = self.schedule("submit", "--name", "waits-too", "--workers", 2, "--estimated-duration", "60s", "--", "sleep", 600)
        self.assertIn("has not been started", self.schedule("logs", "waits-too", expect=1))
        self.assertIn("cancelled", self.schedule("cancel", waits.split()[-1]))
        self.assertIn("accepted: 1 to 1", self.schedule("logs", number, "--attempt", 2, expect=2))
        self.schedule("cancel", "waits")

    def test_a_command_that_cannot_tell_its_workers_takes_as_long_as_it_says(self):
        self.serve("--cluster", "1x4")
        self.schedule("submit", "--name", "sleeps", "--max-workers", 4, "--estimated-duration", "60s", "--", "sleep", 600)
        self.wait_until("sleeps", "running", 1)
        why = self.schedule("why", "sleeps")
        self.assertRegex(why, r"expected to be done in (1 min 0 s|\d+(\.\d+)? s)\n")
        self.assertIn("one device more would not make it done sooner", why)
        self.assertIn("for the job that is there either way", self.schedule("what-if", "--add-node", "new:8"))
        self.assertNotIn("assuming", why)
        self.schedule("submit", "--name", "declares", "--max-workers", 2, "--speedup", "2:2", "--estimated-duration", "60s", "--",
                      "sleep", 600)
        self.wait_until("declares", "running", 2)
        self.assertIn("--speedup: '1:2'", self.schedule("submit", "--name", "x", "--speedup", "1:2", "--", "true", expect=2))
        for job in ("sleeps", "declares"):
            self.schedule("cancel", job)

    def test_a_job_that_cannot_start_holds_up_nothing_else(self):
        (self.state / "jobs").mkdir()
        (self.state / "jobs/squatted").touch()
        flags = ("--cluster", "1x2")
        service = self.serve(*flags)
        long = {"name": "long", "command": ["true", "x" * 200_000], "directory": "/", "workers": 1,
                "estimated_duration": 5, "restart_cost": 0, "grace_period": 5}
        (self.folder / "long.json").write_text(json.dumps(long))
        self.schedule("submit", "--file", self.folder / "long.json")
        self.wait_until("long", "failed")
        self.assertIn("Argument list too long", self.schedule("why", "long"))
        self.schedule("submit", "--name", "squatted", "--estimated-duration", "5s", "--", "true")
        self.schedule("submit", "--name", "good", "--estimated-duration", "5s", "--", "true")
        self.wait_until("good", "completed")
        self.assertIn("Not a directory", self.schedule("why", "squatted"))
        service.send_signal(signal.SIGKILL)
        service.wait()
        self.serve(*flags)
        (self.state / "jobs/squatted").unlink()
        self.wait_until("squatted", "completed")

    def test_a_full_disk_is_survived(self):
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", self.state], capture_output=True).returncode:
            self.skipTest("mounting a small file system needs root")
        self.addCleanup(subprocess.run, ["umount", "--lazy", self.state])
        service = self.serve("--cluster", "1x2")
        self.schedule("submit", "--name", "early", "--estimated-duration", "5s", "--",
                      "bash", "-c", f"echo $$ > {self.folder}/process; {self.until(self.folder / 'go')}")
        file = self.folder / "process"
        process = pathlib.Path("/proc", self.wait_for(
            lambda: file.exists() and file.read_text().strip(), "the command's begin"))
        with contextlib.suppress(OSError), open(self.state / "fill", "wb", 0) as fill:
            while True:
                fill.write(bytes(4096))
        self.assertIn("full", self.schedule("submit", "--name", "late", "--", "x" * 50_000, expect=1))
        (self.folder / "go").touch()
        self.wait_for(lambda: not process.exists(), "the command's end")
        self.assertIn("early", self.schedule("list"))
        (self.state / "fill").unlink()
        self.wait_until("early", "completed")
        self.schedule("submit", "--name", "late", "--estimated-duration", "5s", "--", "true")
        self.wait_until("late", "completed")
        self.assertIsNone(service.poll())

    def test_jobs_request_cpus_and_memory_of_nodes(self):
        cluster = self.folder / "nodes.yaml"
        cluster.write_text("version: 2\ndevice_types: [{name: cpu, kind: cpu, count: 4}]\nnodes:\n"
                           "  - {name: large, cpus: 4, memory: 16 GB, devices: [{type: cpu, count: 2}]}\n"
                           "  - {name: small, cpus: 1, memory: 16 GB, devices: [{type: cpu, count: 2}]}\n")
        self.serve("--cluster", cluster, "--slot-duration", "1s")
        self.schedule("submit", "--name", "first", "--cpus-per-worker", 3, "--memory-per-worker", "10GB", "--estimated-duration", "60s",
                      "--", "sleep", 600)
        self.assertEqual(self.wait_until("first", "running", 1)[4], "large:1")
        self.assertIn("node large: up, 1 of 2 cpu, 3 of 4 CPUs, 10 GB of 16 GB of memory used", self.schedule("list"))
        self.schedule("submit", "--name", "second", "--cpus-per-worker", 2, "--estimated-duration", "60s", "--", "true")
        why = self.schedule("why", "second")
        self.assertIn("it needs 1 device with 2 CPUs, and 3 devices are free, but their nodes have CPUs left for none", why)
        self.assertIn("blocked by: resources", why)
        self.assertIn("cpus_per_worker is '5'; accepted: up to 4, the most that a node has",
                      self.schedule("submit", "--name", "third", "--cpus-per-worker", 5, "--", "true", expect=2))
        self.schedule("cancel", "first")
        self.wait_until("second", "completed")

    def test_refusals(self):
        self.assertIn("no service has been started", self.schedule("list", expect=2))
        first = self.serve("--cluster", "2x2")
        second = subprocess.run([BINARY, "schedule", "serve", "--state-dir", self.state, "--cluster", "2x2"],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(second.returncode, 1)
        self.assertIn(f"process {first.pid} is a service on this state already", second.stderr)
        self.assertIn("accepted: up to 4", self.schedule("submit", "--name", "big", "--workers", 5, "--", "true", expect=2))
        self.assertIn("name", self.schedule("submit", "--name", "a b", "--", "true", expect=2))
        self.assertIn("there is no job; accepted: a command behind --", self.schedule("submit", "--name", "a", expect=2))
        self.assertIn("--name: is not given", self.schedule("submit", "--", "true", expect=2))
        self.assertIn("workers is '5'; accepted: up to 4", self.schedule("submit", "--name", "big", "--workers", 5, "--", "true", expect=2))
        self.assertIn("there is no job 'nobody'", self.schedule("why", "nobody", expect=2))
        self.assertIn("there is no node 'x'", self.schedule("drain", "x", expect=2))
        self.schedule("submit", "--name", "stays", "--estimated-duration", "600s", "--", "sleep", 600)
        for name in ("", "stays?", "a/b", "stays/why"):
            refused = f"JOB: '{name}'; accepted: the name or number of a job"
            for command in ("why", "logs"):
                self.assertIn(refused, self.schedule(command, name, expect=2))
            self.assertIn(refused, self.schedule("cancel", "stays", name, expect=2))
            self.assertIn(f"NODE: '{name}'; accepted: the name of a node", self.schedule("drain", name, expect=2))
        self.assertNotIn("stopping", self.schedule("list"))
        self.assertNotIn("cancelled", self.schedule("list"))
        self.schedule("cancel", "stays")
        self.assertIn("--add-node", self.schedule("what-if", "--add-node", "x", expect=2))
        os.chmod(self.state / "token", 0o644)
        self.assertIn("token", self.schedule("list", expect=2))
        os.chmod(self.state / "token", 0o600)
        (self.state / "token").write_text("0" * 64)
        self.assertIn("token is missing or wrong", self.schedule("list", expect=1))


if __name__ == "__main__":
    unittest.main()
