"""motley schedule serve on Slurm: several slurmd of this machine as nodes. Training jobs are resized, lose a node, and use
every sample once an epoch nevertheless; what Slurm makes of ends, failures and cancellations."""

import re
import statistics
import subprocess
import unittest

import slurm_cluster
from harness import BINARY
from live_service import LiveService

# Long enough that others come and go meanwhile.
JOB = """
name: {name}
model: {{name: mlp, hidden_sizes: [128, 128]}}
data: {{name: fashion-mnist}}
global_batch_size: 240
epochs: {epochs}
seed: {seed}
optimizer: {{name: sgd, learning_rate: 0.05, momentum: 0.9}}
evaluate: {{every_epochs: -1}}
checkpoint: {{every_steps: 100}}
"""


@unittest.skipIf(slurm_cluster.why_not(), slurm_cluster.why_not())
class SlurmJobs(LiveService):
    flags = ("--executor", "slurm", "--policy", "drf", "--slot-duration", "1s", "--preemption-cooldown", "0")

    def setUp(self):
        super().setUp()
        self.cluster = slurm_cluster.SlurmCluster(nodes=4, cpus=2)
        self.addCleanup(self.cluster.stop)
        self.environment = self.cluster.environment

    def job_folder(self, job):
        return self.state / "jobs" / job

    def output(self, job):
        return "".join(file.read_text() for file in sorted(self.job_folder(job).glob("attempt-*/output")))

    def write_job(self, name, epochs, seed):
        file = self.folder / f"{name}.yaml"
        file.write_text(JOB.format(name=name, epochs=epochs, seed=seed))
        return file

    def link_run(self, name):
        (self.folder / name).symlink_to(self.job_folder(name) / "work")

    def running_nodes(self):
        """Of each running job, by its name."""
        jobs = [line.split() for line in self.schedule("list").splitlines()]
        return {cells[1]: [cell.split(":")[0] for cell in cells if re.fullmatch(r"n\d+:\d+", cell)]
                for cells in jobs if cells[2:3] == ["running"]}

    def epochs_done(self, run):
        return sum("samples_lost_or_duplicated" in line for line in self.lines(run))

    def accuracy(self, run):
        """On the samples of the last epoch, as each was come to: one batch of 240 says too little."""
        steps = [line for line in self.lines(run) if "accuracy" in line]
        return statistics.mean(line["accuracy"] for line in steps if line["epoch"] == steps[-1]["epoch"])

    def test_training_jobs_are_resized_and_outlive_a_node(self):
        self.serve(*self.flags)
        epochs = {"first": 12, "second": 8, "third": 8}
        for seed, (name, count) in enumerate(epochs.items()):
            job = self.write_job(name, count, seed)
            self.schedule("submit", "--name", name, "--train", job, "--workers", 2, "--min-workers", 1, "--max-workers", 4,
                          "--restart-cost", "1s", "--estimated-duration", "60s")
            self.link_run(name)
            if name == "first":
                self.wait_until("first", "running", 4)
                self.wait_for_step("first", 150, seconds=120)
        self.wait_until("third", "running")
        # Eight CPUs for three jobs of up to four. On a busy machine others may be done by now, and it may have grown again.
        self.assertRegex(self.schedule("why", "first"), "shrunk from 4 to . workers|grown from . to . workers|completed after")
        for name in epochs:  # by the time that the last has begun, the others may be done
            self.wait_for_step(name, 300, seconds=240)
        on = self.wait_for(self.running_nodes, "that a job runs")
        victim = max(node for nodes in on.values() for node in nodes)
        self.cluster.kill(victim)
        hit = [name for name, nodes in on.items() if victim in nodes and self.epochs_done(name) < epochs[name] - 1]
        for name in epochs:
            self.wait_until(name, "completed", seconds=400)
        self.wait_for(lambda: f"node {victim}: down" in self.schedule("list"), "that the node is known to be down")
        for name, count in epochs.items():
            used = [line for line in self.lines(name) if "samples_lost_or_duplicated" in line]
            self.assertEqual(len(used), count, f"epochs of {name}")
            self.assertEqual(self.not_used_once(name), 0, name)
        for name in hit:
            self.assertGreaterEqual(len(list(self.job_folder(name).glob("attempt-*"))), 2, name)
        # As good as on its own, undisturbed.
        job = self.folder / "second.yaml"
        subprocess.run([BINARY, "train", job, "--run-directory", self.folder / "alone", "--workers", "1", "--quiet"], check=True,
                       capture_output=True, timeout=300)
        self.assertAlmostEqual(self.accuracy("second"), self.accuracy("alone"), delta=0.02)

    def submit(self, name, *words, workers=1, **flags):
        options = [word for flag, value in flags.items() for word in (f"--{flag.replace('_', '-')}", value)]
        self.schedule("submit", "--name", name, "--workers", workers, "--restart-cost", 0, "--estimated-duration", "60s", *options,
                      "--", *words)

    def test_tasks_are_where_they_were_put_and_ends_are_told(self):
        self.serve(*self.flags)
        self.submit("spread", "bash", "-c", "echo $MOTLEY_NODES; $MOTLEY_SRUN bash -c 'echo $SLURM_PROCID on $SLURMD_NODENAME'",
                    workers=3)
        self.submit("fails", "bash", "-c", "echo once; exit 3")
        self.wait_until("spread", "completed")
        first, *ranks = self.output("spread").split("\n")[:4]
        wanted = {}
        for share in first.split(","):
            node, workers = share.split(":")
            wanted[node] = int(workers)
        found = {}
        for line in ranks:
            node = line.split(" on ")[1]
            found[node] = found.get(node, 0) + 1
        self.assertEqual(found, wanted)
        self.assertEqual(sorted(int(line.split()[0]) for line in ranks), [0, 1, 2])
        self.wait_until("fails", "failed")
        self.assertIn("its command ended with exit code 3", self.schedule("why", "fails"))
        self.assertEqual(self.output("fails"), "once\n")
        self.submit("nothing", "no-such-program")
        self.wait_until("nothing", "failed")
        self.assertIn("cannot start 'no-such-program': No such file or directory", self.schedule("why", "nothing"))

    def test_slurm_gives_workers_the_cpus_and_memory_that_they_request(self):
        self.serve(*self.flags)
        self.submit("asks", "bash", "-c", "echo $MOTLEY_NODES; echo $SLURM_CPUS_PER_TASK $SLURM_MEM_PER_CPU", workers=2,
                    cpus_per_worker=2, memory_per_worker="400MiB")
        self.wait_until("asks", "completed")
        nodes, given = self.output("asks").split("\n")[:2]
        self.assertRegex(nodes, r"n\d:1,n\d:1")  # of two CPUs each
        self.assertEqual(given, "2 200")
        refused = ("--workers", 1, "--memory-per-worker", "2GiB", "--", "true")
        self.assertIn("memory_bytes_per_worker is '2147483648'; accepted: up to 1048576000, the most that a node has",
                      self.schedule("submit", "--name", "large", *refused, expect=2))

    def test_a_command_that_fails_with_its_node_is_not_to_blame(self):
        self.serve(*self.flags)
        mark = self.folder / "mark"
        self.submit("hit", "bash", "-c",
                    f"[ $MOTLEY_ATTEMPT -gt 1 ] && exit 0; echo begun; until [ -e {mark} ]; do sleep 0.1; done; exit 1",
                    workers=3)
        self.cluster.wait(lambda: "begun" in self.output("hit"), "the job begins")
        self.wait_until("hit", "running")
        last = max(self.running_nodes()["hit"])
        self.cluster.kill(last)
        mark.touch()
        self.wait_until("hit", "completed")
        self.assertIn(f"node {last}: down", self.schedule("list"))

    def test_a_cancelled_job_may_save_its_work_and_a_deaf_one_is_killed(self):
        self.serve(*self.flags)
        waits = "echo ready; for i in $(seq 600); do sleep 0.1; done"
        self.submit("tasks", "bash", "-c", f"$MOTLEY_SRUN bash -c 'trap \"echo saved; exit 5\" TERM; {waits}'", workers=3)
        self.submit("plain", "bash", "-c", f"trap 'echo saved; exit 5' TERM; {waits}")
        self.submit("deaf", "bash", "-c", f"trap '' TERM; {waits}", grace_period="1s")
        for job, tasks in (("tasks", 3), ("plain", 1), ("deaf", 1)):
            self.wait_until(job, "running")
            self.cluster.wait(lambda job=job, tasks=tasks: self.output(job).count("ready") == tasks, f"{job} begins")
            self.schedule("cancel", job)
        for job, tasks in (("tasks", 3), ("plain", 1), ("deaf", 0)):
            self.wait_until(job, "cancelled")
            self.assertEqual(self.output(job).count("saved"), tasks, job)
        self.cluster.wait(lambda: not self.cluster.ask("squeue", "--noheader"), "all of Slurm's jobs end")

    def test_jobs_go_on_without_the_service_and_without_slurmctld(self):
        service = self.serve(*self.flags)
        mark = self.folder / "mark"
        self.submit("one", "bash", "-c", f"echo begun; until [ -e {mark} ]; do sleep 0.1; done")
        self.wait_until("one", "running")
        service.kill()
        service.wait()
        self.cluster.kill("slurmctld")
        self.cluster.start("slurmctld", "slurmctld", "-D")
        self.cluster.wait(lambda: self.cluster.states(), "slurmctld")
        self.serve(*self.flags)
        mark.touch()
        self.wait_until("one", "completed")
        self.assertEqual(self.output("one").count("begun"), 1)

    def test_what_sbatch_refuses_has_failed_and_says_why(self):
        self.serve(*self.flags, "--sbatch=--constraint=no-such-feature")
        self.submit("refused", "true")
        self.wait_until("refused", "failed")
        self.assertIn("nvalid feature", self.output("refused"))

    def test_nodes_that_slurm_does_not_have_are_refused(self):
        done = subprocess.run([BINARY, "schedule", "serve", "--state-dir", self.state, *self.flags, "--cluster", "2x2"],
                              capture_output=True, text=True, timeout=60, env=self.environment)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("node 'node0' with 2 devices is none of Slurm's; accepted: n0 (2), n1 (2)", done.stderr)


if __name__ == "__main__":
    unittest.main()
