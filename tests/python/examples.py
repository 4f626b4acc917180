"""The examples that need nothing but PyTorch, against one process."""
import os
import random
import signal
import subprocess
import sys
import tempfile
import unittest

import torch
from harness import children
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from example_runs import EXAMPLES, RUN, ExampleTest, double_precision, train_alone
from motley import _motley


class Fsdp(ExampleTest):
    def test_it_dies_resumes_and_equals_one_process(self):
        batches = self.run_twice("fsdp")
        with tempfile.NamedTemporaryFile() as file:
            dcp_to_torch_save(self.folder / "checkpoint", file.name)
            weights = torch.load(file.name, weights_only=False)["model"]
        self.check(weights, train_alone(batches))


class Pipeline(ExampleTest):
    def test_it_profiles_plans_and_equals_one_process(self):
        from fashion_mnist import Images, make_net
        steps, batch = 3, 256
        done = subprocess.run([sys.executable, "-m", "motley", "launch", "--workers", "2", EXAMPLES / "pipeline.py", "--steps", str(steps)],
                              cwd=self.folder, capture_output=True, text=True, timeout=RUN, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Sequential: 11 layers", done.stdout)
        torch.manual_seed(0)
        net, data = make_net(), Images("train")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for step in range(steps):
            images = torch.stack([data[number][0] for number in range(step * batch, (step + 1) * batch)])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(images), data.labels[step * batch:(step + 1) * batch]).backward()
            optimizer.step()
        for name, value in torch.load(self.folder / "weights.pt").items():
            torch.testing.assert_close(value, net.state_dict()[name], rtol=1e-4, atol=1e-5)  # float32


IN_FLOAT64 = """
import os, runpy, sys, torch
torch.set_default_dtype(torch.float64)
torch.Tensor.float = torch.Tensor.double
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Elastic(ExampleTest):
    def test_rank_0_is_killed_and_it_equals_one_process(self):
        steps, batch = 40, 256
        (self.folder / "in_float64.py").write_text(IN_FLOAT64)
        job = subprocess.Popen([sys.executable, "-m", "motley", "run", "--elastic", "1:2", "--replacements", "0", "in_float64.py",
                                EXAMPLES / "elastic.py", "--steps", str(steps), "--global-batch-size", str(batch)], cwd=self.folder,
                               stdout=subprocess.PIPE, text=True)
        self.addCleanup(job.kill)
        self.assertRegex(job.stdout.readline(), r"step 20: loss .*, split \[\d+, \d+\]")
        os.kill(min(children(job.pid, "rank")), signal.SIGKILL)
        rest, _ = job.communicate(timeout=RUN)
        self.assertEqual(job.returncode, 0)
        self.assertRegex(rest, r"step 40: loss .*, split \[256\]")
        self.check(torch.load(self.folder / "weights.pt"), self.train_alone(steps, batch))

    @double_precision()
    def train_alone(self, steps, batch):
        from fashion_mnist import Images, make_net
        torch.manual_seed(0)
        net, data = make_net(), Images("train")
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        order = _motley.Ledger(0, 0, 0, len(data)).samples(0, steps * batch)
        for begin in range(0, len(order), batch):
            numbers = order[begin:begin + batch]
            images = torch.stack([data[number][0] for number in numbers])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(images), data.labels[numbers]).backward()
            optimizer.step()
            scheduler.step()
        return net.state_dict()


class ClickModel(ExampleTest):
    def run_example(self, checkpoint, steps):
        words = ["--workers", "1", EXAMPLES / "click_model.py", "--data", self.folder / "clicks.txt", "--rows", "500", "--batch", "16",
                 "--steps", str(steps), "--checkpoint", checkpoint]
        done = subprocess.run([sys.executable, "-m", "motley", "launch", *words], cwd=self.folder, capture_output=True, text=True,
                              timeout=RUN, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_it_goes_on_from_its_checkpoint(self):
        """Bit by bit as a run without an end in between, in the middle of a pass over the data."""
        draw = random.Random(7)
        (self.folder / "clicks.txt").write_text("".join("\t".join(
            [str(draw.randrange(2)), *(str(draw.randrange(9)) for _ in range(13)), *(f"{draw.randrange(99):x}" for _ in range(26))]) + "\n"
            for _ in range(80)))
        for checkpoint, runs in (("whole", (7,)), ("parts", (3, 4))):
            for steps in runs:
                self.run_example(checkpoint, steps)
        whole, parts = (torch.load(self.folder / checkpoint / "state.pt") for checkpoint in ("whole", "parts"))
        self.assertEqual(whole["loader"], parts["loader"])
        for name, value in whole["model"].items():
            if isinstance(value, torch.Tensor):
                self.assertTrue(torch.equal(value, parts["model"][name]), name)
        self.assertEqual([state["model"]["embeddings._extra_state"]["step"] for state in (whole, parts)], [7, 7])


if __name__ == "__main__":
    unittest.main()
