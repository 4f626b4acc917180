"""plain.py for machines that are not alike: each batch is split by the measured speed of the ranks. The loader and
the weighted gradients differ; the sampler is gone, the split is printed, and a run directory is left if asked for.

    python -m motley launch --emulated-speeds 1,1,0.5,0.25 examples/python/mixed.py
"""
import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import motley
from fashion_mnist import Images, make_net


def train(epochs, steps, batch, channels, run_directory):
    torch.manual_seed(0)
    data = Images("train")
    loader = motley.DataLoader(data, global_batch_size=batch, run_directory=run_directory)
    model = motley.weight_gradients(DDP(make_net(channels)), loader)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    step, times, last = 0, [], time.perf_counter()
    for _ in range(epochs):
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            loader.record(loss)
            optimizer.step()
            optimizer.zero_grad()
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
    parser.add_argument("--global-batch-size", type=int, default=256)
    parser.add_argument("--channels", type=int, default=16, help="of the first convolution; the second has twice as many")
    parser.add_argument("--run-directory", help="a new folder for what each step took, and its page")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    train(options.epochs, options.steps, options.global_batch_size, options.channels, options.run_directory)
    dist.destroy_process_group()  # with the model gone: PyTorch can wait forever for a group whose last user is a model
