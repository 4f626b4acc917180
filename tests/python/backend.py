"""The backend motley of torch.distributed: its collectives against gloo's and against what one process computes, and how
processes end."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import torch
import torch.distributed as dist

import data_parallel
from ranks import RanksTest, run_scripts

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def values(shape, dtype, rank, seed=0):
    """Small multiples of a power of two: their sums are exact in every order and type."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return (torch.randint(-8, 9, shape, generator=generator) / 4).to(dtype)


def collectives(gloo, group=None, factor=1):
    """What each collective gives, and what gloo gives, by name."""
    rank, count = dist.get_rank(group), dist.get_world_size(group)
    found = {}

    def compare(name, call, *shapes, dtype=torch.float32):
        results = []
        for through in (group, gloo):
            tensors = [values(shape, dtype, rank, seed) for seed, shape in enumerate(shapes)]
            call(tensors, through)
            results.append(tensors)
        found[name] = results

    def every(tensors, through):
        parts = list(tensors[0].unbind())
        dist.all_gather(parts, tensors[1], group=through)

    for dtype in (*TYPES, torch.int64, torch.bool):
        for size in (1, 1000 * factor):
            name = f"{dtype} {size}"
            compare(f"all_reduce {name}", lambda t, g: dist.all_reduce(t[0], group=g), (size,), dtype=dtype)
            compare(f"broadcast {name}", lambda t, g: dist.broadcast(t[0], group=g, group_src=count - 1), (size,), dtype=dtype)
            compare(f"all_gather {name}", every, (count, size), (size,), dtype=dtype)
            compare(f"all_gather_into_tensor {name}", lambda t, g: dist.all_gather_into_tensor(t[0], t[1], group=g),
                    (count * size,), (size,), dtype=dtype)
    for dtype in TYPES:
        compare(f"reduce_scatter_tensor {dtype}", lambda t, g: dist.reduce_scatter_tensor(t[0], t[1], group=g),
                (77 * factor,), (77 * factor * count,), dtype=dtype)
    compare("all_reduce max", lambda t, g: dist.all_reduce(t[0], dist.ReduceOp.MAX, group=g), (50,))
    compare("all_reduce of a transposed tensor", lambda t, g: dist.all_reduce(t[0].t().contiguous(), group=g), (5, 7))
    compare("reduce", lambda t, g: dist.reduce(t[0], group=g, group_dst=0), (50,))
    compare("all_to_all_single", lambda t, g: dist.all_to_all_single(t[0], t[1], group=g), (4 * count,), (4 * count,))
    average = values((1000,), torch.float64, rank)
    dist.all_reduce(average, dist.ReduceOp.AVG, group=group)
    found["average"] = [[average], [sum(values((1000,), torch.float64, other) for other in range(count)) * (1 / count)]]
    multiplied = values((1000,), torch.float64, rank)
    dist.all_reduce(multiplied, dist._make_nccl_premul_sum(0.5), group=group)
    found["premultiplied"] = [[multiplied], [sum(values((1000,), torch.float64, other) for other in range(count)) / 2]]
    outputs = [torch.empty(other + 1) for other in range(count)]
    dist.all_to_all(outputs, [values((rank + 1,), torch.float32, rank, other) for other in range(count)], group=group)
    found["all_to_all"] = [outputs, [values((other + 1,), torch.float32, other, rank) for other in range(count)]]
    return found


def compare_with_gloo(factor):
    gloo = dist.new_group(backend="gloo")
    found = collectives(gloo, factor=factor)
    return [name for name, (ours, theirs) in found.items() if not all(map(torch.equal, ours, theirs))], len(found)


def use_subgroups(times):
    """Groups of some ranks, made and used again and again; what does not fit."""
    rank, wrong = dist.get_rank(), []
    for turn in range(times):
        ranks = [0, 2] if turn % 2 else [1, 2]
        group = dist.new_group(ranks)
        if rank in ranks:
            tensor = torch.tensor([float(rank)])
            dist.all_reduce(tensor, group=group)
            if tensor.item() != sum(ranks):
                wrong.append((turn, tensor.item()))
            dist.destroy_process_group(group)
    return wrong


