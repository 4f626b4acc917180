"""A small CNN on Fashion-MNIST with Ray Train, on machines that are not alike. When a worker dies, Ray starts all anew, and they go on
from the last checkpoint.

    python examples/python/ray_train.py --workers 2
"""
import argparse
import os
import tempfile

import ray.train
import torch
from ray.train.torch import TorchConfig, TorchTrainer, get_device, prepare_model

import motley
from fashion_mnist import Images, make_net


def train_worker(config):
    torch.manual_seed(0)
    loader = motley.DataLoader(config["make_data"](), global_batch_size=256, batch_split=config["batch_split"])
    model = motley.weight_gradients(prepare_model(make_net()), loader)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parts = {"model": getattr(model, "module", model), "optimizer": optimizer, "loader": loader}
    if saved := ray.train.get_checkpoint():
        with saved.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt")
        for name, part in parts.items():
            part.load_state_dict(state[name])

    step = 0
    while loader.epoch < config["epochs"]:
        for images, labels in loader:
            images, labels = images.to(get_device()), labels.to(get_device())
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % config["save_steps"] == 0 or loader.epoch == config["epochs"]:
                with tempfile.TemporaryDirectory() as folder:
                    checkpoint = None
                    if ray.train.get_context().get_world_rank() == 0:
                        torch.save({name: part.state_dict() for name, part in parts.items()}, f"{folder}/state.pt")
                        checkpoint = ray.train.Checkpoint(folder)
                    ray.train.report({"loss": loader.mean(loss), "split": loader.split}, checkpoint=checkpoint)


def train(make_data, epochs, checkpoint, workers, save_steps=100, batch_split="dynamic"):
    config = {"make_data": make_data, "epochs": epochs, "save_steps": save_steps, "batch_split": batch_split}
    folder, name = os.path.split(os.path.abspath(checkpoint))
    return TorchTrainer(
        train_worker, train_loop_config=config, torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=ray.train.RunConfig(name=name, storage_path=folder, failure_config=ray.train.FailureConfig(max_failures=3))).fit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--checkpoint", default="runs/ray")
    options = parser.parse_args()
    print(train(lambda: Images("train"), options.epochs, options.checkpoint, options.workers).metrics)
