"""A small CNN on Fashion-MNIST with Hugging Face Accelerate, on machines that are not alike. It goes on from its last checkpoint, if
there is one.

    torchrun --nproc-per-node 2 examples/python/accelerate_loop.py
"""
import argparse
import os

import torch
from accelerate import Accelerator

import motley
from fashion_mnist import Images, make_net


def train(data, epochs, checkpoint, save_steps=100, batch_split="dynamic"):
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())  # or it starts no process group without GPUs
    loader = motley.DataLoader(data, global_batch_size=256, batch_split=batch_split)
    net = make_net()
    model, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-3), loader)
    model = motley.weight_gradients(model, loader)
    if os.path.exists(checkpoint):
        accelerator.load_state(checkpoint)

    step = 0
    while loader.epoch < epochs:
        for images, labels in loader:
            images, labels = images.to(accelerator.device), labels.to(accelerator.device)
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % save_steps == 0 or loader.epoch == epochs:
                accelerator.save_state(checkpoint)
                accelerator.print(f"loss {loader.mean(loss):.3f}, split {loader.split}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--checkpoint", default="runs/accelerate")
    options = parser.parse_args()
    train(Images("train"), options.epochs, options.checkpoint)
