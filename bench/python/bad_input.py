"""Bad input, generated: flags, keys, files, addresses, signals at any time, full disks and folders without permission.

    bad_input.py [--quick] [--seed N] [--cases N] [--only KIND]

Each case is a command that cannot succeed as typed, or that is stopped on its way. It is clear and loses nothing where it ends in
time, by the right exit code, with a message that names what was wrong, without the traceback of a library, and where afterwards no
process is left, every file that was there is as it was, and nothing half-written is beside it. A run that was stopped must go on.
"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time
import uuid
from typing import NamedTuple

import numpy

from rows import print_rows, read_flags, row, say

BINARY = os.environ["MOTLEY_BINARY"]
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
LONGEST = 10  # seconds until a command that cannot succeed has ended, or one that was stopped
LEAKS = ("Traceback", "terminate called", "json.exception", "miniz", "std::", "what():", "c10::", "Assertion", "Segmentation",
         "runtime error", "nlohmann", "yaml-cpp", "bad_alloc", ".part-")
NOBODY = 65534
COMMANDS = (("train",), ("profile",), ("plan",), ("simulate",), ("check",), ("report",), ("server",), ("data-server",),
            ("schedule", "simulate"), ("schedule", "serve"), ("schedule", "submit"), ("schedule", "list"), ("schedule", "why"),
            ("schedule", "what-if"), ("schedule", "cancel"), ("schedule", "drain"))


class Case(NamedTuple):
    """A command, what its message must name (one of each tuple), and how it may end."""
    kind: str
    words: list
    names: list
    codes: tuple = (2,)
    environment: dict = {}
    user: int | None = None


class Unclear(Exception):
    pass


class Workshop:
    """A folder with a small data set, a job on it, a run of that, a plan and what it was made from."""

    def __init__(self, choose):
        self.choose = choose
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="motley-bad-input-"))
        self.mark = f"MOTLEY_BAD_INPUT={uuid.uuid4()}"
        self.inputs, self.scratch, self.temporary = (self.folder / name for name in ("inputs", "scratch", "temporary"))
        for folder in (self.inputs, self.scratch, self.temporary):
            folder.mkdir()
        generator = numpy.random.default_rng(choose.randrange(1 << 30))
        for name, count in (("train", 600), ("test", 100)):
            numpy.save(self.inputs / f"{name}.npy", generator.normal(size=(count, 12)).astype(numpy.float32))
            numpy.save(self.inputs / f"{name}_targets.npy", numpy.arange(count) % 4)
        self.job = self.inputs / "job.yaml"
        self.job.write_text("name: small\nmodel: {name: mlp, hidden_sizes: [16]}\n"
                            "data: {name: npy, train: train.npy, train_targets: train_targets.npy,\n"
                            "       test: test.npy, test_targets: test_targets.npy}\n"
                            "global_batch_size: 60\nepochs: 2\noptimizer: {name: sgd, learning_rate: 0.05}\n")
        for name in ("plan.json", "profile.json", "cluster.yaml"):
            shutil.copy(EXAMPLES / "pipeline" / name, self.inputs / name)
        shutil.copy(EXAMPLES / "schedule/trace.csv", self.inputs / "trace.csv")
        self.run = self.inputs / "run"
        done = self.start(["train", self.job, "--run-directory", self.run, "--checkpoint.every-steps", 5]).communicate()
        if not (self.run / "report.html").exists():
            raise SystemExit(f"the run that all others are beside has failed: {done}")
        self.schema = json.loads(subprocess.run([BINARY, "train", "--schema"], stdout=subprocess.PIPE, check=True).stdout)
        self.flags = {words: sorted(set(re.findall(r"--[a-z][a-z0-9.-]+", self.help(words)))) for words in COMMANDS}

    def help(self, words):
        return subprocess.run([BINARY, *words, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout

    def start(self, words, environment=None, user=None, folder=None):
        name, value = self.mark.split("=")
        self.last = " ".join(map(str, words))
        return subprocess.Popen([BINARY, *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, errors="replace", cwd=folder or self.scratch, user=user,
                                env=os.environ | {name: value, "TMPDIR": str(self.temporary)} | (environment or {}))

    def processes(self):
        """Those that are left of what was started here."""
        left = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    left.append(int(entry.name))
            except OSError:
                continue
        return left

    def keys(self, properties=None, prefix=""):
        """The keys of a job, dotted, with what their schema says."""
        found = []
        for name, said in (properties or self.schema["properties"]).items():
            found += self.keys(said["properties"], f"{prefix}{name}.") if "properties" in said else [(prefix + name, said)]
        return found

    def flag(self, key):
        return "--" + key.replace("_", "-")

    def snapshot(self, *folders):
        """Each file's content and each folder's place. What a start that failed logs is no loss, nor is a run's lock."""
        is_log = re.compile(r"/new(/logs(/.*)?)?$|/lock$").search
        return {path: path.read_bytes() if path.is_file() else None for folder in folders for path in sorted(folder.rglob("*"))
                if not is_log(str(path))}

    def train(self, *words, run="new"):
        return ["train", self.job, "--run-directory", self.scratch / run, *words]

    def copy(self, name, content):
        path = self.scratch / f"{self.choose.randrange(1 << 20)}-{name}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path


