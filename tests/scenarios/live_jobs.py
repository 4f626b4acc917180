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
                      "bash", "-c", f"until [ -e {self.state}/enough ]; do sleep 0.1; done")
        self.wait_until("train", "running", 1)
        self.assertIn("shrunk from 2 to 1 workers for other", self.schedule("why", "train"))
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
        self.assertEqual(len([1 for line in self.lines("train") if "samples_lost_or_duplicated" in line]), 2, "epochs")

    def test_why_and_what_if_tell_what_blocks_a_job(self):
        self.serve("--cluster", "2x2", "--slot-duration", "1000s")
        self.schedule("submit", "--name", "small", "--workers", 3, "--estimated-duration", "60s", "--", "sleep", 60)
        self.wait_until("small", "running")
        self.schedule("submit", "--name", "large", "--workers", 4, "--estimated-duration", "60s", "--", "sleep", 60)
        self.assertIn("it needs 4 devices, and 1 of 4 are free", self.schedule("why", "large"))
        table = self.schedule("what-if", "--add-node", "new:4")
        self.assertIn("large", table)
        self.assertIn("on average done in", table)
        self.schedule("drain", "node0")
        self.assertIn("blocked by: nodes", self.schedule("why", "large"))
        self.assertIn("cancelled", self.schedule("cancel", "large"))
        self.schedule("cancel", "small")
        self.wait_until("small", "cancelled")

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
            self.skipTest("cannot mount a small disk")
        self.addCleanup(subprocess.run, ["umount", "--lazy", self.state])
        service = self.serve("--cluster", "1x2")
        self.schedule("submit", "--name", "early", "--estimated-duration", "5s", "--",
                      "bash", "-c", f"echo $$ > {self.folder}/process; until [ -e {self.folder}/go ]; do sleep 0.1; done")
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

    def test_refusals(self):
        self.assertIn("no service has been started", self.schedule("list", expect=2))
        first = self.serve("--cluster", "2x2")
        second = subprocess.run([BINARY, "schedule", "serve", "--state-dir", self.state, "--cluster", "2x2"],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(second.returncode, 1)
        self.assertIn(f"process {first.pid} is a service on this state already", second.stderr)
        self.assertIn("accepted: up to 4", self.schedule("submit", "--name", "big", "--workers", 5, "--", "true", expect=2))
        self.assertIn("name", self.schedule("submit", "--name", "a b", "--", "true", expect=2))
        self.assertIn("has no job", self.schedule("submit", "--name", "a", expect=2))
        self.assertIn("there is no job 'nobody'", self.schedule("why", "nobody", expect=2))
        self.assertIn("there is no node 'x'", self.schedule("drain", "x", expect=2))
        self.assertIn("--add-node", self.schedule("what-if", "--add-node", "x", expect=2))
        os.chmod(self.state / "token", 0o644)
        self.assertIn("token", self.schedule("list", expect=2))
        os.chmod(self.state / "token", 0o600)
        (self.state / "token").write_text("0" * 64)
        self.assertIn("token is missing or wrong", self.schedule("list", expect=1))


if __name__ == "__main__":
    unittest.main()
