"""Hot embedding rows in an accelerator's memory, on the emulated one behind a slow host link: with room for a tenth of the rows, for all
of them, and for none.

    accelerator_rows.py [--quick]

A CTR model whose rows are drawn by Zipf's law trains with each, in turns. The device's kernels and the link's copies take their time
asleep, so that processors are free for the server and the worker, as those beside a real device are.
"""
import statistics
import sys
import tempfile
import time

import torch

import motley
from accelerator import Folder
from rows import print_rows, read_flags, row, say

ROWS, DIMENSION, ZIPF, BATCH = 60_000, 64, 1.05, 256
LINK, MEMORY_BANDWIDTH, FLOPS = 20e6, 100e9, 4e9  # bytes a second; float operations a second
DEVICE = {"memory": "512MB", "host_link": f"{LINK / 1e6:g}MB/s", "memory_bandwidth": f"{MEMORY_BANDWIDTH / 1e9:g}GB/s",
          "flops": f"{FLOPS:g}"}
MIN_RATIO = 10  # of a row of the host to one of the device
CASES = {"tenth": (0.1, 50), "all": (1.0, 1 << 20), "none": (0.0, 0)}  # the share of rows that fit, and max_staleness


class Jobs(Folder):
    """The job, with device memory for a share of the rows; what counts are `steps` steps after as many, in which rows come there."""

    def __init__(self, path, steps):
        super().__init__(path)
        self.counted = steps
        (self.path / "rows.yaml").write_text(
            "name: rows\nmodel: {name: ctrdnn, hidden_sizes: [32, 32]}\n"
            f"data: {{name: clicks, num_samples: 50000, num_categories: {ROWS}, zipf: {ZIPF}}}\n"
            f"embedding: {{num_embeddings: {ROWS}, embedding_dim: {DIMENSION}}}\n"
            "optimizer: {name: sgd, learning_rate: 0.01, momentum: 0}\n"
            f"global_batch_size: {BATCH}\nsteps: {2 * steps}\nevaluate: {{every_epochs: 0}}\nreplan: false\n"
            "workers: 1\ndevice: emulated\nthreads: 1\n")

    def measure(self, share, staleness):
        """Samples a second, and what share of the rows that batches needed came from the device."""
        memory = f"{int(share * ROWS) * DIMENSION * 4 / 1000:g}KB"
        flags = ("--embedding.device-memory", memory, "--embedding.max-staleness", staleness)
        options = ",".join(f"{key}={value}" for key, value in DEVICE.items())
        self.result("rows", "rows", *flags, options=options)
        lines = self.steps("rows")[self.counted:]
        needed, cached = (sum(sum(line["embedding"][key]) for line in lines) for key in ("needed", "cached"))
        return BATCH / statistics.median(line["step_seconds"] for line in lines), cached / needed


def measure_row_ratio():
    """How many times as long a row takes to come from pinned memory of the host as from the device's own."""
    motley.emulated.enable(**DEVICE)
    rows = 8192
    table = torch.ones(rows, DIMENSION, device="emulated")
    places = torch.randperm(rows, device="emulated")
    host = torch.ones(rows, DIMENSION).pin_memory()

    def timed(act):
        torch.accelerator.synchronize()
        began = time.perf_counter()
        for _ in range(5):
            act()
        torch.accelerator.synchronize()
        return time.perf_counter() - began

    def look_up():
        return table.index_select(0, places)

    def fetch():
        return host.to("emulated", non_blocking=True)
    look_up(), fetch()
    return statistics.median(timed(fetch) / timed(look_up) for _ in range(5))


def compare(jobs, rounds):
    """Samples a second of every share, in turns, and the share of rows that the device had."""
    speeds, found = {name: [] for name in CASES}, {}
    for number in range(rounds):
        for name, case in CASES.items():
            speed, found[name] = jobs.measure(*case)
            speeds[name].append(speed)
        say("accelerator: " + ", ".join(f"{name} {values[-1]:.0f} samples/s, {found[name]:.2f} of its rows on the device"
                                        for name, values in speeds.items()) + f" (round {number + 1})")
    return speeds, found


def main():
    flags = read_flags(__doc__)
    ratio = measure_row_ratio()
    say(f"accelerator: rows of the host are {ratio:.1f} times slower than the device's")
    with tempfile.TemporaryDirectory(prefix="motley-bench-") as path:
        speeds, found = compare(Jobs(path, 12 if flags.quick else 30), 1 if flags.quick else 9)
    share = {name: statistics.median(one / whole for one, whole in zip(values, speeds["all"])) for name, values in speeds.items()}
    kept = {name: staleness for name, (_, staleness) in CASES.items()}
    note = (f"emulated; CTRDNN, {ROWS} rows of {DIMENSION} float32, Zipf {ZIPF}, {BATCH} samples a step; rows of the host {ratio:.0f} "
            f"times slower than the device's, link {DEVICE['host_link']}; medians of {len(speeds['all'])} rounds in turns; " + ", ".join(
                f"{name}: {statistics.median(values):.0f} samples/s, {found[name]:.2f} of the rows that batches needed on the device, "
                f"max_staleness {kept[name]}" for name, values in speeds.items()) + "; in all, gradients cross the link, each row's once")
    shown = share["tenth"] if ratio >= MIN_RATIO else 0.0  # else nothing is
    print_rows([row("emulated-hot-rows", "share_of_all_on_device", shown, "share", "more", 0.85, 1.0, note, peer=share["none"]),
                row("emulated-host-rows", "share_of_all_on_device", share["none"], "share", "more", None, 1.0,
                    "emulated; every row fetched from pinned memory of the host once its step begins; inputs as of emulated-hot-rows")])


if __name__ == "__main__":
    sys.exit(main())
