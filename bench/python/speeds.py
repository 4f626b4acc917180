"""The script with three lines against the script without, both with four ranks whose speeds are emulated from outside."""
from rows import compare_scripts, describe_malloc, median_ratio, print_rows, read_flags, row

SPEEDS = [1, 1, 0.5, 0.25]
BATCH, LARGEST = 256, 94  # of all ranks, and what the fastest has of it when all finish together: 256 / 2.75, rounded up
CHANNELS = 48  # the slowest rank is let go a millisecond in eleven: steps must be long against that


def main():
    rounds = 1 if read_flags(__doc__).quick else 5
    launch = ["motley", "launch", "--strict", "--emulated-speeds", ",".join(map(str, SPEEDS))]
    times = compare_scripts(launch, ["--channels", CHANNELS], 80, rounds, "four emulated speeds")
    print_rows([row("ddp-speeds-1-1-half-quarter", "step_speedup_over_ddp", median_ratio(times, 1), "x", "more", 2.5, BATCH / LARGEST,
                    f"speeds emulated, both scripts from outside; Fashion-MNIST CNN of {CHANNELS} channels, gloo; "
                    f"{describe_malloc(times)}")])


if __name__ == "__main__":
    main()
