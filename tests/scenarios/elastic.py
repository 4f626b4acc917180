"""Workers of an elastic job are lost while it runs: the others go on, and the result is that of one worker."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
import unittest

from harness import Scenario, children, interrupt, process_state, relative_difference


class ElasticRun(Scenario):
    def setUp(self):
        super().setUp()
        self.double = ("--model.dtype", "float64", "--model.dropout", 0.2)
        self.tolerance = 1e-9

    def lose(self, run, *flags, victims, how=signal.SIGKILL, step=5, workers=4, expect=0):
        """Runs with some workers lost after a step; returns the output."""
        if "--replacements" not in flags:
            flags += ("--replacements", 0)
        pace = 0.002 if "--epochs" in flags else 0.004  # so that there is time to lose them, and for others to come
        process = self.start(run, *self.double, "--cluster", self.cluster([pace] * workers), *flags)
        self.wait_for_step(run, step)
        processes = self.worker_processes(process.pid)
        self.assertEqual(len(processes), workers)
        for victim in victims:
            os.kill(processes[victim], how)
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, expect, output)
        return output

    def assert_as_one_worker(self, run, steps=20):
        self.assertLess(relative_difference(self.weights("one"), self.weights(run)), self.tolerance)
        self.assertEqual(self.not_used_once(run), 0)
        done = [line["step"] for line in self.lines(run) if "loss" in line]
        self.assertEqual(done, list(range(1, steps + 1)))
        for line in self.lines(run):
            if "loss" in line:
                self.assertEqual(sum(line["samples"]), 60)

    def wait_until(self, is_so):
        deadline = time.monotonic() + 60
        while not is_so():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def wait_for_event(self, run, kind):
        self.wait_until(lambda: any(line.get("event") == kind for line in self.lines(run)))

    def wait_for_change(self, run, text):
        """Until a change of the members says this. One that takes in a newcomer with a loss has the loss's event."""
        self.wait_until(lambda: any(text in line.get("text", "") for line in self.lines(run)))

    def wait_for_share(self, run, rank):
        """Until this rank, after the last change, has samples of a step."""
        def has_share():
            lines = self.lines(run)
            change = max((i for i, line in enumerate(lines) if line.get("event") in ("lost", "left", "joined")), default=0)
            return any("loss" in line and line["samples"][rank] > 0 for line in lines[change:])
        self.wait_until(has_share)

    def ask_for_fault(self, folder, name, how):
        """Of a process that runs with the folder as its MOTLEY_FAULTS: nobody finds half of the file."""
        (folder / f".{name}").write_text(how)
        (folder / f".{name}").rename(folder / name)

    def assert_has_ended(self, process):
        self.assertIn(process_state(process), "ZX")

    def end_at_points_of_a_step(self, *flags):
        """Runs of four workers, of which three are killed or stopped, each at another point: each run is as that of one worker."""
        runs = []
        for number, points in enumerate((("forward", "between-buckets", "checkpoint"),
                                         ("backward", "gradient-synchronisation", "gathering-times"))):
            with self.subTest(points=points):
                run, faults = f"run-{number}", self.folder / f"faults-{number}"
                faults.mkdir()
                for rank, point in enumerate(points):
                    (faults / f"{rank}.{point}").write_text("stop" if rank == 1 else "kill")
                process = self.start(run, *self.double, "--cluster", self.cluster([0.001] * 4), "--elastic", "1:4",
                                     "--replacements", 0, "--checkpoint.every-steps", 3, *flags,
                                     environment={"MOTLEY_FAULTS": str(faults)})
                output = process.communicate(timeout=120)[0]
                self.assertEqual(process.returncode, 0, output)
                self.assertEqual(os.listdir(faults), [])
                self.assert_as_one_worker(run)
                runs.append(run)
        return runs

    def flags_by_hand(self, port, pace, least, *flags):
        """Of three ranks, each of which is started by itself."""
        hosts = self.folder / "hosts"
        hosts.write_text(f"127.0.0.1:{port}\n127.0.0.1\n127.0.0.1\n")
        secret = self.folder / "secret"
        secret.write_text("0123456789abcdef0123456789abcdef")
        secret.chmod(0o600)
        return (*self.double, "--cluster", self.cluster([pace] * 3), "--elastic", f"{least}:3", "--hosts", hosts,
                "--secret-file", secret, *flags)

    def by_hand(self, port, pace, least, *flags):
        """Three ranks of one machine, each started by itself in a folder of its own: their processes, and the flags of all."""
        common = self.flags_by_hand(port, pace, least, *flags)
        return [self.start(f"own-{rank}", *common, "--rank", rank) for rank in range(3)], common

    def read_address(self, rank):
        """Where others can join this rank, which writes the run's files."""
        lines = []
        while "other workers can join at" not in (lines or [""])[-1]:
            lines.append(rank.stdout.readline())
            self.assertTrue(lines[-1], lines)
        return lines[-1].strip().split()[-1]


