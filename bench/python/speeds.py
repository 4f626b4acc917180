"""The script with three lines against the script without, both with four ranks whose speeds are emulated from outside."""
from rows import SCRIPTS, last_step_ms, print_rows, ratio_of_medians, read_flags, row, run, say

SPEEDS = [1, 1, 0.5, 0.25]
BATCH, LARGEST = 256, 94  # of all ranks, and what the fastest has of it when all finish together: 256 / 2.75, rounded up


def main():
    quick = read_flags(__doc__).quick
    flags = ["launch", "--emulated-speeds", ",".join(map(str, SPEEDS))]
    pairs = []
    for _ in range(1 if quick else 5):
        plain, mixed = (last_step_ms(run(["motley", *flags, SCRIPTS / script, "--steps", 80])) for script in ("plain.py", "mixed.py"))
        say(f"python: four emulated speeds: {plain:.1f} ms a step, with three lines {mixed:.1f} ms")
        pairs.append((plain, mixed))
    print_rows([row("ddp-speeds-1-1-half-quarter", "step_speedup_over_ddp", ratio_of_medians(pairs), "x", "more", 2.5,
                    BATCH / LARGEST, "speeds emulated, both scripts from outside; Fashion-MNIST CNN, gloo")])


if __name__ == "__main__":
    main()