# --- Kinds of bad input: each gives a case

def misspelt(choose, word, known):
    """The word with a letter too many, too few, or two in each other's place: no other word that is known, nor its beginning."""
    while True:
        at = choose.randrange(2, max(3, len(word) - 1))
        letter = choose.choice(string.ascii_lowercase)
        wrong = choose.choice([word[:at] + word[at + 1:], word[:at] + letter + word[at:],
                               word[:at] + word[at + 1:at + 2] + word[at:at + 1] + word[at + 2:]])
        if wrong not in known and not wrong.endswith(("-", ".")):
            return wrong


def command(shop, choose):
    words = choose.choice(COMMANDS)
    wrong = misspelt(choose, words[-1], [known[len(words) - 1] for known in COMMANDS if len(known) >= len(words)])
    return [*words[:-1], wrong], [wrong]


def flag(shop, choose):
    words = choose.choice(list(shop.flags))
    wrong = misspelt(choose, choose.choice([one for one in shop.flags[words] if len(one) > 5]), shop.flags[words])
    return [*words, wrong, "1"], [wrong]


def wrong_value(choose, said):
    """A text that this key does not take; nothing where it takes any."""
    kind = said.get("type")
    if "enum" in said:
        return misspelt(choose, choose.choice([word for word in said["enum"] if len(word) > 2] or ["word"]), said["enum"])
    if kind == "boolean":
        return choose.choice(["maybe", "2", "yess"])
    if kind in ("integer", "number"):
        bounds = [str(said[bound] + step) for bound, step in (("minimum", -1), ("maximum", 1)) if bound in said]
        return choose.choice([*bounds, "twelve", "1e", "0x10", "nan", "--", "1,5"])
    if kind == "array":
        return choose.choice(["[1,", "a,b", "[1, two]", "1;2"])
    if isinstance(kind, list):  # numbers with units
        return choose.choice(["5 parsecs", "-3 s", "12 12", "GB", "5"])
    return None


def value_of_a_flag(shop, choose):
    while True:
        key, said = choose.choice(shop.keys())
        if (value := wrong_value(choose, said)) is not None:
            return shop.train(f"{shop.flag(key)}={value}"), [(key, shop.flag(key))]


def value_of_a_key(shop, choose):
    while True:
        key, said = choose.choice(shop.keys())
        value = wrong_value(choose, said)
        if value is None or key == "version":
            continue
        nested = "".join(f"{'  ' * depth}{name}:{chr(10) if depth < key.count('.') else ' '}"
                         for depth, name in enumerate(key.split(".")))
        job = shop.copy("job.yaml", f"{nested}{json.dumps(value)}\n")
        return ["train", job, "--run-directory", shop.scratch / "new"], [key, str(job)]


