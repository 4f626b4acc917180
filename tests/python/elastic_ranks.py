"""motley run --elastic: ranks that are killed, stopped and replaced, against one process that computes each whole batch by itself.

    python -m motley run --elastic 1:3 elastic_ranks.py FOLDER PLAN     a rank: what it used, in FOLDER; PLAN says who ends where
"""
import collections
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

import motley
from data_parallel import SAMPLES, Data, Net, mean_loss, weights
from motley import _elastic, _motley, _run
from ranks import RanksTest, refuse, wait_until

BATCH, STEPS_A_PASS, END = 24, 9, 240


class CountingNet(Net):
    """Its buffers change with every forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("forwards", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs):
        self.forwards += 1
        return super().forward(inputs)


def make_scheduler(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step % 5 / 10)


def train_alone(batches):
    """The weights after these batches in one process."""
    net, data = Net(), Data()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = make_scheduler(optimizer)
    for indices in batches:
        optimizer.zero_grad()
        mean_loss(net, data.inputs[indices], data.targets[indices]).backward()
        optimizer.step()
        scheduler.step()
    return weights(net)


class Rank:
    """One rank of a job. It writes down each step that it has done as it does it."""

    def __init__(self, folder, plan):
        self.folder, self.plan = pathlib.Path(folder), plan
        self.place = int(os.environ["LOCAL_RANK"])
        self.file = open(self.folder / f"{self.place}-{os.getpid()}.jsonl", "a", buffering=1)
        self.is_first = os.environ["MOTLEY_ELASTIC"].endswith("first")
        self.met = 0

    def end_at(self, point, number):
        """Ends this rank, if the plan wants it here, and once."""
        what = self.plan.get("ends", {}).get(f"{self.place} {number} {point}")
        if what:
            try:
                (self.folder / f"ended-{self.place}-{number}-{point}").touch(exist_ok=False)
            except FileExistsError:
                return
            if what == "raise":
                raise KeyError("of the script")
            os.kill(os.getpid(), getattr(signal, what))

    @torch.no_grad()
    def evaluate(self, tests):
        """By all ranks together, against all samples at once."""
        mean = motley.Mean(tests)
        for _, inputs, targets in tests:
            mean.update(mean_loss(self.net.layers, inputs, targets))
        told, expected = mean.compute(), mean_loss(self.net.layers, tests.dataset.inputs, tests.dataset.targets).item()
        if abs(told - expected) > 1e-12 * expected:
            raise ValueError(f"the mean loss over the ranks is {told}, of all samples at once it is {expected}")

    def count(self, files):
        return len(list(self.folder.glob(files)))

    def train(self):
        plan = self.plan
        self.end_at("start", 0)
        if "starts" in plan:
            subprocess.run([sys.executable, "-c", plan["starts"]], check=True)
        dist.init_process_group("motley")
        self.loader = loader = motley.DataLoader(Data(), BATCH, **plan.get("options", {}))
        self.net = net = CountingNet()
        self.model = motley.weight_gradients(DDP(net, bucket_cap_mb=0.001, **plan.get("ddp", {})), loader)
        self.optimizer = optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        self.scheduler = make_scheduler(optimizer)
        net.layers[2].weight.register_hook(lambda _: self.end_at("backward", loader._step.number))  # some buckets are on their way
        if not self.is_first:
            (self.folder / f"ready-{self.place}-{os.getpid()}").touch()
            if "follows" in plan:  # the others meet without it first
                wait_until((self.folder / f"meets-{plan['follows']}").exists, END)
        self.follow_meetings()
        tests = motley.DataLoader(Data(50), 20, shuffle=False)
        motley.make_elastic(loader, optimizer, self.scheduler, tests, checkpoint=plan.get("checkpoint"))
        optimizer.register_step_pre_hook(lambda *_: self.note("done", self.gave))
        self.is_over = False
        while loader.epoch < plan["passes"] and not self.is_over:
            for batch in loader:
                motley.run_step(self.step, batch, loader)
                self.end_at("between", loader._step.number)
                if self.is_over:
                    break
                if plan.get("waits") and dist.get_world_size() < int(os.environ["WORLD_SIZE"]):
                    wait_until(lambda: self.count("ready-*") >= self.count("ended-*"), END)  # replacements are there
            if "evaluates" in plan:
                self.evaluate(tests)
        torch.save({"weights": weights(net), "forwards": int(net.forwards), "rate": self.scheduler.get_last_lr()},
                   self.folder / f"{self.place}.pt")
        dist.destroy_process_group()

    def step(self, batch):
        self.indices, inputs, targets = batch
        number = self.loader._step.number
        self.end_at("forward", number)
        loss = mean_loss(self.model, inputs, targets)
        if "seconds" in self.plan:
            time.sleep(self.plan["seconds"] * self.loader.samples)  # the work of a sample
        loss.backward()
        if "ends_after" in self.plan:  # so many steps with all ranks, after there were fewer
            self.met = self.met + 1 if dist.get_world_size() == self.plan["ends_after"][0] else 0
            if self.met == 1:
                self.split_at_first = self.loader.split
            over = torch.tensor([float(self.count("ready-*") >= self.plan.get("joins", 1) and self.met >= self.plan["ends_after"][1]
                                       and self.has_grown())])
            dist.all_reduce(over)
            self.is_over = over.item() > 0
        self.gave = {"step": number, "split": self.loader.split, "places": self.loader._places, "epoch": self.epoch}
        self.note("gave", self.gave | {"used": self.indices.tolist() if self.loader.samples else []})
        self.end_at("gradients", number)
        self.optimizer.step()
        self.end_at("done", number)
        self.scheduler.step()
        self.optimizer.zero_grad()

    def has_grown(self):
        """Whether the share of the rank that the plan names is larger than when all ranks were there again."""
        place = self.plan.get("grows")
        return place is None or self.loader.split[place] > self.split_at_first[place]

    def note(self, what, told):
        self.file.write(json.dumps({"what": what} | told) + "\n")

    def follow_meetings(self):
        """Knows the number of the process group, in the middle of the making of which this rank may end."""
        connect = _elastic._Job._connect

        def meet(job, announced, allowed):
            self.epoch = announced.epoch
            (self.folder / f"meets-{announced.epoch}").touch()
            self.end_at("meeting", announced.epoch)
            return connect(job, announced, allowed)

        _elastic._Job._connect = meet


def batches(steps):
    """The samples of each step, by the order of the passes alone."""
    of_pass = [_motley.Ledger(0, number, 0, SAMPLES).samples(0, SAMPLES) for number in range(steps // STEPS_A_PASS + 1)]
    return list(itertools.chain(*([order[begin:begin + BATCH] for begin in range(0, SAMPLES, BATCH)] for order in of_pass)))[:steps]


class ElasticTest(unittest.TestCase):
    """A test that runs jobs, each in a folder of its own."""

    def setUp(self):
        self.use_new_folder()

    def use_new_folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, flags, plan):
        words = [sys.executable, "-m", "motley", "run", *flags.split(), __file__, self.folder, json.dumps({"passes": 2} | plan)]
        return subprocess.Popen(words, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env=os.environ | {"OMP_NUM_THREADS": "1"})

    def finish(self, job, code=0):
        """What the job has written."""
        try:
            text, _ = job.communicate(timeout=END)
        finally:
            job.kill()
        self.assertEqual(job.returncode, code, text)
        for file in self.folder.glob("*.jsonl"):
            with self.assertRaises(ProcessLookupError):  # no rank is left behind
                os.kill(int(file.stem.split("-")[1]), 0)
        return text

    def run_job(self, flags, plan, code=0):
        return self.finish(self.start(flags, plan), code)

    def read(self):
        """For each step what ranks have said of it: those that have done it, and what each gave for that. All say the same of its split."""
        done, gave = collections.defaultdict(list), {}
        for file in self.folder.glob("*.jsonl"):
            for line in file.read_text().splitlines():
                told = json.loads(line)
                if told["what"] == "done":
                    done[told["step"]].append(told)
                else:
                    gave[told["step"], told["epoch"], file] = told["used"]
        for number, told in done.items():
            for one in told:
                self.assertEqual((one["split"], one["places"]), (told[0]["split"], told[0]["places"]), number)
        return [(done[number][0], [used for (step, epoch, _), used in gave.items()
                                   if step == number and epoch == done[number][0]["epoch"]]) for number in range(len(done))]

    def check(self, left):
        """That each sample was used once, and that the ranks that are left have what one process has. The split of each step."""
        steps = self.read()
        expected = batches(len(steps))
        for number, ((_, used), batch) in enumerate(zip(steps, expected)):
            self.assertEqual(sorted(itertools.chain(*used)), sorted(batch), number)
        alone = train_alone(expected)
        self.assertEqual({file.stem for file in self.folder.glob("*.pt")}, set(map(str, left)))
        results = [torch.load(self.folder / f"{place}.pt") for place in left]
        for result in results:
            self.assertTrue(torch.equal(result["weights"], results[0]["weights"]))
            self.assertEqual(result["forwards"], len(steps))
            self.assertEqual(result["rate"], results[0]["rate"])
        self.assertLess((results[0]["weights"] - alone).abs().max() / alone.abs().max(), 1e-12)
        return [done["split"] for done, _ in steps]


class KilledRanks(ElasticTest):
    def test_ranks_are_killed_one_after_the_other(self):
        """The last one, the first one, and one more, at different points of a step, until one is left."""
        text = self.run_job("--elastic 1:4 --replacements 0", {"evaluates": True, "ends": {
            "3 2 forward": "SIGKILL", "0 5 backward": "SIGKILL", "1 11 between": "SIGKILL"}})
        steps = self.check([2])
        self.assertEqual([len(split) for split in steps], [4] * 2 + [3] * 3 + [2] * 7 + [1] * 6)
        self.assertRegex(text, r"rank 3 \(process \d+\) was killed by SIGKILL; 3 ranks are left")
        self.assertRegex(text, r"step 5: 2 ranks go on after ")

    def test_two_at_once(self):
        """Before and after their gradients are complete, and in the moment in which the others see that all have them."""
        self.run_job("--elastic 1:4 --replacements 0", {"ends": {
            "0 4 backward": "SIGKILL", "2 4 backward": "SIGKILL", "1 9 done": "SIGKILL"}})
        steps = self.check([3])
        self.assertEqual([len(split) for split in steps], [4] * 4 + [2] * 6 + [1] * 8)

    def test_batches_that_were_drawn_ahead(self):
        self.run_job("--elastic 1:3 --replacements 0", {
            "options": {"num_workers": 1, "batch_split": [1, 2, 1]}, "ddp": {"gradient_as_bucket_view": True},
            "ends": {"0 4 backward": "SIGKILL", "1 8 gradients": "SIGKILL"}})
        steps = self.check([2])
        self.assertEqual(steps[3:5], [[6, 12, 6], [16, 8]])


class ReplacedRanks(ElasticTest):
    def test_a_replacement_joins_and_its_share_grows(self):
        for place in (0, 2):  # the first rank and the last
            with self.subTest(place):
                self.use_new_folder()
                self.run_job("--elastic 2:3", {"passes": 10**6, "ends": {f"{place} 3 backward": "SIGKILL"}, "seconds": 0.001,
                                               "evaluates": True, "waits": True, "follows": 2, "ends_after": (3, 12), "grows": place})
                steps = self.check([0, 1, 2])
                self.assertEqual(steps[3], [12, 12])
                shares = [split[place] for split in steps[8:] if len(split) == 3]
                self.assertLess(shares[0], 4)
                self.assertGreater(max(shares), shares[0])

    def test_killed_again_and_again(self):
        """Replacements, too, also while ranks make a process group."""
        for seed in range(2):
            with self.subTest(seed):
                self.use_new_folder()
                draw = random.Random(seed)
                ends = {f"{draw.randrange(3)} {draw.randrange(2, 6)} meeting": "SIGKILL"}
                for step in draw.sample(range(2, 60), 5):
                    point = draw.choice(["forward", "backward", "gradients", "done", "between"])
                    ends[f"{draw.randrange(3)} {step} {point}"] = "SIGKILL"
                self.run_job("--elastic 1:3 --replacements 9", {"passes": 8, "waits": True, "ends": ends})
                self.check([0, 1, 2])

    def test_nobody_is_left_to_give_the_weights(self):
        """The last rank that has them is killed while it lets the replacement in."""
        text = self.run_job("--elastic 1:2", {"passes": 10**6, "waits": True, "follows": 2, "ends": {
            "1 3 backward": "SIGKILL", "0 3 meeting": "SIGKILL"}}, code=137)
        self.assertIn("no rank is left that had the weights: the last ones were killed while replacements were let in; their state is "
                      "lost, as the script gave motley.make_elastic no checkpoint", text)

    def test_killed_from_outside(self):
        job = self.start("--elastic 1:3 --replacements 2", {"passes": 10**6, "seconds": 0.001, "ends_after": (3, 10), "joins": 2})
        draw, killed = random.Random(5), set()
        for _ in range(2):
            def running():
                return [file for file in self.folder.glob("*.jsonl") if file.stat().st_size and file not in killed]
            wait_until(lambda: len(running()) == 3)
            victim = draw.choice(sorted(running()))
            killed.add(victim)
            os.kill(int(victim.stem.split("-")[1]), signal.SIGKILL)
        self.finish(job)
        self.check([0, 1, 2])


class RanksThatAreLeft(ElasticTest):
    def test_a_stopped_rank_is_put_out(self):
        text = self.run_job("--elastic 1:3 --replacements 0", {"ends": {"1 4 forward": "SIGSTOP"}})
        self.check([0, 2])
        self.assertRegex(text, r"rank 1 \(process \d+\) does not answer and is killed")

    def test_too_few_are_left(self):
        """They write a checkpoint, from which another run goes on, with another number of ranks."""
        plan = {"checkpoint": str(self.folder / "state"), "ends": {"0 5 backward": "SIGKILL", "1 5 gradients": "SIGKILL"}}
        text = self.run_job("--elastic 2:3 --replacements 0", plan, code=1)
        self.assertIn("ranks left: 1, at least 2 are wanted, and no replacement is left; their state is in "
                      f"'{self.folder}/state', from which the same command goes on", text)
        self.run_job("--elastic 2:2", plan)
        self.check([0, 1])

    def test_too_few_are_left_and_nothing_is_kept(self):
        text = self.run_job("--elastic 2:2 --replacements 0", {"ends": {"0 5 backward": "SIGKILL"}}, code=1)
        self.assertIn("their state is lost, as the script gave motley.make_elastic no checkpoint", text)

    def test_a_checkpoint_that_a_full_disk_does_not_take(self):
        disk = self.folder / "full"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", disk], capture_output=True).returncode:
            self.skipTest("mounting a small file system needs root")
        self.addCleanup(subprocess.run, ["umount", "--lazy", disk])
        plan = {"checkpoint": str(disk / "state"), "ends": {"0 5 backward": "SIGKILL"}}
        text = self.run_job("--elastic 2:2 --replacements 0", plan, code=1)
        self.assertRegex(text, rf"the checkpoint '{disk}/state' cannot be written: No space left on device")
        self.assertIn("their state is lost, as", text)
        self.assertEqual(list(disk.iterdir()), [])

    def test_too_few_wait_for_a_replacement(self):
        self.run_job("--elastic 2:2 --replacements 1", {"ends": {"1 5 backward": "SIGKILL"}})
        steps = self.check([0, 1])
        self.assertEqual([len(split) for split in steps], [2] * 18)


class NoticeOfTheEnd(ElasticTest):
    def start_endless(self):
        """A job of two ranks that has begun."""
        plan = {"passes": 10**6, "checkpoint": str(self.folder / "state")}
        job = self.start("--elastic 1:2", plan)
        wait_until(lambda: len([file for file in self.folder.glob("*.jsonl") if file.stat().st_size]) == 2)
        return job, plan

    def go_on(self, plan):
        """From the checkpoint: all of both jobs together is what one process does, and no step was computed twice."""
        self.run_job("--elastic 1:2", plan | {"passes": len(self.read()) // STEPS_A_PASS + 2})
        self.check([0, 1])
        self.assertNoStepTwice()

    def assertNoStepTwice(self):
        for file in self.folder.glob("*.jsonl"):
            told = [json.loads(line) for line in file.read_text().splitlines()]
            gave = [one["step"] for one in told if one["what"] == "gave"]
            self.assertEqual(gave, [one["step"] for one in told if one["what"] == "done"])

    def test_a_rank_leaves_after_its_step(self):
        for place in (0, 1):
            with self.subTest(place):
                self.use_new_folder()
                text = self.run_job("--elastic 1:3", {"ends": {f"{place} 4 forward": "SIGTERM", "2 9 between": "SIGTERM"}})
                steps = self.check([1 - place])
                self.assertEqual([len(split) for split in steps], [3] * 5 + [2] * 6 + [1] * 7)
                self.assertNoStepTwice()
                self.assertRegex(text, rf"rank {place} \(process \d+\) has left, as it was asked to; 2 ranks are left")

    def test_all_are_asked_to_leave(self):
        plan = {"checkpoint": str(self.folder / "state"), "ends": {"0 5 forward": "SIGTERM", "1 5 backward": "SIGTERM"}}
        text = self.run_job("--elastic 2:2", plan, code=130)
        self.assertIn(f"all ranks have left, as they were asked to; their state is in '{self.folder}/state'", text)
        self.assertEqual(len(self.read()), 6)
        self.go_on(plan)

    def test_the_launcher_is_asked_to_end(self):
        job, plan = self.start_endless()
        job.terminate()
        self.assertIn("all ranks have left, as they were asked to", self.finish(job, code=130))
        self.go_on(plan)

    def test_the_launcher_is_killed(self):
        job, plan = self.start_endless()
        job.kill()
        text, _ = job.communicate(timeout=END)  # until ranks, which have its output, have ended
        self.assertIn(f"motley run has ended; the state is in '{self.folder}/state'", text)
        self.go_on(plan)


class ElasticCommand(ElasticTest):
    def test_before_the_first_step_all_begin_again(self):
        text = self.run_job("--elastic 2:2 --replacements 1", {"passes": 1, "ends": {"1 0 start": "SIGKILL"}})
        self.check([0, 1])
        self.assertIn("was killed by SIGKILL; 1 rank is left", text)

    def test_what_a_rank_starts_is_none_of_the_job(self):
        self.run_job("--elastic 1:1", {"passes": 1, "starts": "import motley._control as control; assert control.find_launcher() is None"})

    def test_asked_to_end_while_ranks_are_started(self):
        script = """
