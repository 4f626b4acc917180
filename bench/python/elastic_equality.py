"""A job in which thirty workers are killed and replaced against one worker that nothing happened to: the same weights in float64, dropout
included.

    elastic_equality.py [--quick] [--seed N]
"""
import json
import random
import signal

import torch

from elastic_job import EXAMPLES, Job, lost_or_doubled
from rows import print_rows, read_flags, row, say

PACE = 0.004  # seconds a sample of each of four workers, so that others take a lost worker's place within a few steps


def read_weights(run):
    """The newest checkpoint's, by name."""
    path = max((run / "checkpoint").glob("step-*")) / "weights.safetensors"
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = {name: entry for name, entry in json.loads(data[8:begin]).items() if name != "__metadata__"}
    return {name: torch.frombuffer(bytearray(data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]]), dtype=torch.float64)
            for name, entry in tensors.items()}


def start(paces, steps, *flags):
    return Job(EXAMPLES / "demo/job.yaml", paces, "--model.name", "mlp", "--model.dtype", "float64", "--model.dropout", 0.2,
               "--steps", steps, "--baseline.every", 0, *flags)


def finish(job, what):
    if code := job.process.wait(600):
        raise SystemExit(f"elastic: {what} ended with {code}")
    return read_weights(job.run), job.reread()


def main():
    flags = read_flags(__doc__, seed={"type": int, "default": random.randrange(1 << 30), "help": "of who is killed when"})
    choose = random.Random(flags.seed)
    steps, faults = (60, 3) if flags.quick else (300, 30)
    job = start([None], steps)
    try:
        expected, _ = finish(job, "one worker")
    finally:
        job.close()
    job = start([PACE] * 4, steps, "--elastic", "1:4", "--replacements", faults)
    happened = 0
    try:
        for number in range(faults):
            step = max(3, (steps // faults) * number + choose.randrange(steps // faults))
            job.wait(f"step {step}", lambda step=step: job.steps() and job.steps()[-1]["step"] >= step)
            if len(job.present()) > 1:
                job.signal(choose.choice(job.present()), signal.SIGKILL)
                happened += 1
        weights, lines = finish(job, "the job with faults")
    finally:
        job.close()
    say(f"elastic: {happened} of four workers killed in {steps} steps; {lost_or_doubled(lines)} samples lost or doubled")
    worst = max(float((weights[name] - tensor).abs().max() / tensor.abs().max()) for name, tensor in expected.items())
    print_rows([row("equality-fp64", "worst_relative_difference", worst, "", "less", 1e-9, 0,
                    f"measured; {happened} workers killed and replaced in {steps} steps, seed {flags.seed}, against one worker; largest "
                    "difference over largest value, by tensor; dropout by sample")])


if __name__ == "__main__":
    main()
