"""The examples of other frameworks, against one process; and what the frameworks would do wrong is left out, or refused by a sentence.

They are skipped by name where a framework is not installed: tools/setup --nightly installs all of them.
"""
import importlib.util
import unittest

import torch

from example_runs import ExampleTest


def needs(*packages):
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return unittest.skipIf(missing, f"{', '.join(missing)} not installed: tools/setup --nightly")


@needs("accelerate", "safetensors")
class Accelerate(ExampleTest):
    def test_it_dies_resumes_and_equals_one_process(self):
        from safetensors.torch import load_file
        batches = self.run_twice("accelerate_loop")
        self.check(load_file(self.folder / "checkpoint/model.safetensors"), batches)


@needs("lightning")
class Fabric(ExampleTest):
    def test_it_dies_resumes_and_equals_one_process(self):
        batches = self.run_twice("fabric")
        self.check(torch.load(self.folder / "checkpoint")["model"], batches)


@needs("lightning")
class Lightning(ExampleTest):
    def test_it_dies_resumes_and_equals_one_process(self):
        batches = self.run_twice("lightning_module")
        state = torch.load(self.folder / "checkpoint/last.ckpt", weights_only=False)["state_dict"]
        self.check({name.removeprefix("net."): value for name, value in state.items()}, batches)


if __name__ == "__main__":
    unittest.main()