def overlap_many():
    """Many all-reduces under way at once, of buffers in and outside of the backend's memory."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    rank, count, works = dist.get_rank(), dist.get_world_size(), []
    for index in range(100):
        tensor = torch.empty(index * 1111)
        if index % 2 and backend.supports_tensor_alloc(torch.device("cpu")):
            tensor = backend.allocate_tensor(index * 1111, dtype=torch.float32, device=torch.device("cpu"))
        tensor.copy_(values(tensor.shape, torch.float32, rank, index))
        works.append((index, tensor, dist.all_reduce(tensor, async_op=True)))
    for _, _, work in works:
        work.wait()
    return [index for index, tensor, _ in works
            if not torch.equal(tensor, sum(values(tensor.shape, torch.float32, other, index) for other in range(count)))]


def broadcast_from_nobody():
    """What is said of roots that no rank of the group is."""
    said = {}
    for root in (-1, 3):
        try:
            dist.broadcast(torch.ones(8), group_src=root)
        except ValueError as problem:
            said[root] = str(problem)
    return said


def address_nobody():
    """What is said of ranks that are none of the group's, and of the operations that name one."""
    said, one = [], torch.ones(8)
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    for call in (lambda: dist.send(one, 7), lambda: dist.recv(one, 7), lambda: dist.send(one, -4), lambda: dist.reduce(one, 7),
                 lambda: dist.gather(one, None, 7), lambda: dist.scatter(one, None, 7), lambda: group.recv([one], 3, 0)):
        try:
            call()
        except ValueError as problem:
            said.append(str(problem))
    return said


def make_models_that_differ(widths):
    torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 3), *(
        torch.nn.Linear(3, width) for width in widths[dist.get_rank()])))


class ModelsThatDiffer(RanksTest):
    backend = "motley"

    def test_their_first_difference_is_named(self):
        weight = r"'1\.weight' of shape \({}, 3\) and type float32"
        for widths, words in ((((2,), (5,)), f"rank 0 has {weight.format(2)}, rank 1 has {weight.format(5)}"),
                              (((2,), ()), f"rank 0 has {weight.format(2)}, rank 1 has no parameter more")):
            for message in self.refused_on_ranks(make_models_that_differ, widths):
                self.assertRegex(message, f"^ranks differ in their parameters: {words}")
        self.on_ranks(make_models_that_differ, ((2,), (2,)))


class Collectives(RanksTest):
    count, backend = 3, "motley"

    def test_they_give_what_gloo_gives(self):
        for factor in (1, 999):
            for wrong, compared in self.on_ranks(compare_with_gloo, factor):
                self.assertEqual(wrong, [])
                self.assertGreater(compared, 50)

    def test_many_at_once(self):
        self.assertEqual(self.on_ranks(overlap_many), [[]] * 3)

    def test_subgroups(self):
        self.assertEqual(self.on_ranks(use_subgroups, 20), [[]] * 3)

    def test_a_rank_that_is_not_there_is_refused(self):
        for said in self.on_ranks(address_nobody):
            self.assertEqual([message.split(": ", 1)[0].removeprefix("motley:") for message in said],
                             ["send", "recv", "send", "reduce", "gather", "scatter", "recv"])
            self.assertIn("motley:send: the destination is rank 7 of the group; accepted: 0 to 2", said)

    def test_a_root_that_is_no_rank_is_refused(self):
        for said in self.on_ranks(broadcast_from_nobody):
            for root in (-1, 3):
                self.assertIn(f"the root is rank {root} of the group; accepted: 0 to 2", said[root])


class CollectivesOverTcp(Collectives):
    @classmethod
    def setUpClass(cls):
        os.environ["MOTLEY_TRANSPORT"] = "tcp"
        cls.addClassCleanup(os.environ.pop, "MOTLEY_TRANSPORT")
        super().setUpClass()

    def test_it_is_over_tcp(self):
        self.assertEqual(self.on_ranks(find_transport), ["tcp"] * 3)


def reduce_alone():
    """The names of reductions whose result is not the input, or its multiple."""
    wrong = []
    for name, operation, factor in (("sum", dist.ReduceOp.SUM, 1), ("average", dist.ReduceOp.AVG, 1),
                                    ("multiple", dist._make_nccl_premul_sum(0.5), 0.5)):
        for dtype in TYPES:
            whole = values((77,), dtype, 0)
            part, total = torch.empty_like(whole), whole.clone()
            dist.reduce_scatter_tensor(part, whole, operation)
            dist.all_reduce(total, operation)
            wrong += [f"{name} {dtype}"] * (not torch.equal(part, whole * factor) or not torch.equal(total, whole * factor))
    return wrong


class OneRank(RanksTest):
    count, backend = 1, "motley"

    def test_reductions_give_the_input(self):
        self.assertEqual(self.on_ranks(reduce_alone), [[]])


