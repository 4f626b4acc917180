"""Ranks on several hosts, which are network and process-number namespaces of this machine: what crosses the network is authenticated and
encrypted."""
import itertools
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from ranks import run_scripts

MAKE_CERTIFICATE = pathlib.Path(__file__).resolve().parents[1] / "make-certificate"
ADDRESS = "10.213.7."  # of the hosts, with 1, 2 and 3 behind it


def why_not():
    """What is missing for several hosts here, or nothing."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        return "needs root and iproute2, to be several hosts"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return "this machine lets nobody make network namespaces" if tried.returncode else ""


SCRIPT = """
import os
import torch, torch.distributed as dist, motley
from datetime import timedelta
from torch.nn.parallel import DistributedDataParallel as DDP
rank = int(os.environ["RANK"])
dist.init_process_group("motley", timeout=timedelta(seconds=30))
class Data(torch.utils.data.Dataset):
    values = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return self.values[index]
def make_net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 1)).double()
def mean_square(outputs, _=None):
    return outputs.square().mean()
def step_alone(net, optimizer, batch):
    optimizer.zero_grad()
    mean_square(net(batch)).backward()
    optimizer.step()
def check(net, other):
    for one, two in zip(net.parameters(), other.parameters()):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-14)
"""
DATA_PARALLEL = SCRIPT + """
net, other = make_net(), make_net()
loader = motley.DataLoader(Data(), 8, batch_split=[3, 1], shuffle=False)
model = motley.weight_gradients(DDP(net), loader)
optimizer, alone = torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)
for number, batch in enumerate(loader):
    step_alone(model, optimizer, batch)
    step_alone(other, alone, Data.values[8 * number:8 * number + 8])
check(net, other)
mean = motley.Mean(loader)
for batch in loader:
    mean.update(batch.mean())
assert abs(mean.compute() - Data.values.mean().item()) < 1e-12
try:
    dist.gather(torch.ones(1), [torch.ones(1)] * 2 if rank == 0 else None)
except Exception as problem:
    print("refused:", problem)
print("done")
"""
PIPELINE = SCRIPT + """
def train_pipeline(group):
    plan = {"version": 2, "model": "net", "layers": ["0", "1", "2"], "global_batch_size": 8, "micro_batches": 2, "stages": [
        {"first_layer": first, "last_layer": last, "replicas": [{"type": "cpu"}]} for first, last in (("0", "1"), ("2", "2"))]}
    other = make_net()
    pipe = motley.pipeline(make_net(), plan, loss_fn=mean_square, example_inputs=Data.values[:2], process_group=group)
    optimizer, alone = torch.optim.SGD(pipe.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)
    for number in range(5):
        batch = Data.values[8 * number:8 * number + 8]
        optimizer.zero_grad()
        pipe.step(batch, batch)
        optimizer.step()
        step_alone(other, alone, batch)
    state = pipe.gather_state_dict()
    if dist.get_rank(group) == 0:
        net = make_net()
        net.load_state_dict(state)
        check(net, other)
    print("done")
"""
KNOWN = struct.pack("<f", 1234.5) * 16  # in what each rank gives
SUM = """
import hashlib, os
import torch, torch.distributed as dist, motley
from datetime import timedelta
rank = int(os.environ["RANK"])
dist.init_process_group("motley", timeout=timedelta(seconds=30))
values = torch.randn(100_000, generator=torch.Generator().manual_seed(rank))
values[:4096] = 1234.5
dist.all_reduce(values)
print("sum:", hashlib.sha256(values.numpy().tobytes()).hexdigest())
dist.barrier()
print("done")
"""
# Writes all packets of the namespace that it runs in, until its input ends.
RECORDER = """
import selectors, socket, sys
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packets.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
packets.setblocking(False)
waits = selectors.DefaultSelector()
waits.register(packets, selectors.EVENT_READ)
waits.register(sys.stdin, selectors.EVENT_READ)
print("ready", flush=True)
with open(sys.argv[1], "wb") as file:
    while True:
        ready = [key.fileobj for key, _ in waits.select()]
        if packets in ready:
            file.write(packets.recv(1 << 17))
        elif sys.stdin in ready:
            break
