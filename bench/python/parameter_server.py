"""A parameter server's step against DistributedDataParallel's with AdamW(fused=True): four ranks on one host, steps in turns.

    parameter_server.py [--quick]     measures (starts four ranks of itself)

There are 46.8 MB of parameters, as in ResNet-18, and gradients that need no computation, so that a step is what follows one.
"""
import statistics

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import motley
from rows import print_rows, row, run_on_ranks, say
from turns import compare

WORKERS = 4
SHAPES = [(1000, 1000)] * 11 + [(700, 1000)]
MAX_COMPUTATION = 0.02  # seconds: with more the row would not be about what follows
# malloc keeps what a step frees and the next one needs again: both are faster by that.
VARIABLES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "OMP_NUM_THREADS": "1"}


class Ready(torch.autograd.Function):
    """A loss whose gradients are known."""

    @staticmethod
    def forward(ctx, *parameters):
        ctx.shapes = [parameter.shape for parameter in parameters]
        return torch.zeros(())

    @staticmethod
    def backward(ctx, gradient):
        return tuple(gradient.expand(shape) for shape in ctx.shapes)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(shape) for shape in SHAPES)

    def forward(self):
        return Ready.apply(*self.weights)


def make_step(model, optimizer):
    def step():
        model().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def be_rank(quick):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    served, plain, alone = Net(), DDP(Net(), gradient_as_bucket_view=True), Net()
    own = DDP(Net(), process_group=dist.new_group(backend="motley"), gradient_as_bucket_view=True)
    size = sum(4 * parameter.numel() for parameter in alone.parameters())
    still = torch.optim.SGD(alone.parameters())
    still.step = lambda: None
    steps = [make_step(served, motley.optim.ParameterServerOptimizer(torch.optim.AdamW(served.parameters(), lr=1e-4))),
             make_step(plain, torch.optim.AdamW(plain.parameters(), lr=1e-4, fused=True)),
             make_step(own, torch.optim.AdamW(own.parameters(), lr=1e-4, fused=True)), make_step(alone, still)]
    (ours, theirs, owns, computation), ratios = compare(steps, 3 if quick else 15)
    if dist.get_rank() == 0:
        spread = f"pairs from {min(ratios):.2f} to {max(ratios):.2f}"
        parts = (f"{1e3 * ours:.1f} ms a step with the server and {1e3 * theirs:.1f} ms with DDP on gloo and AdamW(fused=True), "
                 f"of which {1e3 * computation:.1f} ms are neither's")
        say(f"python: {size / 1e6:.1f} MB on {WORKERS} ranks: {parts}; {spread}")
        if computation > MAX_COMPUTATION:
            say(f"python: the machine is busy: at most {1e3 * MAX_COMPUTATION:.0f} ms should be neither's")
        print_rows([row("server-optimizer-shm-N4", "step_speedup_over_ddp", statistics.median(ratios), "x", "more", 2.5, None,
                        f"measured; {size / 1e6:.1f} MB of gradients, {parts}; {spread}"),
                    row("server-optimizer-shm-N4", "step_speedup_over_backend_motley", owns / ours, "x", "more", None, None,
                        f"measured; {1e3 * owns:.1f} ms a step with DDP on motley and AdamW(fused=True); medians")])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run_on_ranks(__doc__, __file__, be_rank, WORKERS, **VARIABLES)
