"""A click model of a script (examples/python/click_model.py) against the program's: the same network, data and row optimizer.

    embeddings.py [--quick]

Both train on one thread of one worker, with the embeddings at a server of the job's own, and load what they train on: nothing is
emulated. Runs take turns; of each the steps after the first FIRST count.
"""
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import tempfile

from rows import DEADLINE, KEEPS_FREED, SCRIPTS, median_ratio, print_rows, read_flags, row, run, say

SAMPLES, BATCH, STEPS, FIRST, ROWS = 40_000, 512, 300, 100, 1_000_000
VARIABLES = KEEPS_FREED | {"OMP_NUM_THREADS": "1"}  # as the program has it
JOB = f"""
name: clicks
model: {{name: ctrdnn}}
data: {{name: criteo, train: train.txt}}
global_batch_size: {BATCH}
steps: {STEPS}
evaluate: {{every_epochs: 0}}
threads: 1
embedding: {{num_embeddings: {ROWS}, optimizer: adagrad, learning_rate: 0.05}}
optimizer: {{name: adam, learning_rate: 0.001}}
"""


def write_data(path):
    """In Criteo's format; columns have 10 to some hundred thousand values, few of which are frequent."""
    draw = random.Random(1)
    sizes = [int(10 * 1.5**column) for column in range(26)]
    with open(path, "w", encoding="ascii") as file:
        for _ in range(SAMPLES):
            ids = [min(int(draw.paretovariate(0.3)), size) for size in sizes]
            cells = [int(draw.random() < 0.26), *(draw.randrange(100) for _ in range(13)), *(f"{number:x}" for number in ids)]
            file.write("\t".join(map(str, cells)) + "\n")


def run_program(folder, name):
    """Samples per second of a run of the program beside this package."""
    program = pathlib.Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]).parent / "motley"
    done = subprocess.run([program, "train", "job.yaml", "--workers", "1", "--quiet", "--run-directory", name], cwd=folder,
                          stdout=subprocess.DEVNULL, timeout=DEADLINE, check=False)
    if done.returncode:
        raise SystemExit(f"motley train ended with {done.returncode}")
    steps = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return BATCH / statistics.median(step["step_seconds"] for step in steps[FIRST:] if "step_seconds" in step)


def run_script(folder):
    printed = run(["motley", "launch", "--workers", 1, SCRIPTS / "click_model.py", "--data", folder / "train.txt", "--rows", ROWS,
                   "--batch", BATCH, "--steps", STEPS], **VARIABLES)
    return statistics.median(float(rate) for rate in re.findall(r"(\d+) samples per second", printed)[FIRST // 50:])


def main():
    rounds = 1 if read_flags(__doc__).quick else 9
    pairs = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_data(folder / "train.txt")
        (folder / "job.yaml").write_text(JOB)
        for number in range(rounds):
            program, script = run_program(folder, f"run-{number}"), run_script(folder)
            say(f"python: a click model: the program {program:.0f} samples per second, a script with motley.nn {script:.0f}")
            pairs.append((script, program))
    ratios, rate = [script / program for script, program in pairs], statistics.median(program for _, program in pairs)
    print_rows([row("embedding-bag", "ratio_to_program", median_ratio(pairs), "ratio", "more", 0.85, None,
                    f"measured; CTRDNN, loader included, one worker of one thread; the program {rate:.0f} samples per "
                    f"second; pairs from {min(ratios):.2f} to {max(ratios):.2f}")])


if __name__ == "__main__":
    main()