def find_transport():
    return dist.group.WORLD._get_backend(torch.device("cpu")).transport


class WeightedGradients(RanksTest):
    """motley.weight_gradients over the backend against one process: data_parallel's comparison."""

    count, backend = 3, "motley"
    test_some_of_the_ranks = data_parallel.Equality.test_some_of_the_ranks_which_are_in_different_numbers_of_groups
    compare, check, recorded = data_parallel.Equality.compare, data_parallel.Equality.check, data_parallel.Equality.recorded

    def test_distributed_data_parallel(self):
        split = self.recorded(18, 24, data_parallel.SAMPLES, 3)
        self.check({"global_batch_size": 24, "batch_split": split}, "hook")

    def test_fully_sharded(self):
        split = self.recorded(18, 24, data_parallel.SAMPLES, 3)
        self.check({"global_batch_size": 24, "batch_split": split}, "fsdp")


START = """
import os, signal, sys, torch, torch.distributed as dist, motley
from datetime import timedelta
torch.set_num_threads(1)
rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("motley", init_method=os.environ["INIT"], rank=rank, world_size=count,
                        timeout=timedelta(seconds=float(os.environ.get("SECONDS", 60))))
"""

LOSE_A_RANK = START + """
calls = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(300000)),
    "broadcast": lambda: dist.broadcast(torch.ones(300000), 0),
    "all_gather": lambda: dist.all_gather([torch.ones(1000) for _ in range(count)], torch.ones(1000)),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.ones(count * 300000), torch.ones(300000)),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(torch.ones(300000), torch.ones(count * 300000)),
    "barrier": lambda: dist.barrier(),
    "all_to_all_single": lambda: dist.all_to_all_single(torch.ones(count * 100), torch.ones(count * 100)),
    "all_reduce of integers": lambda: dist.all_reduce(torch.ones(1000, dtype=torch.int64)),
}
call = calls[os.environ["CALL"]]
for turn in range(1000000):
    if rank == 1 and turn == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    call()
"""


class LostRanks(unittest.TestCase):
    def test_a_killed_rank_is_named_by_all_others(self):
        for call in ("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "barrier",
                     "all_to_all_single", "all_reduce of integers"):
            for transport in ("auto", "tcp"):
                with self.subTest(call=call, transport=transport):
                    ends = run_scripts(LOSE_A_RANK, 3, CALL=call, MOTLEY_TRANSPORT=transport)
                    self.assertEqual(ends[1][0], -signal.SIGKILL)
                    for code, text in (ends[0], ends[2]):
                        self.assertEqual(code, 1, text)
                        self.assertRegex(text.strip().splitlines()[-1], r"DistBackendError: motley: .*rank 1 ended")
                        self.assertNotIn("terminate called", text)

    def test_a_missing_rank_is_named_at_the_deadline(self):
        script = START + """
store = dist.distributed_c10d._get_default_store()
dist.barrier()
if rank == 1:
    store.wait(["over"], timedelta(seconds=100))
else:
    try:
        dist.all_reduce(torch.ones(10))
    finally:
        store.set("over", "")
"""
        ends = run_scripts(script, 2, SECONDS=5)
        self.assertEqual(ends[0][0], 1)
        self.assertRegex(ends[0][1].strip().splitlines()[-1],
                         r"DistBackendError: motley: all_reduce, operation 2: timeout after 5 s of waiting for rank 1 \(last seen")

    def test_operations_that_differ(self):
        ends = run_scripts(START + "dist.all_reduce(torch.ones(10 + rank))", 2)
        for code, text in ends:
            self.assertEqual(code, 1)
            self.assertRegex(text, "DistBackendError: motley: .*40 bytes.*44 bytes|44 bytes.*40 bytes")
        ends = run_scripts(START + "dist.all_reduce(torch.ones(10), [dist.ReduceOp.SUM, dist.ReduceOp.AVG][rank])", 2)
        for code, text in ends:
            self.assertEqual(code, 1)
            self.assertRegex(text, r"DistBackendError: motley: .*\(sum\).*\(average\)|\(average\).*\(sum\)")

    def test_an_abort_ends_operations_under_way(self):
        script = START + """
store = dist.distributed_c10d._get_default_store()
dist.barrier()
work = None
if rank == 0:
    work = dist.barrier(async_op=True)
    dist.group.WORLD._get_backend(torch.device("cpu")).abort()
    store.set("aborted", "")
else:
    store.wait(["aborted"], timedelta(seconds=100))
    dist.barrier()  # rank 0 had come to this one
    work = dist.barrier(async_op=True)
try:
    work.wait()
except dist.DistBackendError as problem:
    print("caught", problem)
"""
        for code, text in run_scripts(script, 2):
            self.assertEqual(code, 0, text)
            self.assertRegex(text, "caught motley: .*the process group was aborted")