def job_file(shop, choose):
    text = shop.job.read_bytes()
    what = choose.choice(["unknown key", "binary", "empty", "cut", "list", "tab", "twice", "missing", "folder", "group"])
    if what == "missing":
        name = shop.scratch / "nowhere.yaml"
        return ["train", name, "--run-directory", shop.scratch / "new"], ["nowhere.yaml"]
    if what == "folder":
        return ["train", shop.inputs, "--run-directory", shop.scratch / "new"], [str(shop.inputs)]
    key = misspelt(choose, choose.choice([name for name, _ in shop.keys() if "." not in name and len(name) > 4]), [])
    binary = [b"\xff\xfe\x00", choose.randbytes(choose.randrange(3, 200)) + b"\xff\xfe\x00"]
    content = {"unknown key": text + f"{key}: 1\n".encode(), "binary": choose.choice(binary), "empty": b"",
               "cut": text[:text.index(b"hidden_sizes") + choose.randrange(3, 15)], "list": b"- 1\n- 2\n",
               "tab": text + b"\tseed: 1\n", "twice": text + b"epochs: 3\n", "group": b"optimizer: sgd\n"}[what]
    job = shop.copy("job.yaml", content)
    return ["train", job, "--run-directory", shop.scratch / "new"], [str(job)]


def data_file(shop, choose):
    name = choose.choice(["train", "test", "train_targets", "test_targets"])
    original = (shop.inputs / f"{name}.npy").read_bytes()
    what = choose.choice(["cut", "magic", "nan", "missing", "folder", "header", "empty", "rows"])
    path = shop.scratch / f"{what}-{name}.npy"
    if what == "cut":
        path.write_bytes(original[:choose.randrange(1, len(original) - 1)])
    elif what == "magic":
        path.write_bytes(choose.randbytes(6) + original[6:])
    elif what == "empty":
        path.write_bytes(b"")
    elif what == "header":
        path.write_bytes(original.replace(b"shape", b"shqpe", 1))
    elif what == "folder":
        path.mkdir()
    elif what in ("nan", "rows"):
        array = numpy.load(shop.inputs / f"{name}.npy")
        if what == "nan":
            wrong = choose.choice([float("nan"), float("inf"), 0.5]) if "targets" in name else float("nan")
            array = array.astype(numpy.float32)
            array.flat[choose.randrange(array.size)] = wrong
        numpy.save(path, array if what == "nan" else array[:-3])
    key = "data." + name
    return shop.train(shop.flag(key), path), [(key, path.name, shop.flag(key), name + ".npy")]


def mutated(choose, value):
    """JSON with one thing in it that it cannot be."""
    places = []

    def walk(inner, path):
        items = inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ()
        for key, one in items:
            if isinstance(key, str) or isinstance(one, dict | list):
                places.append((*path, key))
            walk(one, (*path, key))

    walk(value, ())
    copy = json.loads(json.dumps(value))
    path = choose.choice(places)
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    last, was = path[-1], inner[path[-1]]
    wrong = -1e308 if isinstance(was, str) else "none" if isinstance(was, dict | list) else "many"
    if choose.random() < 0.3 and isinstance(last, str):
        inner[misspelt(choose, last + "xy", inner)] = was
        last = None
    else:
        inner[last] = wrong
    return copy, last


def file_of_a_plan(shop, choose):
    name = choose.choice(["plan.json", "profile.json"])
    value = json.loads((shop.inputs / name).read_text())
    copy, _ = mutated(choose, value)
    text = json.dumps(copy)
    if choose.random() < 0.3:
        text = text[:choose.randrange(1, len(text) - 2)]
    wrong = shop.copy(name, text)
    files = {one: wrong if one == name else shop.inputs / one for one in ("plan.json", "profile.json")}
    return ["simulate", files["plan.json"], "--profile", files["profile.json"], "--cluster", shop.inputs / "cluster.yaml"], [wrong.name]


