"""The same job under torchrun, mpirun and by hand from a file of addresses."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

import numpy
from harness import BINARY, Scenario, children


class Launchers(Scenario):
    def run_command(self, command, environment=None):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=180,
                              env={**os.environ, **(environment or {})})
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def compare(self, run):
        self.train("own", "--workers", 2, "--batch-split.mode", "equal")
        self.assert_bitwise("own", run)
        self.assertTrue((self.folder / run / "report.html").exists())
        self.assertEqual(self.not_used_once(run), 0)
        self.assertFalse((self.folder / run / "rendezvous.json").exists(), "the file holds a secret")

    flags = ("--workers", "2", "--batch-split.mode", "equal")

    def test_torchrun(self):
        torchrun = pathlib.Path(sys.executable).parent / "torchrun"
        if not torchrun.exists():
            self.skipTest("torchrun is missing beside this Python")
        self.run_command([str(torchrun), "--no-python", "--nproc-per-node", "2", "--master-port", "29511",
                          *self.command("run", *self.flags)])
        self.compare("run")

    def test_mpirun(self):
        if not shutil.which("mpirun"):
            self.skipTest("mpirun is missing; Debian's package is openmpi-bin")
        self.run_command(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", *self.command("run", *self.flags)],
                         {"OMPI_MCA_btl_base_warn_component_unused": "0"})
        self.compare("run")

    def assert_rigid(self, command):
        """An elastic job is as any other one: its result, and its end where one worker is killed."""
        elastic = ("--elastic", "1:2")
        told = self.run_command([*command, *self.command("run", *self.flags, *elastic)])
        self.assertIn("elastic: 1:2 changes nothing under", told)
        self.compare("run")
        process = subprocess.Popen([*command, *self.command("lost", *self.flags, *elastic, "--epochs", "10000")],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.kill)
        self.wait_for_step("lost", 5)
        os.kill(children(process.pid, "train")[-1], signal.SIGKILL)
        output = process.communicate(timeout=120)[0]
        self.assertNotEqual(process.returncode, 0, output)
        self.assertNotIn("lost", [line.get("event") for line in self.lines("lost")])

    def test_an_elastic_job_under_torchrun_is_rigid(self):
        torchrun = pathlib.Path(sys.executable).parent / "torchrun"
        if not torchrun.exists():
            self.skipTest("torchrun is missing beside this Python")
        self.assert_rigid([str(torchrun), "--no-python", "--nproc-per-node", "2", "--master-port", "29512"])

    def test_an_elastic_job_under_mpirun_is_rigid(self):
        if not shutil.which("mpirun"):
            self.skipTest("mpirun is missing; Debian's package is openmpi-bin")
        self.assert_rigid(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"])

    def test_a_file_of_addresses(self):
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1:29533\n127.0.0.1  # the second rank\n")
        secret = self.folder / "secret"
        secret.write_text("0123456789abcdef0123456789abcdef")
        secret.chmod(0o600)
        environment = {**os.environ, "MOTLEY_SECRET_FILE": str(secret)}
        command = self.command("run", *self.flags, "--hosts", hosts, "--rank")
        second = subprocess.Popen([*command, "1"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(second.kill)
        self.run_command([*command, "0"], environment)
        self.assertEqual(second.wait(timeout=30), 0, second.stdout.read())
        self.compare("run")

    def start_by_hand(self, rank, folder, hosts, *flags):
        """A rank as on a host of its own: its run folder is no other's."""
        secret = self.folder / "secret"
        secret.write_text("0123456789abcdef0123456789abcdef")
        secret.chmod(0o600)
        command = self.command(folder, "--batch-split.mode", "equal", *flags, "--hosts", hosts, "--rank", rank)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env={**os.environ, "MOTLEY_SECRET_FILE": str(secret)})
        self.addCleanup(process.kill)
        return process

    def test_hosts_whose_data_differ(self):
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1:29537\n127.0.0.1\n")
        for name in ("train.npy", "train_targets.npy"):
            numpy.save(self.folder / f"short-{name}", numpy.load(self.folder / name)[:-2])
        short = ("--data.train", self.folder / "short-train.npy", "--data.train-targets", self.folder / "short-train_targets.npy")
        ranks = [self.start_by_hand(rank, f"host-{rank}/run", hosts, *flags) for rank, flags in ((0, ()), (1, short))]
        for rank in ranks:
            output = rank.communicate(timeout=60)[0]
            self.assertEqual(rank.returncode, 2, output)
            self.assertIn("data: rank 1 has", output)
            self.assertIn("accepted: the same data on all hosts", output)

    def test_hosts_without_a_common_folder(self):
        """Their number is that of the addresses; logs, timeline and page come together where rank 0 is."""
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1:29535\n127.0.0.1\n")
        ranks = [self.start_by_hand(rank, f"host-{rank}/run", hosts, "--timeline.steps", 20) for rank in (0, 1)]
        for rank in ranks:
            text = rank.communicate(timeout=120)[0]
            self.assertEqual(rank.returncode, 0, text)
        self.compare("host-0/run")
        written = self.folder / "host-0/run"
        self.assertIn("rank 0", (written / "logs/rank-0.log").read_text())
        self.assertEqual((written / "logs/timeline-rank-1.json").read_bytes(),
                         (self.folder / "host-1/run/logs/timeline-rank-1.json").read_bytes())
        steps = {}  # of each rank: when it began them
        for event in json.loads((written / "timeline.json").read_text())["traceEvents"]:
            if event["ph"] == "X":
                steps.setdefault(event["pid"], {}).setdefault(event["args"]["step"], []).append((event["ts"], event["ts"] + event["dur"]))
        self.assertEqual(set(steps), {0, 1})
        for step in sorted(set(steps[0]) & set(steps[1]))[1:]:  # by one clock, no rank begins a step that another has not ended
            spans = [steps[rank][step] for rank in (0, 1)]
            self.assertLess(max(min(span)[0] for span in spans), min(max(end for _, end in span) for span in spans), step)

    def test_ranks_with_different_settings_name_them(self):
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1:29536\n127.0.0.1\n")
        ranks = [self.start_by_hand(rank, f"host-{rank}/run", hosts, "--optimizer.learning-rate", 0.25 * (rank + 1))
                 for rank in (0, 1)]
        for rank in ranks:
            last = rank.communicate(timeout=120)[0].strip().splitlines()[-1]
            self.assertEqual(rank.returncode, 1, last)
            self.assertRegex(last, r"rank 1 has optimizer\.learning_rate '0\.5', rank 0 has '0\.25'|"
                                   r"rank 0 has optimizer\.learning_rate '0\.25', rank 1 has '0\.5'")

    def test_a_wrong_secret_and_a_missing_rank_are_named(self):
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1:29534\n127.0.0.1\n")
        command = self.command("run", *self.flags, "--deadline.join", "20 s", "--hosts", hosts, "--rank")
        processes = []
        for rank in (0, 1):
            secret = self.folder / f"secret{rank}"
            secret.write_text("0123456789abcdef" + str(rank))
            secret.chmod(0o600)
            processes.append(subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                              text=True, env={**os.environ, "MOTLEY_SECRET_FILE": str(secret)}))
        for process in processes:
            output = process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 1, output)
            self.assertIn("secret", output.strip().splitlines()[-1])
        open_to_all = self.folder / "secret1"
        open_to_all.chmod(0o644)
        refused = subprocess.run([*self.command("refused", *self.flags, "--hosts", hosts, "--rank", "0", "--secret-file", open_to_all)],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertFalse((self.folder / "refused").exists(), refused.stdout)
        alone = subprocess.run([*command, "0", "--overwrite"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               timeout=60, env={**os.environ, "MOTLEY_SECRET_FILE": str(self.folder / "secret0")})
        self.assertEqual(alone.returncode, 1)
        self.assertRegex(alone.stdout.strip().splitlines()[-1], r"\brank 1\b")


if __name__ == "__main__":
    unittest.main()
