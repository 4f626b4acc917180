"""How far training on several ranks is from one process that computes each batch whole, in float64: what tests/python checks,
as figures."""
import json
import pathlib
import sys

from rows import print_rows, read_flags, row, run, say

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/python"))
from data_parallel import SAMPLES, Equality


def main():
    read_flags(__doc__)
    Equality.setUpClass()
    try:
        ranks = Equality()
        names, errors = (("hook", "DDP"), ("weigh", "the loss weighed"), ("fsdp", "FSDP2")), {}
        splits = {"global_batch_size": 24, "batch_split": ranks.recorded(18, 24, SAMPLES, 3)}
        for how, name in names:
            errors[name], _ = ranks.compare(splits, how)
        splits = {"global_batch_size": 28, "gradient_accumulation_steps": 7, "batch_split": ranks.recorded(16, 28, SAMPLES, 3, unit=7)}
        for how, name in names:
            errors[f"{name}, accumulated"], _ = ranks.compare(splits, how)
        errors["resumed on two of three ranks"], lost = ranks.compare_resumed()
    finally:
        Equality.doClassCleanups()
    backend = pathlib.Path(__file__).with_name("backend.py")
    errors["DDP over the backend motley"] = json.loads(run(["motley", "launch", "--workers", 3, backend, "equality"]))
    for name, error in errors.items():
        say(f"python: {name}: {error:.1e} from one process")
    note = "measured; three ranks, random splits, float64, against one process"
    print_rows([row("float64-equality", "worst_relative_difference", max(errors.values()), "", "less", 1e-12, 0.0, note),
                row("resume-other-ranks", "samples_lost_or_doubled", lost, "samples", "less", 0, 0.0, note)])


if __name__ == "__main__":
    main()