def cluster_file(shop, choose):
    lines = (shop.inputs / "cluster.yaml").read_text().splitlines(keepends=True)
    at = choose.randrange(len(lines))
    what = choose.choice(["key", "unit", "cut"])
    if what == "unit":
        numbered = [i for i, line in enumerate(lines) if re.search(r"[0-9]", line) and not line.startswith(("version", "#"))]
        at = choose.choice(numbered)
        lines[at] = re.sub(r"[0-9.]+", "-x", lines[at], count=1)
    elif what == "key":
        lines.append("deviceTypes: []\n")
    else:
        lines = [*lines, "links: [\n"]
    wrong = shop.copy("cluster.yaml", "".join(lines))
    return ["plan", "--model", "vgg16", "--cluster", wrong, "--output", shop.scratch / "found.json"], [wrong.name]


def trace_file(shop, choose):
    lines = (shop.inputs / "trace.csv").read_text().splitlines(keepends=True)
    at = choose.randrange(1, len(lines))
    cells = lines[at].rstrip("\n").split(",")
    cells[choose.randrange(len(cells) if choose.random() < 0.5 else 1)] = choose.choice(["\"", "x\x00y"])
    lines[at] = ",".join(cells) + (",1,2,3" if choose.random() < 0.5 else ",") + "\n"
    wrong = shop.copy("trace.csv", "".join(lines))
    return ["schedule", "simulate", wrong, "--cluster", "4x8", "--policy", "fifo"], [wrong.name]


def output(shop, choose):
    """A place that cannot be written to."""
    place = choose.choice([shop.scratch / "nowhere" / "deep" / "x.json", shop.inputs, pathlib.Path("/dev/null/x.json")])
    words = choose.choice([["profile", shop.job, "--output", place],
                           ["plan", "--model", "vgg16", "--cluster", EXAMPLES / "rent/cluster.yaml", "--output", place],
                           ["schedule", "simulate", shop.inputs / "trace.csv", "--cluster", "4x8", "--json", place],
                           ["simulate", shop.inputs / "plan.json", "--profile", shop.inputs / "profile.json", "--cluster",
                            shop.inputs / "cluster.yaml", "--html", place]])
    return words, [str(place)], (1, 2)


def run_folder(shop, choose):
    """A folder that holds a run, or none."""
    what = choose.choice(["held", "resume nothing", "report nothing", "a file", "below a file"])
    if what == "held":
        return ["train", shop.job, "--run-directory", shop.run], [str(shop.run)]
    if what == "resume nothing":
        return ["train", "--resume", "--run-directory", shop.scratch / "nothing"], ["nothing"]
    if what == "report nothing":
        return ["report", shop.scratch / "nothing"], ["nothing"]
    place = shop.inputs / "train.npy" if what == "a file" else shop.inputs / "train.npy" / "run"
    return ["train", shop.job, "--run-directory", place], [str(place)], (1, 2)


def address(shop, choose):
    wrong = choose.choice(["127.0.0.1:99999", "127.0.0.1:", ":::", "host:port", "127.0.0.1:x", "127.0.0.1:-1"])
    token = shop.copy("token", "0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    words = choose.choice([["server", "--listen", wrong, "--token-file", token],
                           ["data-server", shop.job, "--listen", wrong, "--token-file", token],
                           shop.train("--gradient-sync.method", "parameter-server", "--gradient-sync.servers", wrong,
                                      "--gradient-sync.token-file", token),
                           shop.train("--data.server", wrong, "--data.token-file", token)])
    return words, [wrong]


def secret(shop, choose):
    what = choose.choice(["open", "short", "missing", "folder"])
    token = shop.scratch / "secret"
    if what == "folder":
        token.mkdir()
    elif what != "missing":
        token.write_text("x" * (4 if what == "short" else 40))
        token.chmod(0o644 if what == "open" else 0o600)
    return choose.choice([["server", "--listen", "127.0.0.1:0", "--token-file", token],
                          ["data-server", shop.job, "--listen", "127.0.0.1:0", "--token-file", token]]), [str(token)], (1, 2)


def launcher(shop, choose):
    """Variables of a launcher that cannot be."""
    name, value = choose.choice([("WORLD_SIZE", "two"), ("RANK", "-1"), ("RANK", "7"), ("WORLD_SIZE", ""), ("MASTER_PORT", "port")])
    variables = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29599"}
    return shop.train("--workers", 2), [name], (2,), variables | {name: value}


