"""motley export: what it writes trains, resumes and pipelines like any network; what it cannot write it says."""
import contextlib
import io
import os
import subprocess
import sys
import unittest
from pathlib import Path

import torch
from harness import BINARY, Scenario, relative_difference

from motley import _export

together = "importing takes longer than most tests"

MODELS = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.fc1 = nn.Linear(12, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.drop = nn.Dropout(0.5)
        self.fc2 = nn.Linear(hidden, 4)
    def forward(self, x):
        return self.fc2(self.drop(torch.relu(self.norm(self.fc1(x.flatten(1))))))
class Untyped(Net):
    def forward(self, x, *more):
        return super().forward(x)
class Branches(Net):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(-x)
class Evaluates(Net):
    def forward(self, x):
        return super().forward(x) * (1 if self.training else 2)
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.linear = nn.Embedding(30, 4), nn.Linear(12, 4)
    def forward(self, x, ids):
        return self.linear(x) + self.token(ids).sum(1)
class LanguageModel(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.token, self.block = nn.Embedding(tokens, 16), nn.TransformerEncoderLayer(16, 2, 32, dropout=0, batch_first=True)
        self.output = nn.Linear(16, tokens)
    def forward(self, ids):
        length = ids.shape[1]
        ahead = torch.full((length, length), float("-inf")).triu(1)
        return self.output(self.block(self.token(ids), src_mask=ahead))
def lm():
    return LanguageModel(300)
net = Net(5)
number = 3
def gpt2():
    import transformers
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=256, n_positions=16, n_embd=16, n_layer=2, n_head=2))
"""


class ExportCase(Scenario):
    """A folder with the models and the commands."""

    def setUp(self):
        super().setUp()
        (self.folder / "model.py").write_text(MODELS)

    def export(self, *words):
        """By the package's command, in this process; what it said."""
        said, before = io.StringIO(), os.getcwd()
        os.chdir(self.folder)
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                self.assertEqual(_export.main(list(words)), 0, said.getvalue())
        finally:
            os.chdir(before)
        return said.getvalue()


