"""How long training takes until it is as accurate as wanted: PyTorch's DDP, equal shares, a published rule, and shares by measured speed.

    time_to_accuracy.py --network cnn|resnet18 [--quick]

Four ranks whose speeds are emulated from outside, in turns, with three seeds. All rows are long, and --quick leaves them out.
"""
import json
import pathlib
import statistics

from rows import KEEPS_FREED, print_rows, read_flags, row, run, say
from speeds import BATCH, LARGEST, SPEEDS

JOB = pathlib.Path(__file__).with_name("accuracy_job.py")
DEADLINE = 7200  # seconds of a run
EPOCHS, SEEDS = 3, (1, 2, 3)
# The accuracy that is wanted, and by which methods; the first is what the others are compared with.
NETWORKS = {"cnn": (0.86, ["ddp", "equal", "original", "dynamic"]), "resnet18": (0.85, ["ddp", "dynamic"])}


def seconds_to(network, accuracy, method, seed):
    """Seconds of training; None where the accuracy was not reached."""
    command = ["motley", "launch", "--strict", "--emulated-speeds", ",".join(map(str, SPEEDS)), JOB, "--network", network,
               "--method", method, "--accuracy", accuracy, "--seed", seed, "--epochs", EPOCHS]
    reached, best = json.loads(run(command, deadline=DEADLINE, **KEEPS_FREED).splitlines()[-1])
    say(f"partition: {network} with {method}, seed {seed}: " + (f"{accuracy} after {reached:.1f} s of training" if reached is not None else
                                                                f"at most {best:.4f} in {EPOCHS} epochs"))
    return reached


def compare(network, accuracy, methods, seeds):
    """A row for each method, the first of which is what the others are compared with."""
    times = {method: [] for method in methods}
    for seed in seeds:
        for method in methods:
            times[method].append(seconds_to(network, accuracy, method, seed))
    described = {method: "not reached with every seed" if None in each else f"{statistics.median(each):.1f} s"
                 for method, each in times.items()}
    first, *others = methods
    rows = []
    for method in others:
        ratios = [plain / own for plain, own in zip(times[first], times[method]) if plain is not None and own is not None]
        value = statistics.median(ratios) if len(ratios) == len(seeds) else 0.0
        metric = "speedup_over_ddp" if method == "dynamic" else f"{method}_speedup_over_ddp"
        rows.append(row(f"time-to-accuracy-{network}", metric, value, "x", "more", 2.0 if method == "dynamic" else None, BATCH / LARGEST,
                        f"measured, speeds {', '.join(map(str, SPEEDS))} emulated from outside; test accuracy of {accuracy} on "
                        f"Fashion-MNIST, AdamW, global batch {BATCH}, medians of {len(seeds)} seeds: DDP on gloo {described[first]}, "
                        f"{method} {described[method]}; testing not counted"))
    return rows


def main():
    given = read_flags(__doc__, network={"choices": NETWORKS, "required": True})
    print_rows([] if given.quick else compare(given.network, *NETWORKS[given.network], SEEDS))


if __name__ == "__main__":
    main()
