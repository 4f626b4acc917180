"""What happens when things go wrong in the middle: a killed or stuck rank, a full disk, numbers that diverge."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

import numpy
from harness import Scenario, read_safetensors, shared_memory


class Faults(Scenario):
    def kill_one(self, method, victim, how, *more):
        paces = self.cluster([0.005, 0.005, 0.005])
        flags = ("--cluster", paces, "--gradient-sync.method", method, "--checkpoint.every-steps", 4, *more)
        run = f"{method}-{victim}"
        process = self.start(run, *flags)
        self.wait_for_step(run, 9)
        workers = self.worker_processes(process.pid)
        self.shared = set().union(*map(shared_memory, workers))
        os.kill(workers[victim], how)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 1, output)
        last = output.strip().splitlines()[-1]
        self.assertIn(f"rank {victim}", last)
        self.train(run, *flags, "--resume")
        self.assertEqual(self.not_used_once(run), 0)
        self.assertEqual(sorted(self.losses(run)), list(range(1, 21)))
        return last

    def test_a_killed_rank_is_named_and_the_job_resumes(self):
        for method in ("shared-memory", "tcp-ring"):
            for victim in (0, 2):
                with self.subTest(method=method, victim=victim):
                    self.assertIn("Killed", self.kill_one(method, victim, signal.SIGKILL, "--deadline.step", "6 s"))

    def test_a_stopped_rank_is_named(self):
        for method, victim, more in (
            ("shared-memory", 1, ("--deadline.silence", "3 s", "--deadline.step", "10min")),
            ("tcp-ring", 0, ("--deadline.silence", "3 s", "--deadline.step", "10min")),
            ("shared-memory", 2, ("--deadline.silence", "10min", "--deadline.step", "3 s")),
        ):
            with self.subTest(method=method, victim=victim):
                self.kill_one(method, victim, signal.SIGSTOP, *more)

    def test_shared_memory_has_no_name_that_could_be_left_behind(self):
        for method in ("shared-memory", "parameter-server"):
            with self.subTest(method=method):
                self.kill_one(method, 1, signal.SIGKILL)
                self.assertTrue(self.shared)
                self.assertEqual([name for name in self.shared if not name.endswith(" (deleted)") and self.folder.name not in name], [])

    def test_workers_write_a_checkpoint_where_their_launcher_is_killed_and_end(self):
        self.train("whole", "--workers", 2)
        process = self.start("run", "--cluster", self.cluster([0.002, 0.002]))
        self.wait_for_step("run", 2)
        workers = self.worker_processes(process.pid)
        self.assertEqual(len(workers), 2)
        process.kill()
        process.wait()
        deadline = time.monotonic() + 20
        while any(pathlib.Path(f"/proc/{worker}").exists() for worker in workers):
            self.assertLess(time.monotonic(), deadline, "a worker outlived its launcher")
            time.sleep(0.05)
        done = max(self.losses("run"))
        self.assertIn(f"step-{done:08}", os.listdir(self.folder / "run/checkpoint"))
        self.assertIn(f"resumed after step {done}", self.train("run", "--workers", 2, "--resume"))
        self.assertEqual(list(self.losses("run")), list(self.losses("whole")))

    def test_a_resumption_waits_for_the_last_step_of_workers_whose_launcher_was_killed(self):
        flags = ("--cluster", self.cluster([0.004, 0.004]), "--epochs", 4)
        faults = self.folder / "faults"
        faults.mkdir()
        process = self.start("run", *flags, environment={"MOTLEY_FAULTS": str(faults)})
        self.wait_for_step("run", 2)
        held = faults / "0.checkpoint"
        held.write_text("wait")
        process.kill()
        process.wait()
        resumed = self.start("run", *flags, "--resume")
        lines = []
        while "for the end of the workers" not in (lines or [""])[-1]:
            lines.append(resumed.stdout.readline())
            self.assertTrue(lines[-1], lines)
        held.unlink()
        output = resumed.stdout.read()
        self.assertEqual(resumed.wait(timeout=60), 0, output)
        self.assertIn("resumed after step", output)
        self.assertEqual(sorted(self.losses("run")), list(range(1, 41)))
        self.assertEqual(self.not_used_once("run"), 0)

    def test_a_hangup_is_one_stop_and_none_under_nohup(self):
        paced = ("--cluster", self.cluster([0.004, 0.004]))
        process = self.start("run", *paced)
        self.wait_for_step("run", 2)
        for _ in range(2):  # as a terminal does that closes
            process.send_signal(signal.SIGHUP)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 130, output)
        self.assertTrue(list((self.folder / "run" / "checkpoint").iterdir()))
        process = subprocess.Popen(["nohup", *self.command("other", *paced)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.kill)
        self.wait_for_step("other", 2)
        process.send_signal(signal.SIGHUP)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0, output)

    def test_a_loss_that_is_no_number_stops_the_job(self):
        self.train("run", "--workers", 2, "--steps", 5)
        output = self.train("run", "--workers", 2, "--steps", 40, "--optimizer.learning-rate", 1e30, "--resume", expect=1)
        self.assertIn("the loss is", output.strip().splitlines()[-1])
        self.assertIn("step 5", output.strip().splitlines()[-1])
        self.train("run", "--workers", 2, "--steps", 10, "--resume")

    def test_a_checkpoint_that_is_called_intact_is_one_to_go_on_from(self):
        flags = ("--workers", 1, "--checkpoint.every-steps", 1, "--checkpoint.keep", 20, "--optimizer.momentum", 0)
        for rate in (1e10, 1e19, 1e30):
            with self.subTest(rate=rate):
                run = f"run-{rate}"
                last = self.train(run, *flags, "--optimizer.learning-rate", rate, expect=1).strip().splitlines()[-1]
                checkpoints = sorted((self.folder / run / "checkpoint").glob("step-*"))
                for checkpoint in checkpoints:
                    for values in read_safetensors(checkpoint / "weights.safetensors").values():
                        self.assertTrue(numpy.isfinite(numpy.sum(values * values, dtype=numpy.float32)), checkpoint)
                intact = re.search(r"intact \(step (\d+)\)", last)
                if not intact and checkpoints:  # the newest is where the run broke down
                    self.assertIn(f"(step {int(checkpoints[-1].name[5:])}) is what this step began with", last)
                    shutil.rmtree(checkpoints.pop())
                if checkpoints:
                    step = int(checkpoints[-1].name[5:])
                    self.assertIn(intact and int(intact[1]), (None, step))
                    self.train(run, *flags, "--optimizer.learning-rate", 1e-30, "--steps", step + 1, "--resume")

    def flip_bit(self, process, values):
        """Of the first of these numbers, wherever the process has them in memory."""
        found = 0
        with open(f"/proc/{process}/mem", "r+b", buffering=0) as memory:
            for line in pathlib.Path(f"/proc/{process}/maps").read_text().splitlines():
                begin, end = (int(address, 16) for address in line.split()[0].split("-"))
                if not line.split()[1].startswith("rw") or "/dev/" in line:
                    continue
                memory.seek(begin)
                at = memory.read(end - begin).find(values)
                if at >= 0:
                    memory.seek(begin + at)
                    memory.write(bytes([values[0], values[1], values[2] ^ 0x40, values[3]]))  # float32: of the fraction
                    found += 1
        self.assertGreater(found, 0)

    def test_a_bit_that_flips_in_one_replica_gets_into_no_checkpoint(self):
        faults = self.folder / "faults"
        faults.mkdir()
        flags = ("--cluster", self.cluster([0.001] * 3), "--checkpoint.every-steps", 4, "--deadline.step", "60 s")
        held, then = faults / "1.checkpoint", faults / "1.forward"
        held.write_text("wait")
        process = self.start("run", *flags, environment={"MOTLEY_FAULTS": str(faults)})
        self.wait_for_step("run", 4)
        then.write_text("wait")
        held.unlink()
        checkpoint = self.folder / "run/checkpoint/step-00000004"
        deadline = time.monotonic() + 60
        while not checkpoint.exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        weights = max(self.weights("run").values(), key=numpy.size)
        self.flip_bit(self.worker_processes(process.pid)[1], weights.tobytes())
        then.unlink()
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 1, output)
        self.assertIn("after step 8 the weights of rank 1 differ from those of ranks 0, 2,", output.strip().splitlines()[-1])
        self.assertEqual(os.listdir(checkpoint.parent), [checkpoint.name])
        self.assertIn("resumed after step 4", self.train("run", *flags, "--resume"))
        self.assertEqual(sorted(self.losses("run")), list(range(1, 21)))

    def small_disk(self, size):
        disk = self.folder / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("mounting a small file system needs root")
        self.addCleanup(subprocess.run, ["umount", "-l", disk])
        return disk

    def fill(self, disk):
        with open(disk / "filler", "wb", buffering=0) as filler:
            with self.assertRaises(OSError):
                while True:
                    filler.write(b"\0" * 1024)

    def test_a_full_disk_keeps_the_last_checkpoint(self):
        disk = self.small_disk("600k")
        self.train("disk/run", "--workers", 2, "--steps", 5, "--model.hidden-sizes", "64", "--timeline.steps", 0)
        self.fill(disk)
        output = self.train("disk/run", "--workers", 2, "--steps", 9, "--model.hidden-sizes", "64", "--resume", expect=1)
        self.assertIn("No space left", output)
        (disk / "filler").unlink()
        self.train("disk/run", "--workers", 2, "--steps", 9, "--model.hidden-sizes", "64", "--timeline.steps", 0, "--resume")
        self.assertEqual(max(self.losses("disk/run")), 9)

    def test_a_disk_that_fills_up_is_the_last_line(self):
        disk = self.small_disk("900k")
        process = self.start("disk/run", "--cluster", self.cluster([0.001, 0.001]), "--epochs", 20,
                             "--checkpoint.every-steps", 100, "--model.hidden-sizes", "64")
        self.wait_for_step("disk/run", 3)
        self.fill(disk)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 1, output)
        self.assertIn("rank 0: ", output.strip().splitlines()[-1])
        self.assertIn("No space left", output.strip().splitlines()[-1])

    def test_an_emulation_that_the_machine_is_too_busy_for_is_refused(self):
        output = self.train("run", "--cluster", self.cluster([1e-9, 1e-9]), "--epochs", 5, expect=1)
        self.assertIn("emulat", output.strip().splitlines()[-1])

    def test_a_run_that_is_alive_is_left_alone(self):
        process = self.start("run", "--cluster", self.cluster([0.002, 0.002]), "--epochs", 5)
        self.wait_for_step("run", 2)
        process.send_signal(signal.SIGSTOP)  # so that it does not end meanwhile
        for flag in ("--resume", "--overwrite"):
            last = self.train("run", flag, expect=2).strip().splitlines()[-1]
            self.assertIn(str(self.folder / "run"), last)
            self.assertIn(f"process {process.pid} ", last)
        process.send_signal(signal.SIGCONT)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertEqual(sorted(self.losses("run")), list(range(1, 51)))
        self.train("run", "--overwrite", "--steps", 2)

    def test_a_stop_during_the_start_is_no_failure(self):
        for delay in (0, 0.05, 0.2):
            with self.subTest(delay=delay):
                process = self.start(f"run-{delay}", "--workers", 2, "--epochs", 400)
                deadline = time.monotonic() + 60
                while len(self.worker_processes(process.pid)) < 2:
                    self.assertLess(time.monotonic(), deadline, "the workers did not start")
                    time.sleep(0.001)
                time.sleep(delay)
                process.send_signal(signal.SIGINT)
                output = process.communicate(timeout=60)[0]
                self.assertEqual(process.returncode, 130, output)
                last = output.strip().splitlines()[-1]
                self.assertIn("stopped as asked", last)
                has_checkpoint = any((self.folder / f"run-{delay}").glob("checkpoint/step-*"))
                self.assertIn("--resume" if has_checkpoint else "--overwrite", last)


if __name__ == "__main__":
    unittest.main()
