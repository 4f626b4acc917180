"""motley launch: ranks, their ends, and speeds that are emulated from outside."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TIMES = """
import json, os, pathlib, sys, time
rank = int(os.environ["RANK"])
folder = pathlib.Path(sys.argv[1])
(folder / f"{rank}.ready").touch()
while len(list(folder.glob("*.ready"))) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.001)
began, cpu = time.monotonic(), time.process_time()
while time.process_time() - cpu < 0.1:
    pass
(folder / f"{rank}.json").write_text(json.dumps([time.monotonic() - began, time.process_time() - cpu]))
"""


class Launching(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def launch(self, script, *flags, arguments=()):
        file = self.folder / "script.py"
        file.write_text(script)
        return subprocess.run([sys.executable, "-m", "motley", "launch", *flags, file, *map(str, arguments)], cwd=self.folder,
                              capture_output=True, text=True, timeout=120, check=False)

    def test_ranks_find_each_other(self):
        done = self.launch("import sys, torch, torch.distributed as dist\n"
                           "dist.init_process_group('gloo')\n"
                           "total = torch.tensor([dist.get_rank() + 1])\n"
                           "dist.all_reduce(total)\n"
                           "sys.stdout.write(f'{sys.argv[1]} {total.item()}\\n')\n"
                           "dist.destroy_process_group()\n", "--workers", "2", arguments=["a b"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines(), ["a b 3"] * 2)

    def test_one_that_fails_ends_the_others(self):
        done = self.launch("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(300)\n", "--workers", "3")
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertIn("rank 1 ended with 7; the other ranks were ended", done.stderr)

    def test_a_killed_rank_is_named(self):
        done = self.launch("import os, signal, time\nif os.environ['RANK'] == '0': os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(300)\n",
                           "--workers", "2")
        self.assertEqual(done.returncode, 128 + 9, done.stderr)
        self.assertIn("rank 0 was ended by SIGKILL", done.stderr)

    def test_emulated_speeds_slow_a_rank_down(self):
        """Lower bounds only: a busy machine is slower still."""
        done = self.launch(TIMES, "--emulated-speeds", "1,0.1", arguments=[self.folder])
        if "busy otherwise" not in done.stderr:
            self.assertEqual(done.returncode, 0, done.stderr)
        rates = [speed / max(1, 2 * 1.1 / len(os.sched_getaffinity(0))) for speed in (1, 0.1)]
        for rank, rate in enumerate(rates):
            seconds, cpu = json.loads((self.folder / f"{rank}.json").read_text())
            self.assertGreater(seconds, 0.8 * (cpu - 0.005) / rate)

    def test_wrong_flags(self):
        for flags, words in ((["--emulated-speeds", "1,fast"], "numbers with commas"), (["--emulated-speeds", "1,0"], "numbers above 0"),
                             (["--workers", "3", "--emulated-speeds", "1,1"], "2 emulated speeds for 3 ranks"), ([], "say --workers")):
            with self.subTest(flags):
                done = self.launch("", *flags)
                self.assertEqual(done.returncode, 2)
                self.assertIn(words, done.stderr)

    def test_no_script(self):
        done = subprocess.run([sys.executable, "-m", "motley", "launch", "--workers", "1", "nowhere.py"], cwd=self.folder,
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no script 'nowhere.py'", done.stderr)


if __name__ == "__main__":
    unittest.main()