class ChainedOperations(unittest.TestCase):
    """What is chained to an operation, and waits for another one that the same thread would carry out."""

    refusal = r"motley: .*all_reduce: it was asked for in what is chained to another operation's future"

    def test_it_is_refused_on_all_ranks(self):
        """Also where the future was complete before, so that the rank itself waits for the others."""
        script = START + """
store = dist.distributed_c10d._get_default_store()
if rank == 1:
    store.wait(["chained"], timedelta(seconds=100))
first = dist.all_reduce(torch.ones(8), async_op=True)
if rank == 1:
    first.wait()
second = first.get_future().then(lambda _: dist.all_reduce(torch.ones(8), async_op=True).get_future().wait())
store.set("chained", "")
second.wait()
"""
        for code, text in run_scripts(script, 2):
            self.assertEqual(code, 1, text)
            self.assertRegex(text, self.refusal)

    def test_a_hook_that_does_so_ends(self):
        """With that, or well where each operation happened to be complete before it was chained to."""
        script = START + """
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
for step in range(3):
    model(torch.ones(2, 64)).sum().backward()
"""
        ends = run_scripts(script, 2)
        self.assertIn([code for code, _ in ends], ([0, 0], [1, 1]), ends)
        for code, text in ends:
            if code:
                self.assertRegex(text, self.refusal)


class RanksThatDiffer(unittest.TestCase):
    def test_another_backend_is_named_early(self):
        script = START.replace('group("motley"', 'group(["motley", "gloo"][rank]')
        script = script.replace('"SECONDS", 60', '"SECONDS", [600, 4][rank]')
        (code, text), _ = run_scripts(script, 2)
        self.assertEqual(code, 1, text)
        self.assertIn("motley: making a process group: rank 1 has the backend gloo, and this rank motley; accepted", text)

    def test_another_version_is_named(self):
        script = START.replace("rank, count =", "motley._motley.version += ['', '-other'][int(os.environ['RANK'])]; rank, count =")
        for code, text in run_scripts(script, 2):
            self.assertEqual(code, 1, text)
            self.assertRegex(text, r"motley: making a process group: rank 0 has version \S+ of motley, and rank 1 \S+-other; "
                                   "accepted: one version")


class OneGroupAfterTheOther(unittest.TestCase):
    script = """
import gc, os, pathlib, socket, sys, time, torch, torch.distributed as dist, motley
for turn, name in enumerate(sys.argv[1:]):
    dist.init_process_group(name)
    for batch in motley.DataLoader(torch.arange(8.0), 4):
        pass
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2
    dist.destroy_process_group()
    gc.collect()
    gone = pathlib.Path(__file__).with_name(f"gone-{turn}")
    if os.environ["RANK"] == "0":
        if "TORCHELASTIC_USE_AGENT_STORE" not in os.environ:
            with socket.socket() as probe:  # the store has gone with the group
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", int(os.environ["MASTER_PORT"])))
        gone.touch()
    while not gone.exists():  # else the other rank may find the store that is about to go
        time.sleep(0.01)
os.write(1, b"done\\n")
"""

    def test_with_one_store_for_all_and_with_one_each(self):
        for words, names in ((["torch.distributed.run", "--standalone", "--nproc-per-node", "2"], ["gloo", "motley"]),
                             (["motley", "launch", "--workers", "2"], ["motley", "gloo", "motley"])):
            with self.subTest(words[0]), tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder, "script.py")
                file.write_text(self.script)
                run = subprocess.run([sys.executable, "-m", *words, str(file), *names], capture_output=True, text=True, timeout=180,
                                     check=False)
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertEqual(run.stdout.split(), ["done"] * 2)


