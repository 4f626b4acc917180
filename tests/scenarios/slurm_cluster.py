"""A cluster of Slurm's on this machine: slurmctld, and a slurmd for each of its nodes, which is gone with all that runs on
it once it is killed. Needs root, and Debian's slurm-wlm and munge."""

import contextlib
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "sinfo", "unshare", "setpriv")


def why_not():
    """What is missing for a cluster here, or nothing."""
    if os.geteuid() != 0:
        return "needs root, to be several nodes"
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    return f"needs Slurm; missing: {', '.join(missing)} (Debian's slurm-wlm and munge)" if missing else ""


def free_ports(count):
    """Below those that the system hands out by itself, so that nobody has them by the time Slurm's programs listen."""
    ports = set()
    while len(ports) < count:
        port = random.SystemRandom().randrange(3000, 15000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.add(port)
    return list(ports)


class SlurmCluster:
    """Nodes n0, n1, ... of so many CPUs each, in one partition; `environment` lets Slurm's programs find it."""

    def __init__(self, nodes, cpus):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="motley-slurm-"))
        self.folder.chmod(0o755)
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        self.processes = {}
        for name in ("munge", "state", *(f"spool-n{node}" for node in range(nodes))):
            (self.folder / name).mkdir(mode=0o755)
        key = self.folder / "munge/key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        host = socket.gethostname().split(".")[0]
        port, *ports = free_ports(1 + nodes)
        lines = [
            "ClusterName=motley",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={port}",
            "SlurmUser=root",
            f"AuthInfo=socket={self.folder}/munge/socket",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool-%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd-%n.pid",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SlurmdParameters=config_overrides",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,bf_resolution=1",
            "SlurmdTimeout=10",
            "KillWait=5",
            "MpiDefault=none",
            *(f"NodeName=n{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[node]} CPUs={cpus} RealMemory=1000"
              for node in range(nodes)),
            "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE",
        ]
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        self.start("munged", "munged", "--foreground", "--force", f"--key-file={key}",
                   *(f"--{name}={self.folder}/munge/{file}" for name, file in
                     (("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))))
        self.wait(lambda: (self.folder / "munge/socket").exists(), "munged")
        self.start("slurmctld", "slurmctld", "-D")
        for node in range(nodes):
            # A process-number space of its own: all processes of the node end with its first one.
            self.start(f"n{node}", "unshare", "--pid", "--mount-proc", "--fork", "--kill-child=KILL",
                       "slurmd", "-D", "-N", f"n{node}")
        self.wait(lambda: self.states() == {f"n{node}": "idle" for node in range(nodes)}, "all nodes")

    def start(self, name, *command):
        with open(self.folder / f"{name}.log", "ab") as log:
            # Nothing of it outlives this process, however that ends.
            self.processes[name] = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                    env=self.environment, start_new_session=True)

    def ask(self, *command):
        return subprocess.run(command, capture_output=True, text=True, timeout=30, env=self.environment).stdout

    def states(self):
        lines = self.ask("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def wait(self, is_true, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not is_true():
            if time.monotonic() > deadline:
                logs = "".join(f"{log.name}: {log.read_text()[-500:]}\n" for log in self.folder.glob("*.log"))
                raise TimeoutError(f"Slurm: {what}: not there within {seconds} s\n{logs}")
            time.sleep(0.1)

    def kill(self, name):
        """A node: as if its power went off."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self):
        for name in [name for name in self.processes if name.startswith("n")] + ["slurmctld", "munged"]:
            if name in self.processes:
                self.kill(name)
        shutil.rmtree(self.folder, True)
