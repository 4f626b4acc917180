"""A small CNN on Fashion-MNIST with DistributedDataParallel, on ranks that may be killed: the others go on, and replacements join them.

    python -m motley run --elastic 2:4 examples/python/elastic.py

`kill -9` any rank, also rank 0. Under torchrun or motley launch it runs, too; there a killed rank ends the job.
"""
import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import motley
from fashion_mnist import Images, make_net


def train(steps, batch, checkpoint):
    torch.manual_seed(0)
    loader = motley.DataLoader(Images("train"), global_batch_size=batch)
    model = motley.weight_gradients(DDP(make_net()), loader)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    motley.make_elastic(loader, optimizer, scheduler, checkpoint=checkpoint)

    def step(batch):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss.item()

    while scheduler.last_epoch < steps:  # the number of steps that are done, which a replacement gets with the scheduler's state
        for batch in loader:
            loss = motley.run_step(step, batch, loader)
            if scheduler.last_epoch % 20 == 0 and dist.get_rank() == 0:  # whichever rank that is by now
                print(f"step {scheduler.last_epoch}: loss {loss:.3f}, split {loader.split}", flush=True)
            if scheduler.last_epoch == steps:
                break
    return model.module


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--global-batch-size", type=int, default=256)
    parser.add_argument("--checkpoint", help="written where too few ranks are left; the run goes on from it where it is there")
    options = parser.parse_args()
    dist.init_process_group("motley")
    net = train(options.steps, options.global_batch_size, options.checkpoint)
    if dist.get_rank() == 0:
        torch.save(net.state_dict(), "weights.pt")
    dist.destroy_process_group()