class Elastic(ElasticRun):
    def test_whoever_is_lost_the_result_is_that_of_one_worker(self):
        self.train("one", *self.double, "--workers", 1)
        for run, method, victims, how in (
            ("first", "shared-memory", [0], signal.SIGKILL),
            ("last", "tcp-ring", [3], signal.SIGKILL),
            ("two", "shared-memory", [1, 2], signal.SIGKILL),
            ("all-but-one", "tcp-ring", [0, 1, 3], signal.SIGKILL),
            ("stopped", "shared-memory", [2], signal.SIGSTOP),
            ("stopped-first", "tcp-ring", [0], signal.SIGSTOP),
        ):
            with self.subTest(run):
                output = self.lose(run, "--elastic", "1:4", "--gradient-sync.method", method, victims=victims, how=how)
                self.assertIn(f"{4 - len(victims)} of 4 workers go on", output)
                self.assert_as_one_worker(run)
                last = [line["samples"] for line in self.lines(run) if "loss" in line][-1]
                self.assertEqual([rank for rank in range(4) if last[rank] == 0], victims)

    def test_one_after_the_other_at_any_moment(self):
        self.train("one", *self.double, "--workers", 1)
        choose = random.Random(5)
        for round in range(3):
            run = f"round-{round}"
            with self.subTest(run):
                process = self.start(run, *self.double, "--cluster", self.cluster([0.004] * 4), "--elastic", "1:4",
                                     "--replacements", 0, "--checkpoint.every-steps", 3)
                self.wait_for_step(run, 2)
                processes = self.worker_processes(process.pid)
                for step, victim in zip(sorted(choose.sample(range(3, 17), 3)), choose.sample(range(4), 3)):
                    self.wait_for_step(run, step)
                    os.kill(processes[victim], signal.SIGKILL)
                output = process.communicate(timeout=120)[0]
                self.assertEqual(process.returncode, 0, output)
                self.assert_as_one_worker(run)

    def test_a_worker_ends_at_any_point_of_a_step(self):
        self.train("one", *self.double, "--workers", 1)
        self.end_at_points_of_a_step()

    def test_a_worker_that_is_stuck_is_put_out_although_it_gives_signs_of_life(self):
        self.train("one", *self.double, "--workers", 1)
        for rank, point in ((0, "forward"), (2, "backward")):
            with self.subTest(rank=rank):
                run, faults = f"run-{rank}", self.folder / f"faults-{rank}"
                faults.mkdir()
                process = self.start(run, *self.double, "--cluster", self.cluster([0.003] * 3), "--elastic", "1:3",
                                     "--replacements", 0, "--deadline.progress", "1 s",
                                     environment={"MOTLEY_FAULTS": str(faults)})
                self.wait_for_step(run, 3)
                self.ask_for_fault(faults, f"{rank}.{point}", "hang")
                output = process.communicate(timeout=120)[0]
                self.assertEqual(process.returncode, 0, output)
                self.assertIn(f"rank {rank} was lost", output)
                self.assert_as_one_worker(run)

    def test_a_worker_that_is_stopped_in_a_copy_into_gradients_is_dead_before_the_others_go_on(self):
        self.train("one", *self.double, "--workers", 1)
        for victim in (0, 2):
            with self.subTest(victim=victim):
                run, faults = f"run-{victim}", self.folder / f"faults-{victim}"
                faults.mkdir()
                # The last to come sums the most.
                paces = [0.004 if rank == victim else 0.001 for rank in range(3)]
                process = self.start(run, *self.double, "--cluster", self.cluster(paces), "--elastic", "1:3",
                                     "--batch-split.mode", "equal", "--replacements", 0, "--gradient-sync.method",
                                     "shared-memory", environment={"MOTLEY_FAULTS": str(faults)})
                self.wait_for_step(run, 3)
                worker = self.worker_processes(process.pid)[victim]
                self.ask_for_fault(faults, f"{victim}.reducing", "stop")
                self.wait_for_event(run, "lost")  # written in the next epoch
                self.assert_has_ended(worker)
                output = process.communicate(timeout=120)[0]
                self.assertEqual(process.returncode, 0, output)
                self.assertEqual(os.listdir(faults), [])
                self.assert_as_one_worker(run)

    def leave(self, run, leavers, expect):
        """Four workers, some of which get notice; returns the output."""
        process = self.start(run, *self.double, "--cluster", self.cluster([0.004] * 4), "--elastic", "1:4")
        self.wait_for_step(run, 5)
        processes = self.worker_processes(process.pid)
        for rank in leavers:
            os.kill(processes[rank], signal.SIGTERM)
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, expect, output)
        return output

    def test_a_worker_that_gets_notice_leaves_after_its_step(self):
        self.train("one", *self.double, "--workers", 1)
        for run, leavers in (("last", [3]), ("first", [0]), ("two", [0, 2])):
            with self.subTest(run):
                output = self.leave(run, leavers, 0)
                self.assertIn("left", output)
                self.assertNotIn("lost", output)
                self.assert_as_one_worker(run)
                last = [line["samples"] for line in self.lines(run) if "loss" in line][-1]
                self.assertEqual([rank for rank in range(4) if last[rank] == 0], leavers)

    def test_a_job_that_has_lost_a_worker_stops_as_asked(self):
        process = self.start("run", *self.double, "--cluster", self.cluster([0.001] * 3), "--elastic", "1:3",
                             "--replacements", 0, "--epochs", 100)
        self.wait_for_step("run", 3)
        os.kill(self.worker_processes(process.pid)[1], signal.SIGKILL)
        self.wait_for_step("run", max(self.losses("run")) + 3)
        interrupt(process)
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 130, output)
        self.assertIn("--resume", output)

    def test_where_all_get_notice_a_checkpoint_is_left(self):
        self.train("one", *self.double, "--workers", 1)
        self.leave("run", range(4), 130)
        self.train("run", *self.double, "--workers", 2, "--resume")
        self.assert_as_one_worker("run")

    def test_others_take_the_places_of_those_who_are_lost(self):
        self.train("one", *self.double, "--workers", 1, "--epochs", 30)
        for run, method, victims in (
            ("first", "shared-memory", [0]),
            ("last", "tcp-ring", [3]),
            ("two", "shared-memory", [0, 2]),
            ("all-but-one", "tcp-ring", [0, 1, 3]),
        ):
            with self.subTest(run):
                output = self.lose(run, "--epochs", 30, "--elastic", "1:4", "--replacements", 3,
                                   "--gradient-sync.method", method, victims=victims)
                self.assertIn("4 of 4 workers go on", output)
                self.assert_as_one_worker(run, steps=300)
                last = [line["samples"] for line in self.lines(run) if "loss" in line][-1]
                self.assertNotIn(0, last)
                self.assertEqual([name for name in os.listdir(self.folder / run) if "rendezvous" in name], [])

    def test_the_timeline_shows_who_came_and_went_and_what_the_lost_had_done(self):
        process = self.start("run", *self.double, "--cluster", self.cluster([0.001] * 3), "--elastic", "1:3", "--epochs", 1000,
                             "--replacements", 1, "--checkpoint.every-steps", 4)
        self.wait_for_step("run", 6)
        first = self.worker_processes(process.pid)
        os.kill(first[1], signal.SIGKILL)
        self.wait_for_change("run", "rank 1 has joined")
        self.wait_for_share("run", 1)
        os.kill(first[2], signal.SIGKILL)
        self.wait_for_change("run", "rank 2 was lost")
        self.wait_for_step("run", max(self.losses("run")) + 5)
        interrupt(process)
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 130, output)
        events = json.loads((self.folder / "run/timeline.json").read_text())["traceEvents"]
        changes = [event["name"] for event in events if event["ph"] == "i"]
        self.assertEqual(changes, ["rank 1 was lost", "rank 1 has joined", "rank 2 was lost"])
        steps = {rank: {event["args"]["step"] for event in events if event["ph"] == "X" and event["pid"] == rank} for rank in range(3)}
        self.assertIn(4, steps[2])
        self.assertLessEqual({1, 2, 3, 4}, steps[1])  # of the one that was killed
        self.assertEqual(max(steps[0]), max(steps[1]))
        self.assertLess(max(steps[2]), max(steps[0]))

    def test_a_newcomer_that_is_stopped_before_it_has_joined_gives_way_to_another_one(self):
        self.train("one", *self.double, "--workers", 1)
        faults = self.folder / "faults"
        faults.mkdir()
        (faults / "1.forward").write_text("kill")
        (faults / "1.joining").write_text("stop")
        process = self.start("run", *self.double, "--cluster", self.cluster([0.001] * 2), "--elastic", "2:2",
                             "--replacements", 2, environment={"MOTLEY_FAULTS": str(faults)})  # it waits for the second
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertEqual(output.count("killed by signal 9"), 2, output)
        self.assertEqual(os.listdir(faults), [])
        self.assert_as_one_worker("run")

    def test_who_comes_too_late_is_missed_by_nobody(self):
        self.train("one", *self.double, "--workers", 1)
        faults = self.folder / "faults"
        faults.mkdir()
        process = self.start("run", *self.double, "--cluster", self.cluster([0.004] * 4), "--elastic", "1:4", "--replacements", 3,
                             environment={"MOTLEY_FAULTS": str(faults)})
        self.wait_for_step("run", 2)
        late = faults / "1.starting"  # of the one that comes
        late.write_text("wait")
        self.wait_for_step("run", 6)
        os.kill(self.worker_processes(process.pid)[1], signal.SIGKILL)
        self.wait_for_step("run", 20)
        self.wait_until(lambda: len(self.worker_processes(process.pid)) <= 1)  # the late one
        late.unlink()
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assert_as_one_worker("run")
        self.assertIn("rank 1 came too late", (self.folder / "run/logs/rank-1.log").read_text(), output)

    def test_ranks_that_are_started_by_hand_go_on_each_in_its_own_folder(self):
        self.train("one", *self.double, "--workers", 1)
        ranks, _ = self.by_hand(29561, 0.002, 2)
        self.wait_for_step("own-0", 5)
        ranks[0].kill()
        for rank in ranks[1:]:
            output = rank.communicate(timeout=120)[0]
            self.assertEqual(rank.returncode, 0, output)
        self.assertLess(relative_difference(self.weights("one"), self.weights("own-1")), 1e-9)
        self.assertEqual(self.not_used_once("own-1"), 0)
        # The second rank's lines begin where the first one's end, or with the last step that both have done.
        before, after = self.losses("own-0"), self.losses("own-1")
        self.assertEqual(set(before) | set(after), set(range(1, 21)))
        self.assertEqual(json.loads((self.folder / "own-1/run.json").read_text())["exit"], "done")
        self.assertIn("Who came and went", (self.folder / "own-1/report.html").read_text())
        self.assertEqual(sorted(after), list(range(min(after), 21)))

    def test_who_takes_over_in_its_own_folder_takes_nothing_of_an_earlier_run_there(self):
        slower = ("--optimizer.learning-rate", 0.02)
        self.train("one", *self.double, "--workers", 1, *slower)
        for port, flags in ((29601, ()), (29602, (*slower, "--overwrite"))):
            shutil.rmtree(self.folder / "own-0", ignore_errors=True)
            ranks, _ = self.by_hand(port, 0.002, 2, *flags)
            self.wait_for_step("own-0", 5)
            ranks[0].kill()
            ranks[0].wait()
            for rank in ranks[1:]:
                output = rank.communicate(timeout=120)[0]
                self.assertEqual(rank.returncode, 0, output)
        self.assertLess(relative_difference(self.weights("one"), self.weights("own-1")), 1e-9)
        after = self.losses("own-1")
        self.assertEqual(sorted(after), list(range(min(after), 21)))
        told = json.loads((self.folder / "own-1/run.json").read_text())
        self.assertEqual((told["exit"], len(told["attempts"])), ("done", 1))
        self.assertEqual(len(list((self.folder / "own-1").glob("earlier-*/checkpoint"))), 1)

    def test_a_rank_that_is_put_out_leaves_a_common_folder_to_the_others(self):
        apart = self.as_on_another_machine()
        common = self.flags_by_hand(29603, 0.002, 2, "--epochs", 1000, "--deadline.join", "15 s")
        ranks = [self.start("run", *common, "--rank", rank) for rank in (0, 1)]
        other = self.start("run", *common, "--rank", 2, within=apart)
        self.wait_for_step("run", 5)
        (worker,) = children(other.pid, "train")
        os.kill(worker, signal.SIGSTOP)
        self.wait_for_event("run", "lost")
        os.kill(worker, signal.SIGCONT)
        output = other.communicate(timeout=120)[0]
        self.assertEqual(other.returncode, 1, output)
        told = self.folder / "run/run.json"
        self.assertIsNone(json.loads(told.read_text()).get("exit"), output)
        interrupt(ranks[0])
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [130, 130], outputs)
        self.assertEqual(json.loads(told.read_text())["exit"], "interrupted")

    def test_a_rank_that_is_started_by_hand_leaves_with_an_exit_code_of_its_own(self):
        self.train("one", *self.double, "--workers", 1)
        ranks, _ = self.by_hand(29581, 0.002, 1)
        self.wait_for_step("own-0", 5)
        ranks[1].terminate()
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 143, 0], outputs)
        self.assertIn("as asked; the others go on", outputs[1])
        self.assert_as_one_worker("own-0")

    def test_a_newcomer_that_is_started_by_hand_joins_at_any_rank(self):
        self.train("one", *self.double, "--workers", 1, "--epochs", 100)
        ranks, common = self.by_hand(29571, 0.001, 2, "--epochs", 100)
        self.wait_for_step("own-0", 5)
        ranks[0].kill()
        newcomer = self.start("own-again", *common, "--rank", 0, "--join", self.read_address(ranks[1]))
        outputs = [process.communicate(timeout=120)[0] for process in (ranks[1], ranks[2], newcomer)]
        self.assertEqual([process.returncode for process in (ranks[1], ranks[2], newcomer)], [0, 0, 0], outputs)
        self.assertIn("rank 0 has joined; 3 of 3 workers go on", outputs[0])
        self.assertLess(relative_difference(self.weights("one"), self.weights("own-1")), 1e-9)
        self.assertEqual(self.not_used_once("own-1"), 0)

    def test_joining_is_refused_where_there_is_nothing_to_join(self):
        self.assertIn("--hosts", self.train("refused", "--elastic", "1:2", "--join", "127.0.0.1:1", expect=2))
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1\n127.0.0.1\n")
        output = self.train("refused", "--workers", 2, "--elastic", "1:2", "--hosts", hosts, "--rank", 1, "--join",
                            "nowhere", expect=2)
        self.assertIn("--join: 'nowhere'", output)

    def test_too_few_end_with_a_checkpoint_from_which_it_goes_on(self):
        self.train("one", *self.double, "--workers", 1)
        patience = ("--deadline.join", "20 s")
        output = self.lose("run", "--elastic", "3:4", *patience, victims=[0, 1], expect=1)
        self.assertIn("--resume", output)
        self.train("run", *self.double, "--cluster", self.cluster([0.001] * 4), "--elastic", "3:4", *patience, "--resume")
        self.assert_as_one_worker("run")

    def test_a_job_that_is_not_elastic_ends(self):
        output = self.lose("run", victims=[1], expect=1)
        self.assertIn("rank 1", output.strip().splitlines()[-1])

    def test_what_cannot_be_elastic_is_refused(self):
        served = ("--elastic", "2:4", "--gradient-sync.method", "parameter-server")
        for flags, expected in (
            (("--elastic", "4"), "elastic: '4'; accepted: MIN:MAX"),
            (("--elastic", "0:4"), "accepted: MIN:MAX"),
            (("--elastic", "4:2"), "accepted: MIN:MAX"),
            (("--elastic", "2:4", "--workers", 5), "accepted with elastic 2:4: up to 4"),
            (("--elastic", "2:4", "--workers", 1), "the job has 1 worker;"),
            (("--elastic", "2:4", "--gradient-sync.servers", "127.0.0.1:1"), "gradient_sync.method: auto"),
            ((*served, "--gradient-sync.consistency", "async"), "gradient_sync.consistency: async"),
            ((*served, "--gradient-sync.placement", "colocated"), "gradient_sync.placement: colocated"),
            ((*served, "--gradient-sync.racks", "0,0,1,1", "--gradient-sync.replication", "on"),
             "gradient_sync.replication: on"),
            ((*served, "--gradient-sync.comm-dtype", "int8"), "gradient_sync.comm_dtype: int8"),
            (("--elastic", "2:4", "--batch-split.mode", "work-queue"), "batch_split.mode: work-queue"),
            (("--elastic", "2:4", "--device", "cuda"), "device: cuda"),
        ):
            with self.subTest(flags):
                self.assertIn(expected, self.train("refused", *flags, expect=2))
                self.assertFalse((self.folder / "refused").exists())