import os, signal, sys
from motley import _run
start_store = _run._start_store
def start_and_be_asked():
    started = start_store()
    os.kill(os.getpid(), signal.SIGTERM)
    return started
_run._start_store = start_and_be_asked
sys.exit(_run.main(["--elastic", "1:2", "train.py"]))
"""
        (self.folder / "train.py").write_text("import signal\nsignal.pause()\n")
        done = subprocess.run([sys.executable, "-c", script], cwd=self.folder, capture_output=True, text=True, timeout=END, check=False)
        self.assertEqual(done.returncode, 130, done.stderr)
        self.assertIn("all ranks have left, as they were asked to", done.stderr)

    def test_an_error_of_the_script_ends_all(self):
        text = self.run_job("--elastic 1:3", {"ends": {"1 3 forward": "raise"}}, code=1)
        self.assertIn("KeyError: 'of the script'", text)
        self.assertIn("error: rank 1 ended with 1; the other ranks were ended", text)

    def test_a_launcher_that_is_killed_takes_its_ranks_with_it(self):
        job = self.start("--elastic 1:2", {"passes": 10**6})
        wait_until(lambda: len([file for file in self.folder.glob("*.jsonl") if file.stat().st_size]) == 2)
        job.kill()
        job.communicate(timeout=END)
        for file in self.folder.glob("*.jsonl"):
            wait_until(lambda: not pathlib.Path("/proc", file.stem.split("-")[1]).exists())  # noqa: B023

    def test_an_interrupt_ends_the_ranks(self):
        job = self.start("--elastic 1:2", {"passes": 10**6})
        wait_until(lambda: len([file for file in self.folder.glob("*.jsonl") if file.stat().st_size]) == 2)
        job.send_signal(signal.SIGINT)
        self.finish(job, code=130)

    def test_wrong_flags(self):
        for flags, words in ((["--elastic", "2"], "--elastic is '2'; MIN:MAX is accepted"), (["--elastic", "3:2"], "MAX of at least MIN"),
                             (["--elastic", "0:2"], "MIN from 1 on"), ([], "the following arguments are required: --elastic"),
                             (["--elastic", "2:4", "--workers", "5"], "a number from 2 to 4 is accepted"),
                             (["--elastic", "2:4", "--replacements", "-1"], "--replacements is -1; a number from 0 on"),
                             (["--elastic", "2:4", "--join-timeout", "60"], "--join-timeout is '60'; a duration such as")):
            with self.subTest(flags):
                code, _, said = refuse(_run.main, *flags, __file__)
                self.assertEqual(code, 2)
                self.assertIn(words, said)


class ElasticArguments(RanksTest):
    """Of scripts that could not go on without a rank."""

    backend = "motley"

    def test_each_says_what_is_accepted(self):
        for options, hook, words in (({"micro_batch_size": 2, "drop_last": True}, None, "is for one batch a step"),
                                     ({"run_directory": "run"}, None, "run_directory is given, and rank 0, which writes it, may be lost"),
                                     ({}, (None, allreduce_hook), "without a hook of your own"),
                                     ({}, "none", "that motley.weight_gradients(model, loader) was given")):
            with self.subTest(words):
                for message in self.refused_on_ranks(prepare, options, hook):
                    self.assertIn(words, message)

    def test_arguments(self):
        loader = motley.DataLoader(Data(), BATCH)
        optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)
        for arguments, words in (((Data(), optimizer), "loader is a Data; a motley.DataLoader is accepted"),
                                 ((loader, Net()), "optimizer is a Net; a torch.optim.Optimizer is accepted"),
                                 ((loader, optimizer, 3), "others has an int; objects with state_dict")):
            with self.assertRaisesRegex(ValueError, words):
                motley.make_elastic(*arguments)

    def test_without_a_launcher_only_a_checkpoint_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            net, loader = Net(), motley.DataLoader(Data(), BATCH)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            torch.save([optimizer.state_dict(), {**loader.state_dict(), "cursor": 48, "step": 2}], f"{folder}/state")
            motley.make_elastic(loader, optimizer, checkpoint=pathlib.Path(folder, "state"))
            self.assertEqual(sum(motley.run_step(lambda batch: len(batch[0]), batch, loader) for batch in loader), SAMPLES - 48)

    def test_a_checkpoint_that_is_none_of_its_own_is_named(self):
        loader = motley.DataLoader(Data(), BATCH)
        optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "state")
            torch.save([optimizer.state_dict(), loader.state_dict()], path)
            whole = path.read_bytes()
            torch.save([loader.state_dict()], path)
            for content in (whole[:-100], b"", b"text", path.read_bytes()):
                path.write_bytes(content)
                with self.subTest(content[:10]), self.assertRaisesRegex(ValueError, f"^checkpoint '{path}': .*; accepted: what motley"):
                    motley.make_elastic(loader, optimizer, checkpoint=path)


def prepare(options, hook):
    loader = motley.DataLoader(Data(), BATCH, **options)
    model = DDP(Net())
    if hook != "none":
        motley.weight_gradients(model, loader, hook=hook)
    _elastic._check(loader)


if __name__ == "__main__":
    if "MOTLEY_ELASTIC" in os.environ:
        torch.set_num_threads(1)
        Rank(sys.argv[1], json.loads(sys.argv[2])).train()
    else:
        unittest.main()
