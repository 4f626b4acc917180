"""The fused optimizers' weights after every step, beside PyTorch's own from the same start and gradients in float64."""
import json
import os
import subprocess
import unittest

import torch


def optimizer(case, weights):
    common = {"lr": case["learning_rate"], "weight_decay": case["weight_decay"]}
    if case["optimizer"] == "sgd":
        return torch.optim.SGD([weights], momentum=case["momentum"], dampening=case["dampening"],
                               nesterov=case["nesterov"], **common)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[case["optimizer"]]
    return kind([weights], betas=tuple(case["betas"]), eps=case["epsilon"], **common)


class Optimizers(unittest.TestCase):
    def test_weights_are_those_of_pytorch(self):
        text = subprocess.run([os.environ["MOTLEY_OPTIMIZER_STEPS"]], check=True, capture_output=True, text=True).stdout
        cases = [json.loads(line) for line in text.splitlines()]
        self.assertEqual(len(cases), 14)
        for case in cases:
            weights = torch.tensor(case["start"], dtype=torch.float64, requires_grad=True)
            algorithm = optimizer(case, weights)
            for step, (gradient, ours) in enumerate(zip(case["gradients"], case["weights"], strict=True), start=1):
                weights.grad = torch.tensor(gradient, dtype=torch.float64)
                algorithm.step()
                error = (torch.tensor(ours, dtype=torch.float64) - weights.detach()).abs().max().item()
                name = {key: case[key] for key in case if key not in ("start", "gradients", "weights")}
                self.assertLess(error, 1e-6, f"{name}, step {step}")


if __name__ == "__main__":
    unittest.main()