class ElasticWithServersRun(ElasticRun):
    def setUp(self):
        super().setUp()
        self.double = ("--model.dropout", 0.2)
        self.tolerance = 2e-6
        self.own = ("--gradient-sync.method", "parameter-server")

    def lost_servers(self, run):
        return [line["text"] for line in self.lines(run) if line.get("event") == "server-lost"]


class ElasticWithServers(ElasticWithServersRun):
    """The same where parameter servers take the optimizer's step, on weights of float32."""

    def test_whoever_is_lost_the_result_is_that_of_one_worker(self):
        self.train("one", *self.double, "--workers", 1)
        _, two = self.start_servers(2)
        for run, flags, victims, how in (
            ("first", self.own, [0], signal.SIGKILL),
            ("last", two, [3], signal.SIGKILL),
            ("two", self.own, [1, 2], signal.SIGKILL),
            ("all-but-one", two, [0, 1, 3], signal.SIGKILL),
            ("stopped", self.own, [2], signal.SIGSTOP),
            ("stopped-first", two, [0], signal.SIGSTOP),
        ):
            with self.subTest(run):
                output = self.lose(run, "--elastic", "1:4", *flags, victims=victims, how=how)
                self.assertIn(f"{4 - len(victims)} of 4 workers go on", output)
                self.assert_as_one_worker(run)

    def test_one_after_the_other_at_any_moment(self):
        adam = ("--optimizer.name", "adamw", "--optimizer.learning-rate", 0.001, "--optimizer.momentum", 0)
        self.train("one", *self.double, "--workers", 1, *adam)
        _, two = self.start_servers(2)
        choose = random.Random(6)
        for round, flags in enumerate((self.own, two, two)):
            run = f"round-{round}"
            with self.subTest(run):
                process = self.start(run, *self.double, "--cluster", self.cluster([0.004] * 4), "--elastic", "1:4",
                                     "--replacements", 0, "--checkpoint.every-steps", 3, *adam, *flags)
                self.wait_for_step(run, 2)
                processes = self.worker_processes(process.pid)
                for step, victim in zip(sorted(choose.sample(range(3, 17), 3)), choose.sample(range(4), 3)):
                    self.wait_for_step(run, step)
                    os.kill(processes[victim], signal.SIGKILL)
                output = process.communicate(timeout=120)[0]
                self.assertEqual(process.returncode, 0, output)
                self.assert_as_one_worker(run)

    def test_others_take_the_places_of_those_who_are_lost(self):
        self.train("one", *self.double, "--workers", 1, "--epochs", 30)
        _, two = self.start_servers(2)
        for run, flags, victims in (("first", self.own, [0]), ("two", two, [0, 2])):
            with self.subTest(run):
                output = self.lose(run, "--epochs", 30, "--elastic", "1:4", "--replacements", 3, *flags, victims=victims)
                self.assertIn("4 of 4 workers go on", output)
                self.assert_as_one_worker(run, steps=300)

    def test_too_few_end_with_a_checkpoint_from_which_it_goes_on(self):
        self.train("one", *self.double, "--workers", 1)
        _, two = self.start_servers(2)
        output = self.lose("run", "--elastic", "3:4", "--deadline.join", "20 s", *two, victims=[0, 1], expect=1)
        self.assertIn("--resume", output)
        self.train("run", *self.double, "--cluster", self.cluster([0.001] * 4), "--elastic", "3:4", "--deadline.join", "20 s",
                   "--resume", *two)
        self.assert_as_one_worker("run")

    def lose_server(self, run, how, *flags):
        """Runs with the launcher's server lost after a step; returns the output."""
        process = self.start(run, *self.double, "--cluster", self.cluster([0.004] * 3), "--elastic", "2:3", *self.own,
                             *flags)
        self.wait_for_step(run, 5)
        (server,) = children(process.pid, "server")
        os.kill(server, how)
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertIn("another one takes its place", output)
        (text,) = self.lost_servers(run)
        self.assertIn("has the weights from the workers", text)
        return text

    def test_another_server_has_the_weights_from_the_workers(self):
        plain = ("--optimizer.momentum", 0)
        self.train("one", *self.double, "--workers", 1, *plain)
        for how in (signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(how):
                self.lose_server(how.name, how, *plain)
                self.assert_as_one_worker(how.name)

    def test_and_the_optimizers_state_of_the_last_checkpoint(self):
        text = self.lose_server("run", signal.SIGKILL, "--checkpoint.every-steps", 4)
        self.assertIn("of the checkpoint of step", text)
        self.assertEqual(self.not_used_once("run"), 0)

    def test_of_servers_that_keep_each_others_state_one_may_be_lost(self):
        self.train("one", *self.double, "--workers", 1)
        for run, count, victim, how in (
            ("first", 2, 0, signal.SIGKILL),
            ("last", 3, 2, signal.SIGKILL),
            ("stopped", 2, 1, signal.SIGSTOP),
        ):
            with self.subTest(run):
                servers, flags = self.start_servers(count)
                process = self.start(run, *self.double, "--cluster", self.cluster([0.004] * 3), "--elastic", "2:3",
                                     "--gradient-sync.replication", "on", *flags)
                self.wait_for_step(run, 5)
                servers[victim].send_signal(how)
                if how == signal.SIGSTOP:  # it wakes up once the others go on without it
                    self.wait_for_event(run, "server-lost")
                    servers[victim].send_signal(signal.SIGCONT)
                output = process.communicate(timeout=120)[0]
                self.assertEqual(process.returncode, 0, output)
                (text,) = self.lost_servers(run)
                self.assertIn("the next one has kept its weights", text)
                self.assert_as_one_worker(run)

    def test_a_server_that_is_stuck_is_lost_although_it_answers(self):
        self.train("one", *self.double, "--workers", 1)
        faults = self.folder / "faults"
        faults.mkdir()
        servers, flags = self.start_servers(2, faults)
        process = self.start("run", *self.double, "--cluster", self.cluster([0.004] * 3), "--elastic", "2:3",
                             "--gradient-sync.replication", "on", "--gradient-sync.chunk-size", "64B",
                             "--deadline.progress", "2 s", *flags)
        self.wait_for_step("run", 5)
        self.ask_for_fault(faults, "0.updating", "hang")
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertEqual(os.listdir(faults), [])
        where = (self.folder / "address-1").read_text().strip()
        self.assertIn(f"the server at {where} was lost: it has made no progress for ", output)
        (text,) = self.lost_servers("run")
        self.assertIn(f"the server at {where} was lost: the next one has kept its weights", text)
        self.assertIsNone(servers[1].poll())
        self.assert_as_one_worker("run")

    def test_one_of_the_launchers_gives_way_to_another_one(self):
        plain = ("--optimizer.momentum", 0)
        self.train("one", *self.double, "--workers", 1, *plain)
        faults = self.folder / "faults"
        faults.mkdir()
        process = self.start("run", *self.double, *plain, "--cluster", self.cluster([0.004] * 3), "--elastic", "2:3",
                             "--gradient-sync.chunk-size", "64B", "--deadline.progress", "2 s", *self.own,
                             environment={"MOTLEY_FAULTS": str(faults)})
        self.wait_for_step("run", 5)
        self.ask_for_fault(faults, "0.updating", "hang")
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertIn("was lost: it has made no progress for ", output)
        self.assertIn("another one takes its place", output)
        (text,) = self.lost_servers("run")
        self.assertIn("has the weights from the workers", text)
        self.assert_as_one_worker("run")

    def test_what_a_server_writes_that_was_stopped_in_an_update_is_not_used(self):
        self.train("one", *self.double, "--workers", 1)
        for run, count in (("channels", 2), ("memory", 1)):
            with self.subTest(run):
                faults, of_server = self.folder / f"faults-{run}", self.folder / f"faults-of-server-{run}"
                faults.mkdir()
                of_server.mkdir()
                servers, flags = self.start_servers(count, of_server)
                process = self.start(run, *self.double, "--cluster", self.cluster([0.004] * 3), "--elastic", "2:3",
                                     "--gradient-sync.replication", "on", "--gradient-sync.chunk-size", "64B", *flags,
                                     environment={"MOTLEY_FAULTS": str(faults)})
                self.wait_for_step(run, 5)
                # Where it is in a worker's way, it wakes up in the next epoch, whose ranks join it again.
                self.ask_for_fault(faults, "0.joining-servers", f"continue {servers[-1].pid}")
                self.ask_for_fault(of_server, "0.updating", "stop")
                output = process.communicate(timeout=120)[0]
                self.assertEqual(process.returncode, 0, output)
                self.assertEqual((os.listdir(faults), os.listdir(of_server)), ([], []))
                self.assertTrue(self.lost_servers(run), output)
                self.assert_as_one_worker(run)

    def test_a_server_of_the_launchers_that_is_stopped_in_an_update_is_dead_before_the_workers_go_on(self):
        plain = ("--optimizer.momentum", 0)
        self.train("one", *self.double, "--workers", 1, *plain)
        faults = self.folder / "faults"
        faults.mkdir()
        process = self.start("run", *self.double, *plain, "--cluster", self.cluster([0.004] * 3), "--elastic", "2:3",
                             "--gradient-sync.chunk-size", "64B", *self.own, environment={"MOTLEY_FAULTS": str(faults)})
        self.wait_for_step("run", 5)
        (server,) = children(process.pid, "server")
        self.ask_for_fault(faults, "0.updating", "stop")
        self.wait_for_event("run", "server-lost")
        self.assert_has_ended(server)
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assert_as_one_worker("run")

    def test_what_a_worker_pushes_that_was_stopped_in_a_push_is_not_used(self):
        # To the others it is on another machine, where they cannot kill it; its process is not the first one there,
        # which could not be stopped.
        apart = ("unshare", "--pid", "--mount-proc", "--fork", "--kill-child=KILL", "sh", "-c", '"$@"; exit $?', "sh")
        if not shutil.which("unshare") or subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
            self.skipTest("a process-number space of its own needs root")
        self.train("one", *self.double, "--workers", 1)
        faults = self.folder / "faults"
        faults.mkdir()
        _, flags = self.start_servers(2)
        common = self.flags_by_hand(29605, 0.002, 2, "--gradient-sync.chunk-size", "1KB", "--deadline.join", "30 s", *flags)
        ranks = [self.start(f"own-{rank}", *common, "--rank", rank) for rank in (0, 1)]
        other = subprocess.Popen([*apart, *self.command("own-2", *common, "--rank", 2)], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, env={**os.environ, "MOTLEY_FAULTS": str(faults)})
        self.addCleanup(other.stdout.close)
        self.addCleanup(other.kill)
        self.wait_for_step("own-0", 5)
        (shell,) = children(other.pid, "sh")
        (worker,) = children(shell, "train")
        self.ask_for_fault(faults, "2.pushing", "stop")
        self.wait_for_event("own-0", "lost")
        os.kill(worker, signal.SIGCONT)
        output = other.communicate(timeout=120)[0]
        self.assertEqual(other.returncode, 1, output)
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
        self.assertEqual(os.listdir(faults), [])
        self.assert_as_one_worker("own-0")

    def test_a_worker_and_a_server_are_lost_at_once(self):
        self.train("one", *self.double, "--workers", 1)
        servers, flags = self.start_servers(2)
        process = self.start("run", *self.double, "--cluster", self.cluster([0.004] * 3), "--elastic", "1:3",
                             "--replacements", 0, "--gradient-sync.replication", "on", *flags)
        self.wait_for_step("run", 5)
        worker = self.worker_processes(process.pid)[0]
        servers[0].kill()
        os.kill(worker, signal.SIGKILL)
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assert_as_one_worker("run")

    def test_a_server_is_lost_while_a_worker_joins(self):
        self.train("one", *self.double, "--workers", 1)
        servers, flags = self.start_servers(2)
        faults = self.folder / "faults"
        faults.mkdir()
        (faults / "1.forward").write_text("kill")
        (faults / "1.joining").write_text(f"kill {servers[0].pid}")
        process = self.start("run", *self.double, "--cluster", self.cluster([0.001] * 3), "--elastic", "3:3",
                             "--replacements", 1, "--gradient-sync.replication", "on", *flags,
                             environment={"MOTLEY_FAULTS": str(faults)})  # it waits for the newcomer
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertEqual(os.listdir(faults), [])
        self.assertEqual(len(self.lost_servers("run")), 1, output)
        self.assert_as_one_worker("run")

    def test_where_servers_only_add_up_the_workers_take_the_step(self):
        clipped = ("--max-grad-norm", 0.5)
        self.train("one", *self.double, "--workers", 1, *clipped)
        self.lose("run", "--elastic", "1:4", *self.own, *clipped, victims=[0])
        self.assert_as_one_worker("run")


class ElasticWithRacks(ElasticWithServersRun):
    """The same where each rack has a server, which adds up what its workers push and meets the other one."""

    def setUp(self):
        super().setUp()
        self.servers, self.own = self.start_servers(2)

    def in_racks(self, racks, placement="hierarchical"):
        return (*self.own, "--gradient-sync.placement", placement, "--gradient-sync.racks", racks)

    def test_whoever_is_lost_the_result_is_that_of_one_worker(self):
        self.train("one", *self.double, "--workers", 1)
        for run, racks, victims, how in (
            ("last", "0,0,1,1", [3], signal.SIGKILL),
            ("first", "1,1,0,0", [0], signal.SIGKILL),
            ("last-in-its-rack", "0,0,0,1", [3], signal.SIGKILL),
            ("first-in-its-rack", "1,0,0,0", [0], signal.SIGKILL),
            ("a-rack", "0,1,1,0", [1, 2], signal.SIGKILL),
            ("stopped", "0,0,1,1", [2], signal.SIGSTOP),
        ):
            with self.subTest(run):
                output = self.lose(run, "--elastic", "1:4", *self.in_racks(racks), victims=victims, how=how)
                self.assertIn(f"{4 - len(victims)} of 4 workers go on", output)
                self.assert_as_one_worker(run)
                self.assertEqual(self.lost_servers(run), [])

    def test_workers_end_at_any_point_of_a_step(self):
        adam = ("--optimizer.name", "adamw", "--optimizer.learning-rate", 0.001, "--optimizer.momentum", 0)
        self.train("one", *self.double, "--workers", 1, *adam)
        for run in self.end_at_points_of_a_step(*adam, *self.in_racks("0,1,1,1")):
            self.assertEqual(self.lost_servers(run), [])

    def test_others_take_the_places_of_those_who_are_lost(self):
        self.train("one", *self.double, "--workers", 1, "--epochs", 30)
        for run, racks, victims, placement in (
            ("first", "1,0,0,1", [0], "hierarchical"),
            ("a-rack", "0,0,0,1", [3], "hierarchical"),
            ("measured", "0,1,1,0", [1], "auto"),  # newcomers take what the others found
        ):
            with self.subTest(run):
                output = self.lose(run, "--epochs", 30, "--elastic", "1:4", "--replacements", 3,
                                   *self.in_racks(racks, placement), victims=victims)
                self.assertIn("4 of 4 workers go on", output)
                self.assert_as_one_worker(run, steps=300)
                last = [line["samples"] for line in self.lines(run) if "loss" in line][-1]
                self.assertNotIn(0, last)
                self.assertEqual(self.lost_servers(run), [])

    def test_too_few_end_with_a_checkpoint_from_which_it_goes_on(self):
        self.train("one", *self.double, "--workers", 1)
        racks = ("--deadline.join", "20 s", *self.in_racks("0,0,1,1"))
        output = self.lose("run", "--elastic", "3:4", *racks, victims=[0, 3], expect=1)
        self.assertIn("--resume", output)
        self.train("run", *self.double, "--cluster", self.cluster([0.001] * 4), "--elastic", "3:4", "--resume", *racks)
        self.assert_as_one_worker("run")

    def test_a_rack_keeps_its_state_where_its_last_worker_leaves(self):
        self.train("one", *self.double, "--workers", 1)
        process = self.start("run", *self.double, "--cluster", self.cluster([0.003] * 3), "--elastic", "1:3",
                             *self.in_racks("0,0,1"))
        self.wait_for_step("run", 5)
        os.kill(self.worker_processes(process.pid)[2], signal.SIGTERM)
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertIn("rank 2 has left", output)
        self.assert_as_one_worker("run")
        self.assertEqual(self.lost_servers("run"), [])

    def lose_server(self, run, index, racks, *flags, victims=()):
        """Runs with a rack's server killed after a step, and another one started in its place; returns the event's text."""
        process = self.start(run, *self.double, "--cluster", self.cluster([0.004] * 3), "--elastic", "1:3",
                             "--replacements", 0, *self.in_racks(racks), *flags)
        self.wait_for_step(run, 5)
        processes = self.worker_processes(process.pid)
        for victim in victims:
            os.kill(processes[victim], signal.SIGKILL)
            self.wait_for_event(run, "lost")
        self.servers[index].kill()
        self.servers[index].wait()
        address = self.folder / f"address-{index}"
        self.servers[index] = self.start_parameter_server(address, address.read_text().strip())
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, output)
        (text,) = self.lost_servers(run)
        self.assertIn(address.read_text().strip(), text)
        self.assertIn("has the weights from the workers", text)
        return text

    def test_another_server_in_a_rack_has_the_weights_from_the_workers(self):
        plain = ("--optimizer.momentum", 0)
        self.train("one", *self.double, "--workers", 1, *plain)
        for run, index, victims in (("first", 0, []), ("last", 1, []), ("without-workers", 1, [2])):
            with self.subTest(run):
                self.lose_server(run, index, "0,0,1", *plain, victims=victims)
                self.assert_as_one_worker(run)

    def test_and_its_part_of_the_optimizers_state_of_the_last_checkpoint(self):
        text = self.lose_server("run", 1, "0,0,1", "--checkpoint.every-steps", 4)
        self.assertIn("of the checkpoint of step", text)
        self.assertEqual(self.not_used_once("run"), 0)

    def test_where_no_other_server_comes_the_job_ends_and_names_it(self):
        for run, index, victims, how in (
            ("killed", 1, [], signal.SIGKILL),
            ("stopped-without-workers", 1, [2], signal.SIGSTOP),
        ):
            with self.subTest(run):
                self.servers, self.own = self.start_servers(2)
                process = self.start(run, *self.double, "--cluster", self.cluster([0.001] * 3), "--elastic", "1:3",
                                     "--replacements", 0, "--epochs", 1000, "--deadline.join", "15 s",
                                     "--checkpoint.every-steps", 4, *self.in_racks("0,0,1"))
                self.wait_for_step(run, 5)
                processes = self.worker_processes(process.pid)
                for victim in victims:
                    os.kill(processes[victim], signal.SIGKILL)
                    self.wait_for_event(run, "lost")
                self.servers[index].send_signal(how)
                output = process.communicate(timeout=120)[0]
                self.assertEqual(process.returncode, 1, output)
                where = (self.folder / f"address-{index}").read_text().strip()
                self.assertIn(f"nobody let this rank in at {where}", output)


if __name__ == "__main__":
    unittest.main()
