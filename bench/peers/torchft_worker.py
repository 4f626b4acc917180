"""A replica of a torchft job, to hold elastic jobs against: the Fashion-MNIST CNN, its computation made as slow as it is told.

    torchft_worker.py LIGHTHOUSE NAME PACE SAMPLES SECONDS

SECONDS is how long an operation may take. The gradients go through Manager.allreduce as one tensor: torchft's DistributedDataParallel
fails in the survivors of a SIGKILL. Prints a line for each step: the step, the clock, how many replicas took part, and whether it counts.
"""
import datetime
import logging
import pathlib
import sys
import time

import torch
from torch.distributed import TCPStore
from torch.nn.utils import parameters_to_vector
from torchft import Manager, ProcessGroupGloo

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples/python"))
from fashion_mnist import Images, make_net  # noqa: E402


def main(lighthouse, name, pace, samples, seconds):
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Images("train")
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    parameters = list(net.parameters())

    def load(state):
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    limit = datetime.timedelta(seconds=seconds)
    manager = Manager(ProcessGroupGloo(timeout=limit), load, lambda: {"net": net.state_dict(), "optimizer": optimizer.state_dict()},
                      min_replica_size=1, timeout=limit, quorum_timeout=datetime.timedelta(seconds=60), rank=0, world_size=1,
                      store_addr="localhost", store_port=store.port, lighthouse_addr=lighthouse, replica_id=name, hostname="localhost")
    for turn in range(1 << 30):
        begin = time.monotonic()
        manager.start_quorum()
        first = turn * samples % (len(data) - samples)
        images, labels = torch.utils.data.default_collate([data[first + i] for i in range(samples)])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        time.sleep(max(0.0, begin + samples * pace - time.monotonic()))
        flat = parameters_to_vector([parameter.grad for parameter in parameters])
        manager.allreduce(flat).wait()
        with torch.no_grad():
            for parameter, part in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
                parameter.grad.copy_(part.view_as(parameter))
        counts = manager.should_commit()
        if counts:
            optimizer.step()
        print(manager.current_step(), time.monotonic(), manager.num_participants(), int(counts), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
