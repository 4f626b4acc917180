"""PyTorch's own tests of torch.distributed, which its wheel contains, over a backend of that name.

    torch_suite.py [--backend NAME] [--ranks N] [--lift] [TEST...]

runs the tests of these names, else all: with --lift those that PyTorch keeps for "gloo" or "mpi". Prints a line of JSON:
how many ran, passed and were skipped, and the names of those that failed; ends with 1 where one failed that is not expected to.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import re
import sys
import tempfile
import unittest

SUITE = "torch.testing._internal.distributed.distributed_test"
# It wants the backend's name where PyTorch says "custom" for each one that is not its own.
EXPECTED_FAILURES = {"test_ddp_logging_data_cpu"}
# `BACKEND != "gloo"` and the like, in conditions that skip a test.
OWN_BACKENDS = re.compile(r'BACKEND (!=|==) "(gloo|mpi)"')


def load_suite(backend, lift):
    """The suite's module, with the backend among those that its tests are for, and its source."""
    from torch.testing._internal import common_distributed  # noqa: F401  it fills what the suite reads
    from torch.testing._internal.common_distributed import DistTestCases

    for feature in ("ddp", "subgroup", "plugin"):
        DistTestCases.backend_feature[feature].add(backend)
    found = importlib.util.find_spec(SUITE)
    source = pathlib.Path(found.origin).read_text()
    if lift:
        source = OWN_BACKENDS.sub(lambda m: f'BACKEND {"not in" if m[1] == "!=" else "in"} ("{m[2]}", "{backend}")', source)
    module = importlib.util.module_from_spec(found)
    sys.modules[SUITE] = module
    exec(compile(source, found.origin, "exec"), module.__dict__)
    return module, source


def lifted_tests(source):
    """The names of the tests whose decorators mention gloo or mpi as the only ones."""
    names, pending = [], False
    for line in source.splitlines():
        if re.search(r'BACKEND (not in|in) \("(gloo|mpi)", ', line):
            pending = True
        elif found := re.match(r"\s+def (\w+)\(", line):
            if pending and found[1].startswith("test_"):
                names.append(found[1])
            pending = False
    return names


def tests_of_gpus(source):
    """The names of the tests that would start their processes only to find that there is no GPU."""
    names, pending = set(), False
    for line in source.splitlines():
        if re.match(r"\s+@skip_if_(no_gpu|lt_x_gpu)", line):
            pending = True
        elif found := re.match(r"\s+def (\w+)\(", line):
            if pending:
                names.add(found[1])
            pending = False
    return names


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="motley")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--lift", action="store_true")
    parser.add_argument("tests", nargs="*")
    return parser.parse_args(words)


def prepare():
    """What the suite reads from the environment; its processes, which import this file, too, find it there."""
    if "MOTLEY_TORCH_SUITE" not in os.environ:
        options = parse(sys.argv[1:])
        folder = tempfile.mkdtemp(prefix="motley-torch-suite-")
        for name in ("barrier", "test_dir", "init_dir"):
            pathlib.Path(folder, name).mkdir()
        os.environ |= {"BACKEND": options.backend, "WORLD_SIZE": str(options.ranks), "TEMP_DIR": folder,
                       "INIT_METHOD": f"file://{folder}/init_dir/shared_init_file", "MASTER_ADDR": "127.0.0.1",
                       "MOTLEY_TORCH_SUITE": "lift" if options.lift else "all"}
    import torch

    torch.set_num_threads(1)
    if os.environ["BACKEND"] == "motley":
        import motley  # noqa: F401
    return load_suite(os.environ["BACKEND"], os.environ["MOTLEY_TORCH_SUITE"] == "lift")


suite, suite_source = prepare()


class Suite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()


if not suite.torch.cuda.is_available():
    for test in tests_of_gpus(suite_source) & set(dir(Suite)):
        setattr(Suite, test, unittest.skip("it needs a GPU")(getattr(Suite, test)))


class Result(unittest.TextTestResult):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.passed = []

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.append(test.id().rsplit(".", 1)[-1])


def main():
    options = parse(sys.argv[1:])
    names = options.tests or (lifted_tests(suite_source) if options.lift else None)
    loader = unittest.defaultTestLoader
    tests = loader.loadTestsFromTestCase(Suite) if names is None else unittest.TestSuite(map(Suite, names))
    result = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(tests)
    failed = [test.id().rsplit(".", 1)[-1] for test, _ in result.errors + result.failures]
    unexpected = sorted(set(failed) - EXPECTED_FAILURES)
    print(json.dumps({"run": result.testsRun, "passes": len(result.passed), "skips": len(result.skipped), "failures": sorted(failed),
                      "unexpected": unexpected, "passed": sorted(result.passed)}))
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
