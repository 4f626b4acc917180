"""python -m motley: the commands of the program, in Python's process, answer as the program does."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from harness import BINARY, Scenario, children, handles, interrupt

from motley import _motley
from ranks import run_scripts

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = ROOT / "examples/pipeline"
COMMANDS = [[], ["check"], ["profile"], ["plan"], ["simulate"], ["train"], ["schedule"],
            ["schedule", "simulate"], ["schedule", "serve"], ["schedule", "submit"], ["server"], ["data-server"], ["report"],
            ["completion"], ["help"]]
PYTHON = [sys.executable, "-m", "motley"]


def run_in_process(words):
    """The exit code, and what the extension module wrote to descriptors 1 and 2."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        kept = [os.dup(1), os.dup(2)]
        try:
            os.dup2(out.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            code = _motley.run_command([str(word) for word in words])
        finally:
            for number, copy in enumerate(kept, 1):
                os.dup2(copy, number)
                os.close(copy)
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode())
    return code, *texts


class BenchFlags(unittest.TestCase):
    def test_one_that_is_unknown_is_refused(self):
        script = """
import os, runpy, sys
del os.environ["RANK"]
sys.path.insert(0, os.path.dirname(sys.argv[1]))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
        for name in ("backend", "embeddings", "equality", "overhead", "parameter_server", "pinned", "pipeline_plan", "speeds"):
            with self.subTest(name):
                (code, text), = run_scripts(script, 1, arguments=[ROOT / f"bench/python/{name}.py", "--quick", "--quik"])
                self.assertEqual(code, 2, text)
                self.assertIn("unrecognized arguments: --quik", text)


class Commands(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def assert_same(self, words, expect):
        program = subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual(program.returncode, expect, program.stderr)
        self.assertEqual(run_in_process(words), (expect, program.stdout, program.stderr))

    def test_help(self):
        for words in COMMANDS:
            with self.subTest(words):
                self.assert_same([*words, "--help"], 0)

    def test_output(self):
        plan = [PIPELINE / "plan.json", "--profile", PIPELINE / "profile.json", "--cluster", PIPELINE / "cluster.yaml"]
        for words in (["--version"], ["train", "--keys"], ["check", "--as-cluster"], ["simulate", *plan],
                      ["check", "--racks", "8", "--workers-per-rack", "16", "--json"]):
            with self.subTest(words):
                self.assert_same(words, 0)

    def test_errors(self):
        (self.folder / "address").write_text("http://127.0.0.1:1\n")  # of no scheduler
        (self.folder / "token").write_text("0123456789" * 4)
        (self.folder / "token").chmod(0o600)
        for words, code in (([], 2), (["no-command"], 2), (["plan", "--no-flag"], 2), (["plan", "--model", "vgg17"], 2),
                            (["plan", "--profile", self.folder / "none.json"], 2), (["report", self.folder], 2),
                            (["schedule", "list", "--state-dir", self.folder], 1)):
            with self.subTest(words):
                self.assert_same(words, code)

    def test_exit_code_and_both_streams_in_order(self):
        """Of a process, whose output and error are one pipe: the trace is written before a policy fails."""
        csv = self.folder / "trace.csv"
        csv.write_text("job,arrival_seconds,duration_seconds,workers\na,0,10,1\nb,1,10,9\n")
        words = ["schedule", "simulate", csv, "--cluster", "1x8", "--policy", "fifo", "--save-trace", self.folder / "kept.csv",
                 "--overwrite"]
        done = [subprocess.run([*command, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240,
                               check=False) for command in ([BINARY], PYTHON)]
        self.assertEqual([one.returncode for one in done], [2, 2], done[1].stdout)
        self.assertRegex(done[0].stdout, r"(?s)^.*: 2 jobs over .*\ntrace: .*\nmotley: error: .*job 'b' asks for 9 devices")
        self.assertEqual(done[1].stdout, done[0].stdout)


class PackageCommands(unittest.TestCase):
    """Those that the package answers itself follow the program's rules."""

    def run_command(self, *words):
        return subprocess.run([*PYTHON, *words], capture_output=True, text=True, timeout=240, check=False)

    def test_help_says_of_every_flag_what_it_takes_and_what_holds_without_it(self):
        for name in ("launch", "run", "export"):
            with self.subTest(name):
                done = self.run_command(name, "--help")
                self.assertEqual(done.returncode, 0, done.stderr)
                flags = re.findall(r"(?m)^  (?:-h, )?--([a-z-]+)((?:.|\n   )*)", done.stdout)
                self.assertGreater(len(flags), 5)
                for flag, text in flags:
                    if flag != "help":
                        self.assertRegex(" ".join(text.split()), r"^[A-Z].*\[(default: .*|required)\]$|\[switch; default: off\]$", flag)

    def test_mistyped_and_old_flags_are_answered_with_those_that_were_meant(self):
        for words, meant in ((("launch", "--wrokers", "2", "x.py"), "motley launch: unknown flag '--wrokers'; did you mean '--workers'?"),
                             (("run", "--elastic", "2:4", "--replacments=2", "x.py"), "did you mean '--replacements'?"),
                             (("export", "x.py:Net", "--force"), "motley export: unknown flag '--force'; it is now '--overwrite'"),
                             (("export", "x.py:Net", "--zzzzz"), "unknown flag '--zzzzz'; accepted: --help, "),
                             (("run", "--elastic", "1:2", "--quiet", "--verbose", "x.py"), "--quiet excludes --verbose")):
            with self.subTest(words):
                done = self.run_command(*words)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(meant, done.stderr.splitlines()[-1])


class Training(Scenario):
    def command(self, run, *flags, job=True):
        program = super().command(run, *flags, job=job)
        return program if run == "program" else [*PYTHON, *program[1:]]

    def test_weights_are_those_of_the_program(self):
        flags = ["--workers", 2, "--batch-split.mode", "equal", "--epochs", 1]
        self.train("program", *flags)
        self.train("python", *flags)
        self.assert_bitwise("program", "python")

    def test_workers_are_python_and_an_interrupt_leaves_a_checkpoint(self):
        process = self.start("python", "--workers", 2, "--epochs", 100000)
        self.wait_for_step("python", 3)
        self.assertTrue(handles(process.pid, signal.SIGINT))
        workers = self.worker_processes(process.pid)
        self.assertEqual(sorted(workers), sorted(children(process.pid, "train")))
        for worker in workers:
            words = Path(f"/proc/{worker}/cmdline").read_bytes().split(b"\0")
            self.assertEqual([word.decode() for word in words[:4]], [*PYTHON, "train"])
        interrupt(process)
        output, _ = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 130, output)
        self.assertIn("a checkpoint was written", output)
        self.assertTrue(list((self.folder / "python/checkpoint").glob("step-*")))


if __name__ == "__main__":
    unittest.main()
