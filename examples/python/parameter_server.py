"""mixed.py with a parameter server in place of DistributedDataParallel: rank 0 runs one, and it takes the optimizer's step.

    python -m motley launch --workers 2 examples/python/parameter_server.py
"""
import argparse
import time

import torch
import torch.distributed as dist

import motley
from fashion_mnist import Images, make_net


def train(epochs, steps):
    data = Images("train")
    loader = motley.DataLoader(data, global_batch_size=256)
    net = make_net()
    optimizer = motley.optim.ParameterServerOptimizer(torch.optim.AdamW(net.parameters(), lr=1e-3), loader=loader)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)

    step, times, last = 0, [], time.perf_counter()
    for _ in range(epochs):
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            now = time.perf_counter()
            times.append(now - last)
            step, last = step + 1, now
            if step % 20 == 0 and dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.3f}, {1e3 * sorted(times[-20:])[10]:.1f} ms a step, "
                      f"split {loader.split}", flush=True)
            if step == steps:
                return


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="end after so many steps")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    train(options.epochs, options.steps)
    dist.destroy_process_group()
