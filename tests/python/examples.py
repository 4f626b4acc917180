"""The examples that need nothing but PyTorch, against one process."""
import tempfile
import unittest

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from example_runs import ExampleTest, train_alone


class Fsdp(ExampleTest):
    def test_it_dies_resumes_and_equals_one_process(self):
        batches = self.run_twice("fsdp")
        with tempfile.NamedTemporaryFile() as file:
            dcp_to_torch_save(self.folder / "checkpoint", file.name)
            weights = torch.load(file.name, weights_only=False)["model"]
        self.check(weights, train_alone(batches))


if __name__ == "__main__":
    unittest.main()
