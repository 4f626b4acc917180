"""A small CNN on Fashion-MNIST with Lightning Fabric, on machines that are not alike. It goes on from its last checkpoint, if there is
one.

    torchrun --nproc-per-node 2 examples/python/fabric.py
"""
import argparse
import os

import torch
from lightning.fabric import Fabric

import motley
from fashion_mnist import Images, make_net


def train(data, epochs, checkpoint, save_steps=100, batch_split="dynamic"):
    torch.manual_seed(0)
    fabric = Fabric(strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]))
    fabric.launch()
    loader = motley.DataLoader(data, global_batch_size=256, batch_split=batch_split)
    batches = fabric.setup_dataloaders(loader)  # the same, on the rank's device
    net = make_net()
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
    motley.weight_gradients(model, loader)
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    if os.path.exists(checkpoint):
        fabric.load(checkpoint, state)

    step = 0
    while loader.epoch < epochs:
        for images, labels in batches:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % save_steps == 0 or loader.epoch == epochs:
                fabric.save(checkpoint, state)
                fabric.print(f"loss {loader.mean(loss):.3f}, split {loader.split}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--checkpoint", default="runs/fabric.ckpt")
    options = parser.parse_args()
    train(Images("train"), options.epochs, options.checkpoint)
