"""tools/new: what it makes is registered, compiles beside its neighbours, and never takes the place of what is there."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of each kind: a name, the files that are new with neighbours that are compiled as they are, and who names them.
KINDS = {
    "policy": ("round-robin",
               {"src/motley/scheduling/policies/round_robin.cpp": "scheduling/policies/ranked_policies.cpp",
                "tests/scheduling/round_robin_test.cpp": "tests/scheduling/policies_test.cpp"},
               {"src/motley/scheduling/policies/policies.h": "make_round_robin", "tests/scheduling/CMakeLists.txt": "round_robin_test.cpp"}),
    "planner": ("first-fit",
                {"src/motley/planning/search/first_fit.cpp": "planning/search/genetic.cpp",
                 "tests/planning/search/first_fit_test.cpp": "tests/planning/search/methods_test.cpp"},
                {"src/motley/planning/methods.cpp": "plan_first_fit", "tests/planning/search/CMakeLists.txt": "first_fit_test.cpp"}),
    "module": ("net/quic",
               {"src/motley/net/quic/quic.cpp": "net/socket.cpp", "tests/net/quic/quic_test.cpp": "tests/net/frame_test.cpp"},
               {"src/motley/CMakeLists.txt": "net/quic", "tests/CMakeLists.txt": "net/quic"}),
}


class New(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.tree = pathlib.Path(self.folder.name)
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, self.tree / part, ignore=shutil.ignore_patterns("corpus", "__pycache__"))

    def new(self, *words, expect=0):
        done = subprocess.run([sys.executable, ROOT / "tools/new", *words, "--tree", self.tree], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, expect, done.stderr)
        return done.stdout + done.stderr

    def compile(self, file, neighbour):
        """Checks a file with the command that compiles its neighbour, or the neighbour's whole folder, in the build that runs this test."""
        build = pathlib.Path(os.environ.get("MOTLEY_BUILD", ROOT / "build/release"))
        commands = json.loads((build / "compile_commands.json").read_text()) if (build / "compile_commands.json").exists() else []
        folder = f"/{'' if neighbour.startswith('tests/') else 'src/motley/'}{os.path.dirname(neighbour)}/"
        found = next((one for one in commands if one["file"].endswith(neighbour) or folder in one["file"]), None)
        if found is None:
            self.skipTest(f"{build} does not say how {neighbour} is compiled")
        command = found["command"].replace(found["file"], str(self.tree / file))
        command = re.sub(r"-I\S*/src(?= )", f"-I{self.tree}/src", re.sub(r"-o \S+", "-fsyntax-only", command))
        done = subprocess.run(command, shell=True, cwd=found["directory"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_is_new_is_named_once_and_compiles(self):
        for kind, (name, files, named) in KINDS.items():
            with self.subTest(kind):
                said = self.new(kind, name)
                for file, what in named.items():
                    self.assertEqual(len(re.findall(rf"\b{what}\b", (self.tree / file).read_text())), 1, file)
                for file, neighbour in files.items():
                    self.assertIn(file, said)
                    self.compile(file, neighbour)

    def test_nothing_is_replaced(self):
        for kind, (name, _, named) in KINDS.items():
            self.new(kind, name)
            before = {file: (self.tree / file).read_text() for file in named}
            self.assertIn("is there already", self.new(kind, name, expect=2))
            self.assertEqual(before, {file: (self.tree / file).read_text() for file in named})

    def test_names_are_checked(self):
        for kind, name in (("policy", "Round Robin"), ("planner", "a_b"), ("module", "../net"), ("module", "net/")):
            self.assertIn("accepted:", self.new(kind, name, expect=2))


if __name__ == "__main__":
    unittest.main()
