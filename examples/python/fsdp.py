"""A small CNN on Fashion-MNIST with FSDP2, on machines that are not alike. It goes on from its last checkpoint, if there is one.

    torchrun --nproc-per-node 2 examples/python/fsdp.py
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import motley
from fashion_mnist import Images, make_net


def train(data, epochs, checkpoint, save_steps=100, batch_split="dynamic"):
    torch.manual_seed(0)
    loader = motley.DataLoader(data, global_batch_size=256, batch_split=batch_split)
    net = make_net()
    for layer in net:
        if list(layer.parameters()):
            fully_shard(layer)
    model = motley.weight_gradients(fully_shard(net), loader)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if os.path.exists(f"{checkpoint}/.metadata"):
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments, "loader": loader}, checkpoint_id=checkpoint)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)

    step = 0
    while loader.epoch < epochs:
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % save_steps == 0 or loader.epoch == epochs:
                weights, moments = get_state_dict(model, optimizer)
                dcp.save({"model": weights, "optimizer": moments, "loader": loader}, checkpoint_id=checkpoint)
                mean = loader.mean(loss)
                if dist.get_rank() == 0:
                    print(f"loss {mean:.3f}, split {loader.split}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--checkpoint", default="runs/fsdp")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    train(Images("train"), options.epochs, options.checkpoint)
    dist.destroy_process_group()