class Exporting(ExportCase):
    def test_a_module_trains_and_resumes_bitwise(self):
        said = self.export("model.py:Net", "--input", "12", "--arguments", '{"hidden": 16}', "--output", "out/net.pt2")
        self.assertIn("wrote out/net.pt2 (308 parameters, 4 outputs) and out/job.yaml", said)
        self.assertIn("input_shape: [12]\n  outputs: 4", (self.folder / "out/job.yaml").read_text())
        flags = ("--model.name", "exported", "--model.hidden-sizes", "", "--model.path", self.folder / "out/net.pt2")
        self.train("whole", *flags, "--steps", 12)
        self.train("parts", *flags, "--steps", 5)
        self.train("parts", *flags, "--steps", 12, "--resume")
        whole, parts = self.weights("whole"), self.weights("parts")
        self.assertIn("norm.running_mean", whole)
        self.assertEqual(whole.keys(), parts.keys())
        for name, values in whole.items():
            self.assertEqual(values.tobytes(), parts[name].tobytes(), name)
        shown = self.train("two", *flags, "--steps", 4, "--workers", 2)
        self.assertIn("step 4", shown)

    def test_weights_in_another_order_of_dimensions_train_alike(self):
        (self.folder / "model.py").write_text("""
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, memory_format):
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.linear = nn.Conv2d(2, 6, (1, 3)), nn.Linear(12, 4)
        self.to(memory_format=getattr(torch, memory_format))
    def forward(self, x):
        return self.linear(torch.relu(self.conv(x.reshape(-1, 2, 2, 3))).flatten(1))
""")
        for order in ("contiguous_format", "channels_last"):
            self.export("model.py:Net", "--input", "12", "--arguments", f'{{"memory_format": "{order}"}}', "--output", f"{order}.pt2",
                        "--job", f"{order}.yaml")
            for method in ("tcp-ring", "parameter-server"):
                self.train(f"{order}-{method}", "--model.name", "exported", "--model.hidden-sizes", "", "--model.path",
                           self.folder / f"{order}.pt2", "--steps", 8, "--workers", 2, "--batch-split.mode", "equal",
                           "--gradient-sync.method", method)
        expected = self.weights("contiguous_format-tcp-ring")
        for run in ("contiguous_format-parameter-server", "channels_last-tcp-ring", "channels_last-parameter-server"):
            self.assertLess(relative_difference(expected, self.weights(run)), 1e-5, run)

    def test_the_program_asks_python(self):
        environment = {**os.environ, "MOTLEY_PYTHON": sys.executable}
        words = [BINARY, "export", "model.py:net", "--input", "12", "--output", "out/model.pt2"]
        done = subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.folder / "out/model.pt2").exists())
        done = subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--output: 'out/model.pt2' exists; accepted: another file, or --overwrite to replace it", done.stderr)
        done = subprocess.run([*words[:-1], "out/b.pt2"], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--job: 'out/job.yaml' exists; accepted: another file, or --overwrite to replace it", done.stderr)
        words[-1:] = ["out/b.pt2", "--job", "jobs/b.yaml"]
        done = subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('path: "../out/b.pt2"', (self.folder / "jobs/b.yaml").read_text())
        done = subprocess.run(words, cwd=self.folder, env={**os.environ, "MOTLEY_PYTHON": "/bin/false"}, capture_output=True, text=True,
                              timeout=120)
        self.assertEqual(done.returncode, 2)
        self.assertIn("export: no Python with the package motley: /bin/false does not have it; accepted: MOTLEY_PYTHON=", done.stderr)

    def test_the_program_starts_scripts_by_python(self):
        (self.folder / "rank.py").write_text("import os\nos.write(1, '|rank {RANK} of {WORLD_SIZE}|'.format_map(os.environ).encode())\n")
        environment = {**os.environ, "MOTLEY_PYTHON": sys.executable}
        done = subprocess.run([BINARY, "launch", "--workers", "2", "rank.py"], cwd=self.folder, env=environment, capture_output=True,
                              text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("|rank 1 of 2|", done.stdout)
        for words in (["run", "--help"], ["help", "run"]):
            done = subprocess.run([BINARY, *words], env=environment, capture_output=True, text=True, timeout=120, check=True)
            self.assertIn("--replacements INT", done.stdout)
        done = subprocess.run([BINARY, "launch", "--help"], env={**os.environ, "MOTLEY_PYTHON": "/bin/false"}, capture_output=True,
                              text=True, timeout=120, check=True)
        self.assertIn("Usage: motley launch [--workers INT]", done.stdout)

    def test_a_model_of_transformers_trains_on_a_text(self):
        try:
            import transformers  # noqa: F401
        except ImportError:
            self.skipTest("no Python package transformers")
        self.export("model.py:gpt2", "--input", "16:int64:256", "--output", "gpt2/model.pt2")
        (self.folder / "text.txt").write_text("a row of words, " * 200)
        self.job = self.folder / "gpt2/job.yaml"
        self.train("run", "--data.train", self.folder / "text.txt", "--steps", 3)
        names = self.weights("run").keys()
        self.assertIn("transformer.wte.weight", names)
        self.assertNotIn("lm_head.weight", names)


    def test_a_language_model_trains_on_tokens_as_in_pytorch(self):
        """All samples are one step, so that their order matters only to rounding."""
        tokens = torch.randint(300, (8 * 12 + 1,), generator=torch.Generator().manual_seed(3))
        tokens.numpy().astype("uint16").tofile(self.folder / "train.bin")
        said = self.export("model.py:lm", "--input", "12:int64:300", "--output", "lm/model.pt2")
        self.assertIn("300 outputs", said)
        job = (self.folder / "lm/job.yaml").read_text()
        self.assertIn("name: tokens", job)
        self.assertIn("vocab_size: 300\n  sequence_length: 12", job)
        (self.folder / "lm/job.yaml").write_text(job.replace("train.bin", str(self.folder / "train.bin")).replace("  test: val.bin\n", ""))
        self.job = self.folder / "lm/job.yaml"
        flags = ("--data.test-fraction", 0, "--global-batch-size", 8, "--optimizer.name", "sgd", "--optimizer.learning-rate", 0.5)
        self.train("run", *flags, "--steps", 3)
        self.train("two", *flags, "--steps", 3, "--workers", 2)

        namespace = {}
        exec(MODELS, namespace)  # noqa: S102
        net = namespace["lm"]()
        net.load_state_dict({name: tensor.clone() for name, tensor in torch.export.load(self.folder / "lm/model.pt2").state_dict.items()})
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
        inputs, targets = tokens[:96].reshape(8, 12), tokens[1:97].reshape(8, 12)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        for run in ("run", "two"):
            torch.testing.assert_close(list(self.losses(run).values()), losses, rtol=1e-5, atol=1e-6)
            weights = self.weights(run)
            for name, parameter in net.named_parameters():
                torch.testing.assert_close(torch.from_numpy(weights[name].copy()), parameter.detach(), rtol=1e-4, atol=1e-5, msg=name)


class ExportRefusals(unittest.TestCase):
    """In this process, which imports PyTorch once."""

    def setUp(self):
        import tempfile
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        Path("model.py").write_text(MODELS)

    def refuse(self, words, *texts):
        with self.subTest(words):
            with self.assertLogs("motley.export") as logs:
                self.assertEqual(_export.main(words), 2)
            for text in texts:
                self.assertIn(text, logs.output[-1])
            self.assertEqual(list(Path().glob("*.pt2")), [])

    def test_a_full_disk_is_said(self):
        Path("full").mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", "full"], capture_output=True).returncode:
            self.skipTest("mounting a small file system needs root")
        self.addCleanup(subprocess.run, ["umount", "--lazy", os.path.abspath("full")])
        self.refuse(["model.py:Net", "--input", "12", "--output", "full/net.pt2"],
                    "--output: 'full/net.pt2' cannot be written: No space left on device")
        self.assertEqual(os.listdir("full"), [])

    def test_what_is_wrong_is_said(self):
        self.refuse(["model.py"], "FILE.py:NAME")
        self.refuse(["none.py:Net"], "no file")
        self.refuse(["model.py:Nex"], "modules in it: Net")
        self.refuse(["model.py:number"], "is an int; accepted: a torch.nn.Module")
        self.refuse(["model.py:Net", "--input", "5,5"], "--input")
        self.refuse(["model.py:Net", "--input", "5,x"], "list of sizes")
        self.refuse(["model.py:Net", "--input", "5:int8"], "has the type 'int8'; accepted: float32, int64, int32")
        self.refuse(["model.py:Net", "--input", "5:float32:3"], "SIZES:TYPE:BOUND with integers")
        self.refuse(["model.py:Net", "--input", "5²"], "'5²' is not a list of sizes")
        self.refuse(["model.py:Net", "--input", "5:int64:²"], "SIZES:TYPE:BOUND with integers")
        self.refuse(["model.py:Net", "--input", "5:int64:0"], "SIZES:TYPE:BOUND with integers")
        for kind, largest in (("int32", 2**31 - 1), ("int64", 2**63 - 1)):
            self.refuse(["model.py:Net", "--input", f"5:{kind}:{largest + 1}"], "SIZES:TYPE:BOUND with integers")
            self.assertEqual(_export.parse_input(f"5:{kind}:{largest}").bound, largest)
        self.refuse(["model.py:Net", "--input", "12", "--arguments", "3"], "object of names")
        self.refuse(["model.py:net", "--input", "12", "--arguments", '{"hidden": 3}'], "is an instance and takes none")
        self.refuse(["model.py:Net", "--input", "12", "--output", "net.pt"], "must end in .pt2")
        self.refuse(["model.py:Net", "--input", "12", "--output", "/proc/net.pt2"], "--output: '/proc/net.pt2' cannot be written")
        self.refuse(["model.py:Net", "--input", "12", "--job", "/proc/job.yaml"], "--job: '/proc/job.yaml' cannot be written")
        self.refuse(["model.py:Branches", "--input", "12"],
                    "torch.export cannot record the module", "if x.sum() > 0 else super().forward(-x)")
        self.refuse(["model.py:Evaluates", "--input", "12"], "computes something else in evaluation")

    def test_inputs_and_arguments_of_any_number(self):
        for words in (["model.py:Untyped", "--input", "12"], ["model.py:Two", "--input", "12", "--input", "3:int64:30"]):
            with self.subTest(words):
                self.assertEqual(_export.main([*words, "--output", "made.pt2", "--overwrite"]), 0)
                program = torch.export.load("made.pt2")
                taken = [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
                self.assertEqual(len(taken), words.count("--input"))