"""


@unittest.skipIf(why_not(), why_not())
class Hosts(unittest.TestCase):
    """Each has a link to each of the others."""

    count = 2

    @classmethod
    def setUpClass(cls):
        cls.names = [f"motley-{os.getpid()}-{host}" for host in range(cls.count)]
        for host, name in enumerate(cls.names):
            cls.run_ip("netns", "add", name)
            cls.addClassCleanup(cls.run_ip, "netns", "del", name)
            cls.run_ip("-n", name, "addr", "add", f"{ADDRESS}{host + 1}/32", "dev", "lo")
            cls.run_ip("-n", name, "link", "set", "lo", "up")
        for pair in itertools.combinations(range(cls.count), 2):
            ends = [f"m{os.getpid()}-{one}{other}" for one, other in (pair, pair[::-1])]
            cls.run_ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            for end, one, other in ((ends[0], *pair), (ends[1], *pair[::-1])):
                cls.run_ip("link", "set", end, "netns", cls.names[one])
                cls.run_ip("-n", cls.names[one], "link", "set", end, "up")
                cls.run_ip("-n", cls.names[one], "route", "add", f"{ADDRESS}{other + 1}", "dev", end, "src", f"{ADDRESS}{one + 1}")

    @staticmethod
    def run_ip(*words):
        subprocess.run(["ip", *words], check=True)

    def run_hosts(self, script, *, has_secret=True, **more):
        """The exit codes and what was written, on all."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        secret = pathlib.Path(folder.name, "secret")
        secret.touch(mode=0o600)
        secret.write_text(os.urandom(32).hex())
        variables = {"MASTER_ADDR": f"{ADDRESS}1", "MASTER_PORT": 29500} | ({"MOTLEY_SECRET_FILE": secret} if has_secret else {})
        prefixes = [["ip", "netns", "exec", name, "unshare", "--pid", "--fork", "--kill-child"] for name in self.names]
        return run_scripts(script, self.count, prefixes=prefixes, **variables, **more)


class TwoHosts(Hosts):
    def record(self, script, **more):
        """The same, and all that has crossed the network."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "packets")
            recorder = subprocess.Popen(["ip", "netns", "exec", self.names[0], sys.executable, "-c", RECORDER, file],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            with recorder:
                self.assertEqual(recorder.stdout.readline(), b"ready\n")
                ended = self.run_hosts(script, **more)
                recorder.stdin.close()
            return ended, file.read_bytes()

    def test_data_parallelism_over_the_backend(self):
        for code, text in self.run_hosts(DATA_PARALLEL):
            self.assertEqual(code, 0, text)
            self.assertRegex(text, r"refused: .*gather.*over gloo, which is not authenticated")
            self.assertIn("done", text)

    def test_nothing_that_ranks_compute_crosses_the_network_in_the_clear(self):
        sums = set()
        for encryption in ("auto", "off"):
            ended, packets = self.record(SUM, MOTLEY_ENCRYPTION=encryption)
            for code, text in ended:
                self.assertEqual(code, 0, text)
                sums.update(line for line in text.splitlines() if line.startswith("sum:"))
            self.assertGreater(len(packets), 400_000)
            for plaintext in (KNOWN, b"MTLF", b"MTLH"):
                self.assertEqual(plaintext in packets, encryption == "off", (plaintext, encryption))
        self.assertEqual(len(sums), 1, sums)  # on both hosts, encrypted or not

    def test_hosts_know_each_other_by_certificates(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, tenant in (("ours", "local"), ("theirs", "vision")):
                subprocess.run([MAKE_CERTIFICATE, folder, "ca", name, f"URI:motley:tenant/{tenant}"], check=True)
            def variables(name):
                return {"MOTLEY_TLS_CERTIFICATE": f"{folder}/{name}.pem", "MOTLEY_TLS_KEY": f"{folder}/{name}.key",
                        "MOTLEY_TLS_CA": f"{folder}/ca.pem"}
            ended, packets = self.record(SUM, **variables("ours"))
            for code, text in ended:
                self.assertEqual(code, 0, text)
            self.assertGreater(len(packets), 400_000)
            for plaintext in (KNOWN, b"MTLF", b"MTLH", b"motley 1 local", b"motley:tenant"):
                self.assertNotIn(plaintext, packets)
            ended = self.run_hosts(SUM, **variables("theirs"))
            self.assertTrue(all(code != 0 for code, _ in ended), ended)
            self.assertIn("does not speak for tenant 'local': it is the certificate of 'CN = theirs'", ended[1][1])

    def test_hosts_that_differ_in_encryption_say_what_to_set(self):
        script = "import os\nif os.environ['RANK'] == '1':\n    os.environ['MOTLEY_ENCRYPTION'] = 'off'\n" + SUM
        ended = self.run_hosts(script)
        for (code, text), where in zip(ended, ("there", "here"), strict=True):
            self.assertNotEqual(code, 0, text)
            self.assertRegex(text, rf"takes nothing in the clear.*: set encryption to 'on' {where}")

    def test_a_pipeline(self):
        for code, text in self.run_hosts(PIPELINE + "train_pipeline(None)"):
            self.assertEqual(code, 0, text)
            self.assertIn("done", text)

    def test_without_a_secret(self):
        for code, text in self.run_hosts(DATA_PARALLEL, has_secret=False):
            self.assertEqual(code, 1, text)
            self.assertIn("MOTLEY_SECRET_FILE", text)


class ThreeHosts(Hosts):
    count = 3

    def test_a_pipeline_without_the_first_rank(self):
        script = PIPELINE + """
group = dist.new_group([1, 2])
if rank > 0:
    train_pipeline(group)
dist.barrier()
"""
        for rank, (code, text) in enumerate(self.run_hosts(script)):
            self.assertEqual(code, 0, text)
            self.assertEqual("done" in text, rank > 0)


if __name__ == "__main__":
    unittest.main()