class Processes(unittest.TestCase):
    def test_they_end_well_with_and_without_destroying_the_group(self):
        script = START + """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
model(torch.ones(2, 10)).sum().backward()
dist.all_reduce(torch.ones(5), async_op=True).get_future().then(lambda done: done.value())
if os.environ["DESTROY"] == "yes":
    dist.destroy_process_group()
"""
        for destroy in ("yes", "no"):
            for fresh in (True, False, False):  # forked ones end as new ones do
                for code, text in run_scripts(script, 2, fresh=fresh, DESTROY=destroy):
                    self.assertEqual(code, 0, text)
                    self.assertNotIn("terminate", text)

    def test_the_backend_is_found_without_an_import(self):
        with tempfile.TemporaryDirectory() as folder:
            information = pathlib.Path(folder, "motley-0.dist-info")
            information.mkdir()
            (information / "METADATA").write_text("Metadata-Version: 2.1\nName: motley\nVersion: 0\n")
            (information / "entry_points.txt").write_text("[torch.backends]\nmotley = motley_backend:register\n")
            script = START.replace(", motley", "") + "dist.all_reduce(torch.ones(3)); print('motley' in sys.modules)"
            for code, text in run_scripts(script, 2, fresh=True, PYTHONPATH=f"{folder}:{os.environ['PYTHONPATH']}"):
                self.assertEqual((code, text.strip()[-4:]), (0, "True"), text)

    def test_ranks_on_several_hosts_need_a_secret_and_do_without_gloo(self):
        script = START.replace("dist.init", "motley._motley.host_id = lambda: f'host {rank}'\ndist.init") + """
tensor = torch.ones(3)
dist.all_reduce(tensor)
dist.barrier()
print(tensor.tolist())
try:
    dist.all_reduce(torch.ones(3, dtype=torch.int64))
except RuntimeError as problem:
    print(problem)
"""
        for code, text in run_scripts(script, 2):
            self.assertEqual(code, 1)
            self.assertIn("MOTLEY_SECRET_FILE", text)
        with tempfile.TemporaryDirectory() as folder:
            secret = pathlib.Path(folder, "secret")
            secret.write_text("0123456789abcdef" * 2)
            secret.chmod(0o600)
            for code, text in run_scripts(script, 2, MOTLEY_SECRET_FILE=secret, MOTLEY_TRANSPORT="tcp", MASTER_ADDR="127.0.0.1"):
                self.assertEqual(code, 0, text)
                self.assertIn("[2.0, 2.0, 2.0]", text)
                self.assertIn("motley: all_reduce: it goes over gloo, which is not authenticated", text)

    def test_a_host_whose_name_is_a_loopback_address_says_another_one(self):
        from motley import _backend
        own = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "other": "10.0.0.1", "192.0.2.1": "10.0.0.2"}
        for master, address in (("localhost", "10.0.0.2"), ("127.0.0.1", "127.0.0.1"), ("other", "10.0.0.1")):
            with unittest.mock.patch.dict(os.environ, MASTER_ADDR=master), \
                    unittest.mock.patch.object(_backend, "_own_address", own.__getitem__):
                self.assertEqual(_backend.find_reachable_address(), address)
        with unittest.mock.patch.dict(os.environ, MASTER_ADDR="localhost"), \
                unittest.mock.patch.object(_backend, "_own_address", side_effect=["127.0.0.1", OSError("no route")]):
            self.assertEqual(_backend.find_reachable_address(), "127.0.0.1")

    def test_the_secret_of_one_host_is_not_in_the_store(self):
        script = """
import os, pathlib, re, torch.distributed as dist, motley
read = getattr(motley._motley, "read_shared_secret", None)
places = []
motley._motley.read_shared_secret = lambda *place: (places.append(place), read(*place))[1]
dist.init_process_group("motley", init_method=os.environ["INIT"], rank=int(os.environ["RANK"]), world_size=2)
dist.barrier()
if dist.get_rank() == 1:
    stored = pathlib.Path(os.environ["INIT"].removeprefix("file://")).read_bytes()
    assert b"endpoint" in stored and not re.search(rb"[0-9a-f]{64}", stored), stored
    try:
        read(*places[0])
    except RuntimeError as problem:
        print(problem)
dist.barrier()
"""
        (_, _), (code, text) = run_scripts(script, 2)
        self.assertEqual(code, 0, text)
        self.assertIn("shares no secret", text)  # once the ranks have joined

    def test_torchrun_starts_again(self):
        script = """
import os, signal, torch, torch.distributed as dist, motley
dist.init_process_group("motley")
for turn in range(20):
    if turn == 10 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1000))
os.write(1, f"done {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n".encode())  # a line at once: both ranks write
dist.destroy_process_group()
"""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "script.py")
            file.write_text(script)
            run = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                                  "--max-restarts", "1", str(file)], capture_output=True, text=True, timeout=180, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout.split(), ["done", "1", "done", "1"])


if __name__ == "__main__":
    unittest.main()
