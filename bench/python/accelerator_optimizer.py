"""The optimizer of an accelerator in the host's memory: what a step is longer for it, on the emulated accelerator.

    accelerator_optimizer.py [--quick]

A parameter server on this host takes AdamW's step for one rank, whose parameters are on the emulated device; buckets of gradients
go there, and weights come back, while the device computes. Its kernels take their time asleep, as a real one's would, so that
processors are free for the server; its copies and what gradients consist of take time of ours.
"""
import contextlib
import gc
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import motley
from rows import print_rows, read_flags, row, say

BINARY = os.environ.get("MOTLEY_BINARY", "build/release/motley")
LAYERS, PARAMETERS = 48, 1 << 21  # of each layer: 100 million together; a quarter with --quick
WIDTH = 64  # of the matrix product that is a layer's computation
FLOPS = 1e9  # a second, of the device: small products take it long
BACKWARD = 1.45  # times as long as the optimizer's pass
LINK = "16GB/s"  # each way
CLIPPED = 8  # every so-many-th step has too large a norm
WARM = 2  # rounds that do not count


class Layer(torch.autograd.Function):
    """A product that takes its time, and a gradient that is known: twice as long backward as forward."""

    @staticmethod
    def forward(ctx, values, weight, matrix):
        ctx.save_for_backward(matrix)
        ctx.shape = weight.shape
        return values @ matrix

    @staticmethod
    def backward(ctx, gradient):
        matrix, = ctx.saved_tensors
        back = (gradient @ matrix) @ matrix
        return back, gradient[0, :1].expand(ctx.shape), None


class Net(torch.nn.Module):
    def __init__(self, device, parameters):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.ones(parameters, device=device) for _ in range(LAYERS))
        self.matrix = torch.eye(WIDTH, device=device)

    def forward(self, values):
        for weight in self.weights:
            values = Layer.apply(values, weight, self.matrix)
        return values.mean()


@contextlib.contextmanager
def server(threads):
    """One of its own, so that it has so many threads: its address and the file with its token."""
    with tempfile.TemporaryDirectory() as folder:
        token, address = pathlib.Path(folder) / "token", pathlib.Path(folder) / "address"
        motley._motley.Secret.generate().write(str(token))
        process = subprocess.Popen([BINARY, "server", "--listen", "127.0.0.1:0", "--threads", str(threads), "--token-file", token,
                                    "--address-file", address, "--quiet"])
        try:
            while not address.exists() or not address.read_text().strip():
                if process.poll() is not None:
                    raise SystemExit("accelerator: the server did not start")
                time.sleep(0.02)
            yield {"server": address.read_text().strip(), "token_file": str(token)}
        finally:
            process.terminate()
            process.wait()


def adamw(net, **arguments):
    return motley.optim.ParameterServerOptimizer(torch.optim.AdamW(net.parameters(), lr=1e-4), bucket_cap_mb=8, **arguments)


def timed(step):
    began = time.perf_counter()
    step()
    torch.accelerator.synchronize()
    return time.perf_counter() - began


class Steps:
    """Steps of a net with an optimizer and without one, and the server's pass alone: over as many parameters on the CPU, whose gradients
    of zeros are filled in beside it."""

    def __init__(self, where, parameters):
        self.where, self.parameters, self.plain, self.values = where, parameters, Net("emulated", parameters), None
        self.passes = adamw(Net("cpu", parameters), **where)

    def serve(self, max_grad_norm=None):
        self.served = self.optimizer = None
        gc.collect()  # which gives the memory of those before back
        self.served = Net("emulated", self.parameters)
        self.optimizer = adamw(self.served, max_grad_norm=max_grad_norm, **self.where)

    def make_pass(self):
        self.passes.step()

    def step_alone(self):
        self.plain(self.values).backward()
        for weight in self.plain.weights:
            weight.grad = None

    def step(self, scale):
        (self.served(self.values) * scale).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def set_backward(self, seconds):
        """Its length, and that of a forward of half of it; returns what can be had."""
        rows = max(1, round(seconds * FLOPS / LAYERS / (2 * 2 * WIDTH * WIDTH)))
        self.values = torch.ones(rows, WIDTH, device="emulated")
        return LAYERS * rows * 2 * 2 * WIDTH * WIDTH / FLOPS

    def measure(self, rounds, targets):
        """Of each round the seconds of a pass, of a step without the optimizer and of one with it, in turns, and how often the step was
        taken back; the norms of the steps' gradients are these, one after the other."""
        found = []
        for turn in range(rounds + WARM):
            one_pass, alone = timed(self.make_pass), timed(self.step_alone)
            # A gradient's values are the scale over the number of values that the loss is the mean of.
            scale = targets[turn % len(targets)] * self.values.numel() / (LAYERS * self.parameters) ** 0.5
            before = self.optimizer.rollbacks
            own = timed(lambda scale=scale: self.step(scale))
            found.append((one_pass, alone, own, self.optimizer.rollbacks - before))
        return found[WARM:]


def exposed(rounds):
    """The median of what a step is longer for the optimizer, in passes."""
    return statistics.median((own - alone) / one_pass for one_pass, alone, own, _ in rounds)


def describe(rounds, backward, parameters):
    one_pass, alone, own, _ = (statistics.median(each) for each in zip(*rounds))
    return (f"measured on the emulated accelerator, link {LINK}; {LAYERS * parameters / 1e6:.0f} million parameters, a server of one "
            f"thread, whose pass alone takes {1e3 * one_pass:.0f} ms; backward {1e3 * backward:.0f} ms, {backward / one_pass:.2f} times as "
            f"long; a step {1e3 * own:.0f} ms, without the optimizer {1e3 * alone:.0f} ms; medians of {len(rounds)} in turns")


def measure(where, rounds, parameters):
    steps = Steps(where, parameters)
    one_pass = statistics.median([timed(steps.make_pass) for _ in range(5)][2:])
    backward = steps.set_backward(BACKWARD * one_pass)
    steps.serve()
    found = steps.measure(rounds, [1.0])
    rows = [row("server-adamw-overlap", "exposed_share_of_pass", exposed(found), "share", "less", 0.2, 0.0,
                describe(found, backward, parameters))]
    say(f"accelerator: {rows[0]['value']:.3f} of a pass exposed; {rows[0]['note']}")
    steps.serve(max_grad_norm=1.0)
    found = steps.measure(rounds, [0.5] * (CLIPPED - 1) + [2.0])
    parts = {again: [each for each in found if bool(each[3]) == again] for again in (False, True)}
    shares = {again: exposed(part) for again, part in parts.items() if part}
    value = sum(shares[again] * len(parts[again]) for again in shares) / len(found)
    note = (f"{describe(found, backward, parameters)}; {len(parts[True])} steps had too large a norm, were taken back and made again: "
            + ", ".join(f"{'these' if again else 'others'} expose {share:.2f} of a pass" for again, share in shares.items()))
    rows.append(row("server-adamw-clipped", "exposed_share_of_pass", value, "share", "less", None, 0.0, note))
    say(f"accelerator: {value:.3f} of a pass exposed; {note}")
    return rows


def main():
    flags = read_flags(__doc__)
    torch.set_num_threads(1)
    motley.emulated.enable(memory="8GB", host_link=LINK, flops=FLOPS)
    with server(threads=1) as where:
        print_rows(measure(where, 6, PARAMETERS // 4) if flags.quick else measure(where, 32, PARAMETERS))


if __name__ == "__main__":
    sys.exit(main())
