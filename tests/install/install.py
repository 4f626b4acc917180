"""What `cmake --install` gives: a project outside of the tree finds the package, links a module and runs; so does the program."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

CMAKE = os.environ.get("MOTLEY_CMAKE", "cmake")
BUILD = os.environ.get("MOTLEY_BUILD_FOLDER", "build/release")
COMPILER = os.environ.get("MOTLEY_COMPILER", "c++")
PROJECT = pathlib.Path(__file__).resolve().parent / "project"


class Install(unittest.TestCase):
    def run_command(self, *words):
        done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=500, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_a_project_finds_and_uses_it(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="motley-install-"))
        self.addCleanup(shutil.rmtree, folder, True)
        self.run_command(CMAKE, "--install", BUILD, "--prefix", folder / "usr")
        self.assertTrue((folder / "usr/include/motley/planning/methods.h").exists())
        self.run_command(CMAKE, "-S", PROJECT, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={folder / 'usr'}",
                         f"-DCMAKE_CXX_COMPILER={COMPILER}")
        self.run_command(CMAKE, "--build", folder / "build")
        self.assertIn("exact", self.run_command(folder / "build/uses_motley").split())
        self.assertTrue((folder / "usr/bin/motley-run-attempt").exists())
        program = folder / "usr/bin/motley"
        if program.exists():
            self.assertRegex(self.run_command(program, "--version"), r"^motley \d+\.\d+\.\d+")
            for file in ("man/man1/motley-train.1", "bash-completion/completions/motley", "zsh/site-functions/_motley",
                         "fish/vendor_completions.d/motley.fish"):
                self.assertIn("motley", (folder / "usr/share" / file).read_text())


if __name__ == "__main__":
    unittest.main()
