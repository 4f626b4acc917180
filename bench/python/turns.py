"""Steps of several kinds on all ranks, timed in turns."""
import statistics
import time

import torch.distributed as dist

BLOCK = 12  # steps of a kind in a row
WARM = 10  # rounds that do not count


def timed(step):
    dist.barrier()
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def compare(steps, blocks):
    """Median step of each kind, seconds, in turns; and of all blocks the ratios of the second to the first."""
    times = [[] for _ in steps]
    for block in range(blocks + 1):
        for kind in (range(len(steps)) if block % 2 else reversed(range(len(steps)))):
            seconds = [timed(steps[kind]) for _ in range(BLOCK)]
            if block:  # the first warms up
                times[kind].append(statistics.median(seconds[2:]))
    return [statistics.median(kind) for kind in times], [second / first for first, second in zip(times[0], times[1])]


def differences(steps, count):
    """Seconds that steps of each kind take longer than those of the first, as medians over `count` rounds of one step each, and the median
    step of each kind: for what is small beside the noise."""
    times = [[] for _ in steps]
    for turn in range(count + WARM):
        for kind in (range(len(steps)) if turn % 2 else reversed(range(len(steps)))):
            times[kind].append(timed(steps[kind]))
    counted = [kind[WARM:] for kind in times]
    return ([statistics.median(own - first for own, first in zip(kind, counted[0])) for kind in counted],
            [statistics.median(kind) for kind in counted])