def permission(shop, choose):
    """As a user who may not write there."""
    place = shop.folder / "inputs" / "run-of-nobody"
    words = choose.choice([["train", shop.job, "--run-directory", place],
                           ["plan", "--model", "vgg16", "--cluster", EXAMPLES / "rent/cluster.yaml", "--output", place]])
    return words, [str(place)], (1, 2), {}, NOBODY


GENERATORS = {one.__name__.replace("_", "-"): one for one in
              (command, flag, value_of_a_flag, value_of_a_key, job_file, data_file, file_of_a_plan, cluster_file, trace_file, output,
               run_folder, address, secret, launcher, permission)}


# --- What is looked at

def check_text(text, names):
    def fail(why):
        raise Unclear(f"{why}: {text.strip().splitlines()[-1:]}")

    for leak in LEAKS:
        if leak in text:
            fail(f"the message has '{leak}'")
    for name in names:
        choices = name if isinstance(name, tuple) else (name,)
        if not any(str(choice) in text for choice in choices):
            fail(f"the message does not name {' or '.join(map(str, choices))}")


def wait(shop, process, since, longest=LONGEST):
    try:
        out, errors = process.communicate(timeout=max(0.1, since + longest - time.monotonic()))
    except subprocess.TimeoutExpired:
        for left in shop.processes():
            os.kill(left, signal.SIGKILL)
        process.communicate()
        raise Unclear(f"it hung for more than {longest} s") from None
    return out, errors


def check_processes(shop):
    deadline = time.monotonic() + LONGEST
    while left := shop.processes():
        if time.monotonic() > deadline:
            raise Unclear(f"{len(left)} processes are left")
        time.sleep(0.05)


def refused(shop, choose, kind):
    """A command that cannot succeed."""
    case = Case(kind, *GENERATORS[kind](shop, choose))
    before = shop.snapshot(shop.inputs, shop.scratch)
    process = shop.start(case.words, case.environment, case.user)
    out, errors = wait(shop, process, time.monotonic())
    if process.returncode not in case.codes:
        raise Unclear(f"exit code {process.returncode} instead of {' or '.join(map(str, case.codes))}")
    check_text(errors, case.names)
    check_processes(shop)
    after = shop.snapshot(shop.inputs, shop.scratch)
    if changed := [str(path) for path in before if after.get(path, 0) != before[path]]:
        raise Unclear(f"changed or lost: {', '.join(changed)}")
    if new := [str(path) for path in after if path not in before]:
        raise Unclear(f"left behind: {', '.join(new)}")
    if new := list(shop.temporary.iterdir()):
        raise Unclear(f"left in the temporary folder: {', '.join(map(str, new))}")


def go_on(shop, run, names=()):
    """The run in this folder must go on from where it is."""
    process = shop.start(["train", shop.job, "--resume=auto", "--overwrite", "--run-directory", run, *names])
    _, errors = wait(shop, process, time.monotonic(), 60)
    if process.returncode:
        raise Unclear(f"it does not go on: {errors.strip().splitlines()[-1:]}")


