"""An elastic job gets other workers while it runs, asked by hand or by the scheduler: nothing is lost or used twice, and
the result is that of one worker."""

import json
import os
import signal
import unittest

from elastic import ElasticRun
from harness import interrupt, relative_difference
from live_service import LiveService


def read_count(folder):
    """What the launcher says of its workers in this folder; empty where it says nothing."""
    try:
        return json.loads((folder / "workers.json").read_text())
    except FileNotFoundError:
        return {}


class Resizing(ElasticRun):
    def assert_as_one_worker_did(self, run, *flags):
        """One worker does as many steps as the run did before it was stopped."""
        steps = [line["step"] for line in self.lines(run) if "loss" in line]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.train("one", *flags, "--workers", 1, "--steps", len(steps))
        self.assertLess(relative_difference(self.weights("one"), self.weights(run)), self.tolerance)
        self.assertEqual(self.not_used_once(run), 0)
        losses, expected = self.losses(run), self.losses("one")
        self.assertLess(max(abs(losses[step] - expected[step]) for step in steps), 1e-8)


class ByHand(Resizing):
    def ask(self, run, request):
        """Once it has been answered: the answer."""
        folder = self.folder / run
        (folder / "request").write_text(request + "\n")
        (folder / "request").rename(folder / "workers")
        return self.wait_for(lambda: (count := read_count(folder)).get("asked") == request and count, f"an answer to {request}")

    def wait_for(self, holds, what):
        return LiveService.wait_for(self, holds, what)

    def shares(self, run):
        """The ranks that had samples, of each step."""
        return {tuple(rank for rank, samples in enumerate(line["samples"]) if samples > 0) for line in self.lines(run) if "loss" in line}

    def test_a_job_grows_beyond_what_it_began_with_and_shrinks(self):
        run = "run"
        flags = (*self.double, "--epochs", 10000)
        process = self.start(run, *flags, "--cluster", self.cluster([0.001] * 4), "--elastic", "1:4", "--workers", 2)
        self.wait_for_step(run, 3)
        self.assertEqual(len(self.worker_processes(process.pid)), 2)
        wanted = {"workers": 2, "min_workers": 1, "max_workers": 4}
        self.wait_for(lambda: wanted.items() <= read_count(self.folder / run).items(), "the launcher's number of workers")
        for rubbish in ("many", "5", "0", "-1", "2x", "3.5", ""):
            refused = self.ask(run, rubbish)
            self.assertEqual(refused["refused"], f"workers: '{rubbish}' is asked for; accepted: 1 to 4")
            self.assertEqual(refused["workers"], 2)
        for number, request in enumerate(("4", "1 and", "3 more", "2")):
            answer = self.ask(run, request)
            self.assertEqual(answer["refused"], "")
            self.assertEqual(answer["workers"], int(request[0]))
            self.assertEqual(len(self.worker_processes(process.pid)), int(request[0]))
            ranks = tuple(range(int(request[0])))
            self.wait_for(lambda: ranks in self.shares(run), f"a step of ranks {ranks}")  # noqa: B023
        interrupt(process)
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 130, output)
        self.assertIn("4 workers are asked for, 2 are there", output)
        self.assertFalse((self.folder / run / "workers.json").exists())
        self.assert_as_one_worker_did(run, *flags)
        self.assertLessEqual({(0, 1), (0, 1, 2, 3), (0,), (0, 1, 2)}, self.shares(run))

    def test_with_a_parameter_server(self):
        run, flags = "run", ("--epochs", 10000, "--gradient-sync.method", "parameter-server")
        self.tolerance = 1e-4
        process = self.start(run, *flags, "--cluster", self.cluster([0.001] * 3), "--elastic", "1:3", "--workers", 1)
        self.wait_for_step(run, 3)
        for request in ("3", "2"):
            answer = self.ask(run, request)
            self.assertEqual((answer["workers"], answer["refused"]), (int(request), ""))
        interrupt(process)
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 130, output)
        self.assertEqual(self.not_used_once(run), 0)
        steps = [line["step"] for line in self.lines(run) if "loss" in line]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_a_job_that_is_not_elastic_keeps_its_workers(self):
        process = self.start("run", "--epochs", 10000, "--cluster", self.cluster([0.001] * 2))
        self.wait_for_step("run", 3)
        self.assertIn("the job is not elastic", self.ask("run", "1")["refused"])
        self.assertEqual(len(self.worker_processes(process.pid)), 2)
        interrupt(process)
        process.communicate(timeout=120)


