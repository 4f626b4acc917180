"""Profiles a CNN, plans it for the processes of this machine, and trains it as the plan says.

    python -m motley launch --workers 2 pipeline.py [--steps N]
"""
import argparse
import os

import torch
import torch.distributed as dist

import motley
from fashion_mnist import Images, make_net

BATCH = 256


def make_plan(model, images, count):
    """For `count` processes of one processor each."""
    cluster = {"version": 2, "device_types": [{"name": "cpu", "kind": "cpu", "count": count, "memory": "4 GB"}],
               "nodes": [{"name": "here", "devices": [{"type": "cpu", "count": count}]}],
               "links": [{"from": "here", "to": "here", "bandwidth": "1 GB/s", "latency": "50 us"}]}
    profile = motley.profile(model, images, seconds=3)
    plan = motley.plan(profile, cluster, global_batch_size=BATCH)
    print(profile, plan, sep="\n\n")
    return plan.data


def measure(outputs, labels):
    return torch.stack([torch.nn.functional.cross_entropy(outputs, labels), (outputs.argmax(1) == labels).float().mean()])


def stack(data, rows):
    samples = [data[row] for row in rows]
    return torch.stack([image for image, _ in samples]), torch.stack([label for _, label in samples])


def train(data, test, plan, steps):
    """The losses, the accuracy on some of the test images, and on rank 0 the weights of the whole model."""
    torch.manual_seed(0)
    images, _ = stack(data, range(4))
    pipe = motley.pipeline(make_net(), plan, loss_fn=torch.nn.functional.cross_entropy, example_inputs=images)
    optimizer = torch.optim.SGD([{"params": list(pipe.parameters())}], lr=0.1, momentum=0.9)  # some stages have none
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(pipe.step(*stack(data, [(step * BATCH + number) % len(data) for number in range(BATCH)])).item())
        optimizer.step()
    _, accuracy = pipe.evaluate(*stack(test, range(2000)), measure)
    return losses, accuracy.item(), pipe.gather_state_dict()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data, plans = Images("train"), [None]
    if dist.get_rank() == 0:
        plans = [make_plan(make_net(), stack(data, range(4))[0], int(os.environ["WORLD_SIZE"]))]
    dist.broadcast_object_list(plans)
    losses, accuracy, weights = train(data, Images("t10k"), plans[0], given.steps)
    if weights is not None:
        make_net().load_state_dict(weights)
        torch.save(weights, "weights.pt")
        print(f"loss of the first step {losses[0]:.3f}, of the last {losses[-1]:.3f}, accuracy {accuracy:.3f}; "
              "the whole model is in weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