def stopped(shop, choose, kind):
    """A run, or what profiles or plans, that is stopped or killed at any time."""
    how = choose.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    run = shop.scratch / "stopped"
    what = choose.choice(["train", "train", "overwrite", "profile", "plan", "server"])
    outputs = []
    if what == "train":
        words = ["train", shop.job, "--run-directory", run, "--epochs", 2000, "--workers", 2, "--checkpoint.every-steps", 7]
    elif what == "overwrite":
        shutil.copytree(shop.run, run)
        words = ["train", shop.job, "--run-directory", run, "--overwrite", "--epochs", 2000, "--checkpoint.every-steps", 7]
    elif what == "profile":
        outputs = [shop.scratch / "made.json"]
        words = ["profile", shop.job, "--output", outputs[0]]
    elif what == "plan":
        outputs = [shop.scratch / "found.json"]
        words = ["plan", "--model", "ctrdnn-16", "--cluster", EXAMPLES / "rent/cluster.yaml", "--compare", "--time-limit", "60s",
                 "--output", outputs[0]]
    else:
        token = shop.copy("token", "0123456789abcdef0123456789abcdef")
        token.chmod(0o600)
        words = ["server", "--listen", "127.0.0.1:0", "--token-file", token]
    process = shop.start(words)
    time.sleep(choose.random() ** 2 * 4)
    process.send_signal(how)
    _, errors = wait(shop, process, time.monotonic())
    check_processes(shop)
    codes = {signal.SIGKILL: (-9, 0), signal.SIGINT: (130, 0, -2), signal.SIGTERM: (130, 143, 0, -15)}[how]
    if process.returncode not in codes:
        raise Unclear(f"{what}: exit code {process.returncode} instead of {codes}: {errors.strip().splitlines()[-1:]}")
    check_text(errors, [])
    for path in outputs:
        if path.exists():
            json.loads(path.read_text())
    if what in ("train", "overwrite"):
        go_on(shop, run, ["--steps", 3])
    if how != signal.SIGKILL and (left := list(shop.temporary.iterdir())):
        raise Unclear(f"left in the temporary folder: {', '.join(map(str, left))}")


def full_disk(shop, choose, kind):
    """A run on a disk that is full sooner or later. It ends with a message, and goes on where there is room."""
    disk = shop.scratch / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={choose.choice([4, 16, 64, 100, 200])}k", "tmpfs", disk], check=True)
    try:
        process = shop.start(["train", shop.job, "--run-directory", disk / "run", "--epochs", 2000, "--checkpoint.every-steps", 3])
        _, errors = wait(shop, process, time.monotonic(), 60)
        if process.returncode != 1:
            raise Unclear(f"exit code {process.returncode} instead of 1: {errors.strip().splitlines()[-1:]}")
        check_text(errors, [str(disk), "No space left"])
        check_processes(shop)
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        go_on(shop, disk / "run", ["--steps", 3])
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


OTHERS = {"stopped": stopped, "full-disk": full_disk}


def may_mount():
    folder = pathlib.Path(tempfile.mkdtemp())
    done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=False, capture_output=True)
    if not done.returncode:
        subprocess.run(["umount", folder], check=True)
    folder.rmdir()
    return not done.returncode


def may_start_as_nobody():
    try:
        return subprocess.run([BINARY, "--version"], user=NOBODY, check=False, capture_output=True).returncode == 0
    except PermissionError:
        return False


def main():
    flags = read_flags(__doc__, seed={"type": int, "default": random.SystemRandom().randrange(1 << 32), "help": "of the cases"},
                       cases={"type": int, "default": 0, "help": "how many; default: 300, with --quick 60"},
                       only={"default": "", "help": "this kind of cases only"})
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it, and what it starts would as well
    choose = random.Random(flags.seed)
    shop = Workshop(choose)
    shop.folder.chmod(0o755)
    shop.temporary.chmod(0o777)
    kinds = [*GENERATORS, *["stopped"] * 4, *(["full-disk"] if may_mount() else [])]
    if not may_start_as_nobody():
        say("left out: permission, which needs to be root, and the program in a folder that others may enter")
        kinds.remove("permission")
    if flags.only:
        kinds = [flags.only]
    count = flags.cases or (60 if flags.quick else 300)
    say(f"bad input: {count} cases, seed {flags.seed}, kinds: {', '.join(dict.fromkeys(kinds))}")
    unclear = 0
    for number in range(count):
        kind = kinds[number % len(kinds)]
        choose.seed(f"{flags.seed} {number}")
        try:
            OTHERS.get(kind, refused)(shop, choose, kind)
        except Unclear as problem:
            unclear += 1
            say(f"case {number}, {kind}: {problem}\n  {shop.last}")
        for path in shop.scratch.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in shop.temporary.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(shop.folder)
    print_rows([row("generated-300", "unclear_or_lost", unclear, "cases", "less", 0,
                    note=f"measured; {count} cases of {len(set(kinds))} kinds, seed {flags.seed}")])


if __name__ == "__main__":
    sys.exit(main())