class ByTheScheduler(LiveService, Resizing):
    def test_a_job_grows_and_shrinks_as_others_go_and_come(self):
        flags = ("--cluster", "1x4", "--policy", "drf", "--slot-duration", "1s", "--preemption-cooldown", "0")
        service = self.serve(*flags)
        other = ("--workers", 2, "--estimated-duration", "5s", "--restart-cost", 0)
        self.schedule("submit", "--name", "first", *other, "--", "bash", "-c", self.until(self.state / "first"))
        self.wait_until("first", "running", 2)
        double = "model: {name: mlp, hidden_sizes: [16], dtype: float64, dropout: 0.2}"
        text = self.job.read_text().replace("model: {name: mlp, hidden_sizes: [16]}", double)
        self.job.write_text(text.replace("epochs: 2", "epochs: 10000") + f"cluster: {self.cluster([0.001] * 4)}\n")
        self.schedule("submit", "--name", "train", "--train", self.job, "--workers", 2, "--min-workers", 1,
                      "--max-workers", 4, "--resize", "in-place", "--restart-cost", "30s")
        self.wait_until("train", "running", 2)
        (self.folder / "train").symlink_to(self.state / "jobs/train/work")
        self.wait_for_step("train", 3)

        # The service is killed while the job grows.
        (self.state / "first").touch()
        request = self.state / "jobs/train/attempt-1/workers"
        self.wait_for(request.exists, "that it is asked to grow")
        self.assertEqual(request.read_text(), "4 1\n")
        service.send_signal(signal.SIGKILL)
        service.wait()
        self.serve(*flags)
        self.wait_for_workers(4)
        self.assertIn("grown from 2 to 4 workers, in place", self.schedule("why", "train"))
        self.schedule("submit", "--name", "second", *other, "--", "bash", "-c", self.until(self.state / "second"))
        self.wait_until("second", "running", 2)
        self.wait_for_workers(2)
        self.assertIn("shrunk from 4 to 2 workers for second, in place", self.schedule("why", "train"))
        job = self.find_job("train")
        self.assertEqual(job["attempt"], 1)
        self.assertEqual(job["restart_cost"], 30)
        self.assertGreater(job["measured_restart_cost"], 0)
        self.assertIn("measured", self.schedule("list"))
        (self.state / "second").touch()
        self.schedule("cancel", "train")
        self.wait_until("train", "cancelled")
        self.assertEqual(sorted(os.listdir(self.state / "jobs/train")), ["attempt-1", "work"])
        self.assert_as_one_worker_did("train", "--cluster", "")

    def test_a_job_that_is_elastic_by_itself_is_resized_in_place(self):
        self.serve("--cluster", "1x4", "--policy", "drf", "--slot-duration", "1s", "--preemption-cooldown", "0")
        text = self.job.read_text().replace("epochs: 2", "epochs: 10000")
        self.job.write_text(f"{text}cluster: {self.cluster([0.001] * 4)}\nelastic: '1:4'\n")
        self.schedule("submit", "--name", "train", "--train", self.job, "--workers", 4, "--min-workers", 1, "--restart-cost", "30s")
        self.wait_for_workers(4)
        self.schedule("submit", "--name", "other", "--workers", 2, "--restart-cost", 0, "--", "bash", "-c", self.until(self.state / "other"))
        self.wait_until("other", "running", 2)
        self.wait_for_workers(2)
        self.assertIn("shrunk from 4 to 2 workers for other, in place", self.schedule("why", "train"))
        self.assertEqual(self.find_job("train")["attempt"], 1)
        (self.state / "other").touch()
        self.schedule("cancel", "train")
        self.wait_until("train", "cancelled")

    def find_job(self, name):
        jobs = json.loads(self.schedule("list", "--json"))["jobs"]
        return next(job for job in jobs if job["name"] == name)

    def wait_for_workers(self, number):
        def is_there():
            job = self.find_job("train")
            # The launcher of a new attempt writes its number a little after the service calls it running.
            said = read_count(self.state / "jobs/train/attempt-1").get("workers")
            return job["state"] == "running" and job["resizing_to"] is None and job["workers"] == said == number
        self.wait_for(is_there, f"{number} workers, by the service and by the launcher", seconds=120)


if __name__ == "__main__":
    unittest.main()
