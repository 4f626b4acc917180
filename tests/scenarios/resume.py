"""A run that was stopped goes on as if it had not been: bitwise with the same shares, with the same samples otherwise."""

import json
import os
import shutil
import unittest
import unittest.mock

import harness
from harness import Scenario, interrupt


def crc32c(data):
    """By the polynomial, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Resume(Scenario):
    fixed = ("--batch-split.mode", "fixed", "--batch-split.fixed", "10,20,30", "--workers", 3)

    def test_fixed_shares_resume_bitwise(self):
        self.train("whole", *self.fixed, "--steps", 20, "--model.dropout", 0.2)
        self.train("halves", *self.fixed, "--steps", 7, "--model.dropout", 0.2)
        self.train("halves", *self.fixed, "--steps", 20, "--model.dropout", 0.2, "--resume")
        self.assert_bitwise("whole", "halves")
        self.assertEqual(self.losses("whole"), self.losses("halves"))
        self.assertEqual(self.not_used_once("halves"), 0)

    def test_adam_resumes_bitwise(self):
        adam = (*self.fixed, "--optimizer.name", "adamw", "--optimizer.learning-rate", 0.01, "--max-grad-norm", 1)
        self.train("whole", *adam, "--steps", 15)
        self.train("halves", *adam, "--steps", 4)
        self.train("halves", *adam, "--steps", 15, "--resume")
        self.assert_bitwise("whole", "halves")

    def test_recorded_shares_replay_bitwise(self):
        paces = self.cluster([0.0004, 0.0008, 0.0016])
        self.train("first", "--cluster", paces, "--epochs", 3)
        self.assertGreater(len({tuple(line["batch_split"]) for line in self.lines("first") if "batch_split" in line}), 1)
        replay = ("--workers", 3, "--epochs", 3, "--batch-split.mode", "replay", "--batch-split.replay", self.folder / "first")
        self.train("again", *replay)
        self.assert_bitwise("first", "again")
        self.train("halves", *replay, "--steps", 11)
        self.train("halves", *replay, "--resume")
        self.assert_bitwise("first", "halves")

    def test_another_number_of_workers_uses_the_same_samples(self):
        self.train("whole", "--workers", 2, "--batch-split.mode", "equal")
        self.train("changed", "--workers", 3, "--steps", 6)
        self.train("changed", "--workers", 2, "--resume")
        self.assertEqual(self.not_used_once("changed"), 0)
        whole, changed = self.losses("whole"), self.losses("changed")
        self.assertEqual(whole.keys(), changed.keys())
        for step, loss in whole.items():
            self.assertAlmostEqual(loss, changed[step], delta=1e-4, msg=f"step {step}")

    def test_a_run_may_keep_no_checkpoint(self):
        self.train("none", "--steps", 5, "--checkpoint.keep", 0, "--checkpoint.every-steps", 2)
        self.assertFalse((self.folder / "none/checkpoint").exists())
        self.assertEqual(len(self.losses("none")), 5)

    def test_a_stop_leaves_a_checkpoint(self):
        paces = self.cluster([0.004, 0.004])
        process = self.start("run", "--cluster", paces, "--epochs", 3)
        self.wait_for_step("run", 5)
        interrupt(process)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 130, output)
        self.assertIn("--resume", output.strip().splitlines()[-1])
        stopped = max(self.losses("run"))
        self.assertLess(stopped, 30)
        told = (self.folder / "run" / "run.json").read_text()
        self.assertIn("nothing is left to do", self.train("run", "--cluster", paces, "--steps", 1, "--resume"))
        self.assertEqual((self.folder / "run" / "run.json").read_text(), told, "the run was interrupted, and still is")
        self.train("run", "--cluster", paces, "--epochs", 3, "--resume")
        self.assertEqual(sorted(self.losses("run")), list(range(1, 31)))
        self.assertEqual(self.not_used_once("run"), 0)
        self.assertTrue(json.loads((self.folder / "run" / "run.json").read_text())["finished"])

    def test_a_damaged_checkpoint_is_passed_over(self):
        self.train("whole", *self.fixed, "--steps", 20)
        self.train("run", *self.fixed, "--steps", 12, "--checkpoint.every-steps", 5)
        newest = self.folder / "run" / "checkpoint" / "step-00000012" / "weights.safetensors"
        content = bytearray(newest.read_bytes())
        content[-5] ^= 1
        newest.write_bytes(content)
        output = self.train("run", *self.fixed, "--steps", 20, "--resume")
        self.assertIn("does not match its checksum", output)
        self.assertIn("resumed after step 10", output)
        self.assert_bitwise("whole", "run")

    def test_a_damaged_manifest_is_passed_over(self):
        self.train("whole", *self.fixed, "--steps", 20)
        self.train("run", *self.fixed, "--steps", 12, "--checkpoint.every-steps", 5)
        manifest = self.folder / "run" / "checkpoint" / "step-00000012" / "manifest.json"
        good = json.loads(manifest.read_text())
        with open(self.folder / "run" / "metrics.jsonl", "a") as metrics:
            metrics.write('5\n[]\n{"step": "x"}\n')
        damages = ({"version": "x", "files": {}}, {**good, "files": {**good["files"], "audit.bin": 5}}, {**good, "files": {}},
                   {**good, "files": {name: good["files"][name] for name in good["files"] if name != "state.json"}},
                   5, [], {**good, "version": 2}, {**good, "files": []})
        for damage in damages:
            with self.subTest(damage=damage):
                shutil.copytree(self.folder / "run", self.folder / "copy")
                (self.folder / "copy" / manifest.relative_to(self.folder / "run")).write_text(json.dumps(damage))
                output = self.train("copy", *self.fixed, "--steps", 20, "--resume")
                self.assertIn("manifest.json", output)
                self.assertNotIn("json.exception", output)
                self.assertIn("resumed after step 10", output)
                self.assert_bitwise("whole", "copy")
                shutil.rmtree(self.folder / "copy")

    def test_a_state_that_no_run_has_is_passed_over(self):
        self.train("whole", *self.fixed, "--steps", 20)
        self.train("run", *self.fixed, "--steps", 12, "--checkpoint.every-steps", 5)
        for part, field, value in (("ledger", "epoch", 2**63), (None, "next_evaluation", -1e300)):
            with self.subTest(field):
                shutil.copytree(self.folder / "run", self.folder / "copy")
                newest = self.folder / "copy" / "checkpoint" / "step-00000012"
                state = json.loads((newest / "state.json").read_text())
                (state[part] if part else state)[field] = value
                text = json.dumps(state).encode()
                (newest / "state.json").write_bytes(text)
                manifest = json.loads((newest / "manifest.json").read_text())
                manifest["files"]["state.json"] = {"bytes": len(text), "crc32c": crc32c(text)}
                (newest / "manifest.json").write_text(json.dumps(manifest))
                output = self.train("copy", *self.fixed, "--steps", 20, "--resume")
                self.assertRegex(output, rf"step-00000012' is damaged: state.json: .*{field}' is .*; accepted is ")
                self.assertIn("resumed after step 10", output)
                self.assert_bitwise("whole", "copy")
                shutil.rmtree(self.folder / "copy")

    def test_relative_paths_of_flags_are_taken_from_the_current_folder(self):
        self.cluster([None, None])
        here = os.getcwd()
        self.addCleanup(os.chdir, here)
        binary = os.path.abspath(harness.BINARY)
        os.chdir(self.folder)
        with unittest.mock.patch.object(harness, "BINARY", binary):
            self.train("run", "--cluster", "cluster.yaml", "--data.train", "./train.npy", "--steps", 3)
            os.chdir(here)
            self.train("run", "--steps", 5, "--resume", job=False)
        self.assertEqual(sorted(self.losses("run")), [1, 2, 3, 4, 5])

    def test_auto_starts_where_there_is_no_checkpoint_and_resumes_where_there_is_one(self):
        self.train("whole", *self.fixed, "--steps", 20)
        output = self.train("run", *self.fixed, "--steps", 7, "--resume=auto", "--overwrite")
        self.assertNotIn("resumed after", output)
        self.assertIn("resumed after step 7", self.train("run", *self.fixed, "--steps", 20, "--resume=auto", "--overwrite"))
        self.assert_bitwise("whole", "run")
        for checkpoint in (self.folder / "run" / "checkpoint").iterdir():
            (checkpoint / "weights.safetensors").write_bytes(b"damaged")
        self.assertIn("can be used", self.train("run", *self.fixed, "--resume=auto", "--overwrite", expect=1))
        shutil.rmtree(self.folder / "run" / "checkpoint")
        self.assertIn("--overwrite", self.train("run", *self.fixed, "--resume=auto", expect=2))
        self.train("run", *self.fixed, "--steps", 3, "--resume=auto", "--overwrite")
        self.assertEqual(sorted(self.losses("run")), [1, 2, 3])

    def test_a_resume_that_fails_leaves_the_run_as_it_was(self):
        self.train("whole", *self.fixed, "--steps", 20)
        self.train("run", *self.fixed, "--steps", 7)
        files = [self.folder / "run" / name for name in ("job.yaml", "metrics.jsonl", "run.json")]
        before = [file.read_bytes() for file in files]
        for key, value in (("model.hidden_sizes", 32), ("optimizer.name", "adamw")):
            last = self.train("run", f"--{key.replace('_', '-')}", value, "--resume", expect=2, job=False).strip().splitlines()[-1]
            self.assertIn(f"{key} is", last)
            self.assertEqual([file.read_bytes() for file in files], before)
        self.train("run", "--steps", 20, "--resume", job=False)
        self.assert_bitwise("whole", "run")


if __name__ == "__main__":
    unittest.main()
