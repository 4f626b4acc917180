"""The command line as a user meets it: help, mistyped words, files that are kept, JSON, completion in real shells, manual pages."""

import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import tempfile
import unittest

import jsonschema
import referencing
import referencing.jsonschema

from harness import BINARY, Scenario

ROOT = pathlib.Path(__file__).resolve().parents[2]
PIPELINE = ROOT / "examples/pipeline"
STEP = (PIPELINE / "plan.json", "--profile", PIPELINE / "profile.json", "--cluster", PIPELINE / "cluster.yaml")
PLAN = ("plan", "--model", "vgg16", "--cluster", PIPELINE / "cluster.yaml", "--micro-batches", 4, "--time-limit", "5s")


def check_schema(name, document):
    schemas = ROOT / "docs/schema"
    resources = [(f"{file.name}", referencing.jsonschema.DRAFT202012.create_resource(json.loads(file.read_text())))
                 for file in schemas.glob("*.json")]
    registry = referencing.Registry().with_resources(resources)
    schema = json.loads((schemas / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator(schema, registry=registry).validate(document)


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="motley-command-line-"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def run_program(self, *words, expect=0):
        done = subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, timeout=120, cwd=self.folder, check=False)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done

    def refuse(self, *words):
        return self.run_program(*words, expect=2).stderr.strip().splitlines()[-1]


class Words(Folder):
    def test_mistyped_ones_are_answered_with_what_was_meant(self):
        for words, meant in ((("trian",), "'trian' is no command; did you mean 'train'? accepted: check, "),
                             (("schedule", "lsit"), "motley schedule: 'lsit' is no command; did you mean 'list'?"),
                             (("train", "job.yaml", "--bacth", 12), "unknown flag '--bacth'; did you mean '--global-batch-size'?"),
                             (("train", "job.yaml", "--worker", 2), "unknown flag '--worker'; did you mean '--workers'?"),
                             (("plan", "--methdo", "exact"), "unknown flag '--methdo'; did you mean '--method'?"),
                             (("plan", "--method", "geedy"), "--method: 'geedy' is not accepted; did you mean 'greedy'? accepted: one of"),
                             (("train", "--optimizer", "sgd"), "'--optimizer' is a group of flags; accepted: --optimizer.name, "),
                             (("plan", "--page", "x"), "unknown flag '--page'; it is now '--html'"),
                             (("train", "--adapt", "x"), "unknown flag '--adapt'; it is now '--replan'"),
                             (("train", "--learning-rate", 0.1),
                              "did you mean '--optimizer.learning-rate' or '--embedding.learning-rate'?"),
                             (("train", "--lr", 0.1), "did you mean '--optimizer.learning-rate'"),
                             (("completion", "tcsh"), "'tcsh' is not accepted; accepted: one of bash, zsh, fish"),
                             (("train", "job.yaml", "--steps"), "--steps: has no value; accepted: INT"),
                             (("--json", "check"), "'--json' stands before the command; accepted: behind it, motley check --json"),
                             (("help", "shcedule"), "'shcedule' is no command; did you mean 'schedule'?"),
                             (("train", "--help=optimiser"), "'optimiser' is no topic; did you mean 'optimizer'? accepted: ")):
            with self.subTest(words):
                self.assertIn(meant, self.refuse(*words))

    def test_the_fault_that_is_named_is_the_first_one(self):
        (self.folder / "plan.json").write_text("precious")
        (self.folder / "job.yaml").write_text("{}")
        for words, fault in ((("plan",), "--profile, --model: neither is given; accepted: one of them"),
                             (("plan", "--model", "vgg16", "--cluster", "no.yaml"), "no.yaml"),
                             (("profile", "--output", "plan.json"), "JOB, --model: neither is given"),
                             (("train", "job.yaml", "--workers", "two"), "error: --workers: 'two' is not accepted; accepted: "),
                             (("schedule", "submit", "--name", "q", "--estimated-duration", 60, "--", "true"),
                              "--estimated-duration: '60' is not accepted; accepted: a duration such as '250ms', '90s' or '2h'"),
                             (("schedule", "submit", "--name", "q", "--workers", 0, "--", "true", "-x"),
                              "--workers: '0' is not accepted; accepted: an integer from 1"),
                             (("trian",), "motley: error: 'trian' is no command")):
            with self.subTest(words):
                self.assertIn(fault, self.refuse(*words))

    def test_a_job_to_submit_is_said_in_one_way(self):
        (self.folder / "job.json").write_text("{}")
        file = ("schedule", "submit", "--file", "job.json")
        for words in (("--train", "job.yaml"), ("--max-retries", 5), ("--name", "q"), ("--workers", 2), ("--memory-per-worker", "1GB"),
                      ("--profile", "p.json"), ("--speed", "k80:0.2"), ("--speedup", "2:1.9")):
            with self.subTest(words):
                self.assertIn(f"--file excludes {words[0]}", self.refuse(*file, *words))
        self.assertIn("--file excludes COMMAND", self.refuse(*file, "--", "./mine.sh"))
        self.assertIn("--train excludes COMMAND",
                      self.refuse("schedule", "submit", "--name", "q", "--train", "job.yaml", "--", "./mine.sh"))

    def test_a_group_of_keys_is_answered_with_the_key_that_was_meant(self):
        (self.folder / "job.yaml").write_text("optimizer: adam\n")
        self.assertIn("job.yaml:1: 'optimizer' is a group of keys; did you mean 'optimizer.name: adam'? accepted: optimizer.name, ",
                      self.refuse("train", "job.yaml"))
        (self.folder / "job.yaml").write_text("optimizer: {name: adma}\n")
        self.assertIn("job.yaml:1: optimizer.name: 'adma' is not accepted; did you mean 'adam'? accepted: one of sgd, adam, adamw",
                      self.refuse("train", "job.yaml"))


class Help(Folder):
    def test_of_training_is_short_and_has_topics(self):
        short = self.run_program("train", "--help").stdout
        self.assertLess(len(short.splitlines()), 90)
        self.assertIn("--global-batch-size INT", short)
        self.assertNotIn("--gradient-sync", short)
        topic = self.run_program("train", "--help=gradient_sync").stdout
        self.assertEqual(set(re.findall(r"(?m)^  --([a-z-]+)", topic)), {"gradient-sync"})
        whole = self.run_program("train", "--help=all").stdout
        schema = json.loads(self.run_program("train", "--schema").stdout)
        keys = [f"{group}.{key}" if key else group for group, value in schema["properties"].items()
                for key in value.get("properties", {"": None})]
        for key in keys:
            if key != "version":
                self.assertIn(f"\n  --{key.replace('_', '-')} ", whole)

    def test_by_itself_or_by_the_command_help(self):
        for words in ((), ("schedule",)):
            done = self.run_program(*words, expect=2)
            self.assertEqual(done.stdout.strip(), self.run_program(*words, "--help").stdout.strip())
            self.assertIn("needs a command; accepted: ", done.stderr.splitlines()[-1])
        for words in ((), ("plan",), ("schedule", "why")):
            self.assertEqual(self.run_program("help", *words).stdout, self.run_program(*words, "--help").stdout)
        self.assertIn("--name TEXT", self.run_program("help", "schedule", "submit").stdout.splitlines()[2])
        topic = self.run_program("train", "--help=gradient_sync").stdout
        for words in (("help", "train", "gradient_sync"), ("train", "--help", "gradient_sync"), ("train", "-h", "gradient-sync")):
            self.assertEqual(self.run_program(*words).stdout, topic)
        self.assertIn("'x' is no topic; accepted: ", self.run_program("help", "train", "x", expect=2).stderr)

    def test_flags_of_every_command_take_a_line_and_groups_their_place(self):
        check = self.run_program("check", "--help").stdout
        self.assertEqual(check.count("--quiet"), 1)
        self.assertIn("Flags of every command (motley --help explains them): --quiet", check)
        self.assertLess(check.index("Flags of --racks:"), check.index("--switch-slots"))
        self.assertRegex(check, r"--batch-size NUMBER +samples of a worker's batch \(above 0\)")
        self.assertIn("10us]", check)
        self.assertIn("--quiet ", self.run_program("check", "--help=all").stdout)
        server = self.run_program("data-server", "--help=all").stdout
        self.assertIn("--data.train ", server)
        self.assertNotIn("--optimizer.name", server)
        train = self.run_program("train", "--help").stdout
        self.assertLess(train.index("--resume"), train.index("--rank"))

    def test_the_version_is_the_programs_everywhere(self):
        version = self.run_program("--version").stdout
        self.assertRegex(version, r"^motley \d+\.\d+\.\d+\n$")
        for words in (("train",), ("schedule", "list"), ("plan",)):
            self.assertEqual(self.run_program(*words, "--version").stdout, version)


class WrittenFiles(Folder):
    def test_that_exist_are_kept_before_anything_is_done(self):
        for words, file in ((PLAN, "plan.json"), ((*PLAN, "--output", "other.json"), "other.json"),
                            ((*PLAN, "--html", "page.html"), "page.html"), (("simulate", *STEP, "--timeline", "t.json"), "t.json"),
                            (("profile", ROOT / "examples/fashion-mnist/job.yaml"), "profile.json"),
                            (("schedule", "simulate", ROOT / "examples/schedule/trace.csv", "--cluster", "4x8", "--csv", "jobs.csv"),
                             "jobs.csv")):
            with self.subTest(file):
                (self.folder / file).write_text("precious")
                self.assertIn(f"'{file}' exists; accepted: another file, or --overwrite to replace it", self.refuse(*words))
                self.assertEqual([path.name for path in self.folder.iterdir()], [file])
                self.assertEqual((self.folder / file).read_text(), "precious")
                (self.folder / file).unlink()
        (self.folder / "plan.json").write_text("replaced")
        self.run_program(*PLAN, "--overwrite")
        self.assertIn("stages", json.loads((self.folder / "plan.json").read_text()))

    def test_that_cannot_be_written_are_refused_before_anything_is_measured(self):
        job = ROOT / "examples/fashion-mnist/job.yaml"
        self.assertIn("--output: cannot write '/nowhere/p.json'", self.refuse("profile", job, "--output", "/nowhere/p.json"))
        self.assertIn("is the file of", self.refuse("simulate", *STEP, "--html", "x", "--timeline", "./x"))

    def test_of_standard_output_that_lack_a_part_are_an_error(self):
        """As on a full disk: a limit to the size of files has the same effect."""
        with open(self.folder / "reference.md", "wb") as file:
            done = subprocess.run([BINARY, "reference"], stdout=file, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
                                  restore_signals=False,  # Python has told the kernel not to end who goes beyond the limit
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("the file of the standard output cannot be written, and lacks a part", done.stderr)


class Json(Folder):
    def printed(self, schema, *words):
        document = json.loads(self.run_program(*words, "--json").stdout)
        check_schema(schema, document)
        return document

    def test_is_all_of_standard_output_and_fits_its_schema(self):
        step = self.printed("simulate-result", "simulate", *STEP, "--html", "step.html")
        self.assertGreater(step["throughput"], 0)
        plan = self.printed("plan-result", *PLAN, "--compare", "--what-if", "large.price=0.5..2", "--html", "plan.html")
        check_schema("plan", plan["plan"])
        self.assertEqual(plan["plan"], json.loads((self.folder / "plan.json").read_text()))
        self.assertEqual(len([one for one in plan["methods"] if one["method"] == "exact"]), 1)
        profile = self.printed("profile", "profile", "--model", "vgg16", "--cluster", PIPELINE / "cluster.yaml")
        self.assertEqual(profile, json.loads((self.folder / "profile.json").read_text()))
        trace = ("schedule", "simulate", ROOT / "examples/schedule/trace.csv", "--cluster", "4x8", "--policy", "fifo")
        self.assertEqual(self.printed("schedule-simulate-result", *trace)["jobs"], 60)
        racks = self.printed("check-result", "check", "--racks", 8)
        self.assertEqual(set(racks), {"racks"})
        done = subprocess.run([BINARY, "check", "--json"], capture_output=True, text=True, timeout=120, check=False)
        machine = json.loads(done.stdout)
        check_schema("check-result", machine)
        self.assertEqual(machine["machine"]["works"], done.returncode == 0)
        self.assertEqual(machine["machine"]["devices"][0]["device"], "cpu")
        # As fast as it is said to be, or slower where the machine is busy.
        environment = os.environ | {"MOTLEY_EMULATED": "devices=2,memory=64MB,memory_bandwidth=200MB/s,flops=1e8"}
        done = subprocess.run([BINARY, "check", "--json"], capture_output=True, text=True, timeout=120, check=False, env=environment)
        devices = json.loads(done.stdout)["machine"]["devices"]
        self.assertEqual([device["device"] for device in devices], ["cpu", "emulated:0", "emulated:1"])
        for device in devices[1:]:
            self.assertEqual(device["memory_bytes"], 64e6)
            self.assertLessEqual(device["memory_bytes_per_second"], 2.001e8)
            self.assertLessEqual(device["flops_per_second"], 1.001e8)


class Training(Scenario):
    def test_the_summary_as_json(self):
        done = subprocess.run([*self.command("run", "--steps", 4), "--json"], capture_output=True, text=True, timeout=180, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        check_schema("train-result", result)
        self.assertEqual(result["run"], str(self.folder / "run"))
        summary = json.loads((self.folder / "run/summary.json").read_text())
        self.assertEqual([(row["metric"], row["value"]) for row in result["summary"]], [(row["metric"], row["value"]) for row in summary])
        done = subprocess.run([BINARY, "report", self.folder / "run", "--json"], capture_output=True, text=True, timeout=60, check=True)
        check_schema("report-result", json.loads(done.stdout))
        self.assertTrue(pathlib.Path(json.loads(done.stdout)["page"]).is_file())

    def test_a_file_that_is_cut_off_is_wrong_input(self):
        data = self.folder / "train.npy"
        data.write_bytes(data.read_bytes()[:1000])
        self.assertIn("train.npy", self.train("run", expect=2))

    def test_verbose_and_quiet_exclude_each_other(self):
        self.assertIn("--quiet excludes --verbose", self.train("run", "--quiet", "--verbose", expect=2))
        self.assertEqual(self.train("quiet", "--steps", 2, "--quiet").count("rank 0"), 0)


class Completion(Folder):
    def setUp(self):
        super().setUp()
        self.script = self.folder / "completion"
        (self.folder / "job.yaml").write_text("")

    def print_script(self, shell):
        self.script.write_text(self.run_program("completion", shell).stdout)

    def complete_in_bash(self, *words):
        lines = (f"source {self.script}\nCOMP_WORDS=({' '.join(map(repr, words))})\nCOMP_CWORD={len(words) - 1}\n"
                 "_motley\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n")
        done = subprocess.run(["bash", "--norc", "-c", lines], cwd=self.folder, capture_output=True, text=True, timeout=60, check=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_in_bash(self):
        self.print_script("bash")
        self.assertEqual(self.complete_in_bash("motley", "tra"), ["train"])
        self.assertEqual(self.complete_in_bash("motley", "schedule", "w"), ["why", "what-if"])
        self.assertNotIn("man-pages", self.complete_in_bash("motley", ""))
        self.assertEqual(self.complete_in_bash("motley", "plan", "--meth"), ["--method"])
        self.assertEqual(self.complete_in_bash("motley", "train", "--optimizer.name", "adam"), ["adam", "adamw"])
        self.assertEqual(self.complete_in_bash("motley", "train", "--optimizer.name", "=", "s"), ["sgd"])
        self.assertEqual(self.complete_in_bash("motley", "train", "--optimizer.learning-rate", ""), [])
        self.assertEqual(self.complete_in_bash("motley", "train", "job"), ["job.yaml"])
        self.assertEqual(self.complete_in_bash("motley", "plan", "--profile", "jo"), ["job.yaml"])
        self.assertEqual(self.complete_in_bash("motley", "completion", "f"), ["fish"])
        self.assertIn("--overwrite", self.complete_in_bash("motley", "plan", "--"))
        self.assertNotIn("--overwrite", self.complete_in_bash("motley", "check", "--"))

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_in_fish(self):
        self.print_script("fish")

        def complete(line):
            done = subprocess.run(["fish", "--no-config", "-c", f"source {self.script}; complete -C '{line}'"], cwd=self.folder,
                                  capture_output=True, text=True, timeout=60, check=True,
                                  env={**os.environ, "HOME": str(self.folder)})
            self.assertEqual(done.stderr, "")
            return [found.split("\t")[0] for found in done.stdout.splitlines()]

        self.assertEqual(complete("motley tra"), ["train"])
        self.assertEqual(complete("motley schedule w"), ["what-if", "why"])
        self.assertEqual(complete("motley train --optimizer.name adamw"), ["adamw"])
        self.assertEqual(complete("motley schedule simulate --plac"), ["--placement"])
        self.assertEqual(complete("motley simulate --plac"), [])
        self.assertIn("job.yaml", complete("motley plan --profile jo"))

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_in_zsh(self):
        self.print_script("zsh")
        done = subprocess.run(["zsh", "-n", self.script], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

        def complete(line):
            """What zsh adds to the line, or lists: in a terminal of its own, whose prompt ends what it says."""
            script = f"""
zmodload zsh/zpty
zpty shell "zsh -f -i"
zpty -w shell 'PS1=; PROMPT=; cd {self.folder}; autoload -U compinit; compinit -u -D; source {self.script}; zstyle ":completion:*" list-colors; bindkey "^X" complete-word; say() {{ print -r -- "<${{BUFFER}}>"; }}; zle -N say; bindkey "^Y" say; print ready'
zpty -r shell output '*ready*ready*'
zpty -w -n shell $'{line}\\x18\\x19'
zpty -r shell output '*<*>*'
print -r -- "$output"
"""
            done = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True, timeout=60, check=False,
                                  env={**os.environ, "HOME": str(self.folder), "TERM": "dumb"})
            return re.findall(r"<(motley[^>]*)>", done.stdout)[-1].strip()

        self.assertEqual(complete("motley tra"), "motley train")
        self.assertEqual(complete("motley plan --meth"), "motley plan --method=")
        self.assertEqual(complete("motley schedule simulate --place"), "motley schedule simulate --placement=")
        self.assertEqual(complete("motley plan --profile jo"), "motley plan --profile job.yaml")


class ManualPages(Folder):
    def test_are_there_for_every_command_and_groff_has_nothing_to_say(self):
        self.run_program("man-pages", "man")
        pages = sorted(path.name for path in (self.folder / "man").iterdir())
        for name in ("motley.1", "motley-train.1", "motley-schedule.1", "motley-schedule-what-if.1", "motley-completion.1"):
            self.assertIn(name, pages)
        self.assertNotIn("motley-man-pages.1", pages)
        train = (self.folder / "man/motley-train.1").read_text()
        self.assertIn(r"\fB\-\-optimizer.learning\-rate\fR", train)
        if shutil.which("groff"):
            for page in pages:
                done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", self.folder / "man" / page], capture_output=True, text=True,
                                      timeout=60, check=True)
                self.assertEqual(done.stderr, "", page)


if __name__ == "__main__":
    unittest.main()
