"""How long the package takes to be installed where PyTorch is: `pip install --no-build-isolation .` in a copy of the tree, without a cache
of compilers.

    install.py [--quick]     with --quick not at all: it takes minutes

The package is imported from where it was installed to, with the packages beside it that it links to.
"""
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import torch

from rows import print_rows, read_flags, row, say

ROOT = pathlib.Path(__file__).resolve().parents[2]


def copy_tree(to):
    """The files that git knows, as they are in this tree."""
    for name in subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0"):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def install(source, packages):
    """Seconds that it takes."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-build-isolation", "--no-deps",
                           "--target", packages, source], stdout=sys.stderr, check=False,
                          env=os.environ | {"CCACHE_DISABLE": "1", "CXX": "/usr/bin/c++"})
    if done.returncode:
        sys.exit(f"pip ended with {done.returncode}")
    return time.monotonic() - began


def check_import(packages):
    beside = pathlib.Path(torch.__file__).parents[1]
    for other in beside.iterdir():
        if not (packages / other.name).exists():
            (packages / other.name).symlink_to(other)
    found = subprocess.run([sys.executable, "-c", "import motley; print(motley.__file__)"], stdout=subprocess.PIPE, text=True, check=True,
                           env=os.environ | {"PYTHONPATH": str(packages)}).stdout.strip()
    if pathlib.Path(found).parents[1] != packages:
        sys.exit(f"imported {found} and not what was installed in {packages}")


def main():
    if read_flags(__doc__).quick:
        return print_rows([])
    if importlib.util.find_spec("scikit_build_core") is None:
        say("python: the row install is left out: it needs scikit-build-core, which tools/setup --nightly installs")
        return print_rows([])
    with tempfile.TemporaryDirectory() as folder:
        source, packages = pathlib.Path(folder).resolve() / "motley", pathlib.Path(folder).resolve() / "packages"
        copy_tree(source)
        seconds = install(source, packages)
        check_import(packages)
    processors = len(os.sched_getaffinity(0))
    return print_rows([row("install", "minutes", seconds / 60, "min", "less", 4, None,
                           f"long; measured; the package alone, PyTorch {torch.__version__} present, {processors} processors")])


if __name__ == "__main__":
    main()
