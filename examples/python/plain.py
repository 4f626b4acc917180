"""A small CNN on Fashion-MNIST with DistributedDataParallel, as one writes it for machines that are alike.

    torchrun --nproc-per-node 2 examples/python/plain.py

mixed.py beside it is the same script for machines that are not.
"""
import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from fashion_mnist import Images, make_net


def train(epochs, steps, batch, channels):
    torch.manual_seed(0)
    data = Images("train")
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=batch // dist.get_world_size(), sampler=sampler)
    model = DDP(make_net(channels))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    step, times, last = 0, [], time.perf_counter()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            now = time.perf_counter()
            times.append(now - last)
            step, last = step + 1, now
            if step % 20 == 0 and dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.3f}, {1e3 * sorted(times[-20:])[10]:.1f} ms a step", flush=True)
            if step == steps:
                return


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="end after so many steps")
    parser.add_argument("--global-batch-size", type=int, default=256)
    parser.add_argument("--channels", type=int, default=16, help="of the first convolution; the second has twice as many")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    train(options.epochs, options.steps, options.global_batch_size, options.channels)
    dist.destroy_process_group()  # with the model gone: PyTorch can wait forever for a group whose last user is a model
