"""What a running server tells: its metrics, read by Prometheus' own parser, tenants, and the balance of a machine."""

import json
import os
import re
import signal
import subprocess
import time
import unittest
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from harness import BINARY, Scenario


def scrape(address, token=None):
    """The families of one scrape, by name; every one must have its help and type."""
    request = urllib.request.Request(f"http://{address}/metrics")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for family in families.values():
        assert family.type in ("counter", "gauge", "histogram"), family
        assert family.documentation, family
    assert text.count("# HELP ") == text.count("# TYPE ") == len(families)
    return families


def values(families, name, **labels):
    """The samples of a name that have these labels."""
    return [sample.value for family in families.values() for sample in family.samples
            if sample.name == f"motley_server_{name}" and labels.items() <= sample.labels.items()]


class Monitoring(Scenario):
    def private_file(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    def serve(self, *flags):
        """A server's process, its address and that of its metrics; its log goes to a file."""
        address = self.folder / "address"
        self.log = self.folder / "server.log"
        with self.log.open("w") as log:
            server = subprocess.Popen([BINARY, "server", "--listen", "127.0.0.1:0", "--address-file", address,
                                       "--metrics", "127.0.0.1:0", *map(str, flags)], stdout=log, stderr=log)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        metrics = self.wait_for_log(r"metrics at http://(\S+)/metrics")
        self.wait_for_log("listening at")  # said once the file is there
        return server, address.read_text().strip(), metrics.group(1)

    def wait_for_log(self, pattern, seconds=120):
        deadline = time.monotonic() + seconds
        while True:
            found = re.search(pattern, self.log.read_text())
            if found:
                return found
            self.assertLess(time.monotonic(), deadline, self.log.read_text())
            time.sleep(0.02)

    def stall(self, sleeper, pattern, naps=20):
        """Stops a rank until the log says that it is waited for. One that is stopped at the end of an epoch is missed
        by the other ranks and not by the server: it wakes, and sleeps at another moment."""
        for _ in range(naps):
            os.kill(sleeper, signal.SIGSTOP)
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                found = re.search(pattern, self.log.read_text())
                if found:
                    return found
                time.sleep(0.02)
            os.kill(sleeper, signal.SIGCONT)
            time.sleep(0.1)
        self.fail(self.log.read_text())

    def wait_for_sample(self, metrics, holds, seconds=60):
        deadline = time.monotonic() + seconds
        while True:
            families = scrape(metrics)
            if holds(families):
                return families
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def test_a_jobs_metrics_while_a_rank_sleeps(self):
        token = self.private_file("token", "a token that nobody guesses\n")
        _, address, metrics = self.serve("--token-file", token, "--stall-timeout", "1s")
        served = ("--gradient-sync.method", "parameter-server", "--gradient-sync.servers", address, "--gradient-sync.token-file", token,
                  "--cluster", self.cluster([0.001, 0.001]), "--batch-split.mode", "equal", "--epochs", 500,
                  "--deadline.step", "60 s")
        job = self.start("run", *served)
        ours = {"tenant": "local", "job": "scenario"}
        first = self.wait_for_sample(metrics, lambda f: any(v > 20 for v in values(f, "segments_total", **ours)))
        second = self.wait_for_sample(
            metrics, lambda f: values(f, "segments_total", **ours) > values(first, "segments_total", **ours))
        for name, family in second.items():
            if family.type == "gauge":
                continue
            before = {(s.name, tuple(s.labels.items())): s.value for s in first[name].samples}
            for sample in family.samples:
                self.assertGreaterEqual(sample.value, before.get((sample.name, tuple(sample.labels.items())), 0), sample)

        buckets = [s for s in second["motley_server_segment_latency_seconds"].samples if s.name.endswith("_bucket")]
        bounds = [float(s.labels["le"]) for s in buckets]
        self.assertEqual(bounds, sorted(bounds))
        self.assertEqual(bounds[-1], float("inf"))
        counts = [s.value for s in buckets]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(counts[-1:], values(second, "segment_latency_seconds_count", **ours))
        (seconds,) = values(second, "segment_latency_seconds_sum", **ours)
        highest = [float(s.labels["le"]) for s, below in zip(buckets, [0] + counts) if s.value > below][-1]
        self.assertGreater(seconds, 0)
        self.assertLessEqual(seconds, counts[-1] * highest)
        self.assertEqual(values(second, "job_ranks", **ours), [2])
        self.assertEqual(values(second, "staleness_steps", **ours), [0])
        self.assertGreater(values(second, "job_memory_bytes", **ours)[0], 0)
        self.assertGreaterEqual(values(second, "core_imbalance")[0], 1)
        self.assertGreaterEqual(values(second, "map_imbalance", **ours)[0], 1)
        self.assertGreater(values(second, "aggregated_bytes_total", **ours)[0], 0)

        sleeper = self.worker_processes(job.pid)[1]
        last = values(scrape(metrics), "rank_last_total", **ours, rank="1")
        printed = self.stall(sleeper, r"job 'local/scenario' has stood still for .* at step \d+, bucket \d+: nothing comes from rank 1\n")
        stalled = scrape(metrics)
        self.assertGreaterEqual(values(stalled, "stall_seconds", **ours)[0], 1)
        self.assertEqual(values(stalled, "missing_rank", **ours, rank="1"), [1])
        self.assertEqual(values(stalled, "missing_rank", **ours, rank="0"), [])
        # A stall is told of once, however long it goes on.
        self.wait_for_sample(metrics, lambda f: any(v > 2.5 for v in values(f, "stall_seconds", **ours)))
        os.kill(sleeper, signal.SIGCONT)
        after = self.wait_for_sample(metrics, lambda f: values(f, "stall_seconds", **ours) == [0])
        where = re.search(r"at step \d+, bucket \d+:", printed.group(0))[0]
        self.assertEqual(self.log.read_text().count(where), 1, printed.group(0))
        self.assertGreater(values(after, "rank_last_total", **ours, rank="1"), last)
        self.assertGreater(values(after, "rank_waited_seconds_total", **ours, rank="1")[0], 2)
        os.kill(job.pid, signal.SIGINT)
        job.communicate(timeout=60)
        ended = self.wait_for_sample(metrics, lambda f: values(f, "jobs") == [0])
        self.assertEqual(values(ended, "segments_total"), [])
        self.assertEqual(sum(values(ended, "jobs_ended_total")), 1)

    def test_metrics_are_closed_to_others(self):
        token = self.private_file("token", "a token that nobody guesses\n")
        shown = self.private_file("shown", "a token that the scraper shows\n")
        command = [BINARY, "server", "--listen", "127.0.0.1:0", "--token-file", token, "--metrics", "0.0.0.0:0"]
        refused = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30)
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertIn("token", refused.stdout)
        _, _, metrics = self.serve("--token-file", token, "--metrics-token-file", shown)
        with self.assertRaises(urllib.error.HTTPError) as error:
            scrape(metrics)
        self.assertEqual(error.exception.code, 401)
        error.exception.close()
        self.assertEqual(values(scrape(metrics, "a token that the scraper shows"), "jobs"), [0])

    def test_limits_that_are_none_are_refused(self):
        token = self.private_file("token", "a token that nobody guesses\n")
        tenants = "tenants:\n  - {name: a, token: 0123456789abcdef, quota: 1e40 GB}\n"
        for flags, word in ((("--quota", "nan"), "quota"), (("--quota", "1e300GB"), "quota"), (("--quota", "0.1B"), "quota"), (("--quota", "2"), "size"),
                            (("--stall-timeout", "nan"), "stall-timeout"), (("--embedding-dir", "/proc/nope"), "/proc/nope"),
                            (("--tenants", self.private_file("tenants.yaml", tenants)), "quota")):
            with self.subTest(flags):
                known = [] if flags[0] == "--tenants" else ["--token-file", token]
                command = [BINARY, "server", "--listen", "127.0.0.1:0", *known, *flags]
                refused = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30)
                self.assertEqual(refused.returncode, 2, refused.stdout)
                self.assertIn(word, refused.stdout)

    def test_tenants_train_each_with_its_own_token(self):
        vision = self.private_file("vision.token", "the token of vision, which is long\n")
        speech = self.private_file("speech.token", "the token of speech, which is long\n")
        tenants = self.private_file("tenants.yaml", "tenants:\n  - {name: vision, token_file: vision.token, share: 2}\n"
                                                    "  - {name: speech, token_file: speech.token, quota: 1 KB}\n")
        _, address, metrics = self.serve("--tenants", tenants)
        served = ("--gradient-sync.method", "parameter-server", "--gradient-sync.servers", address, "--workers", 2)
        self.train("one", *served, "--gradient-sync.tenant", "vision", "--gradient-sync.token-file", vision)
        output = self.train("two", *served, "--gradient-sync.tenant", "vision", "--gradient-sync.token-file", speech, expect=1)
        self.assertIn("secret differs", output)
        output = self.train("three", *served, "--gradient-sync.token-file", vision, expect=1)  # no tenant of that name
        self.assertIn("secret differs", output)
        output = self.train("four", *served, "--gradient-sync.tenant", "speech", "--gradient-sync.token-file", speech, expect=1)
        self.assertIn("the quota of tenant 'speech'", output)
        families = scrape(metrics)
        self.assertGreaterEqual(values(families, "refused_connections_total", where="handshake")[0], 2)
        self.assertEqual(values(families, "tenant_share", tenant="vision"), [2])

    def test_how_many_workers_this_machine_could_serve(self):
        def check(*flags):
            done = subprocess.run([BINARY, "check", *map(str, flags)], stdout=subprocess.PIPE, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stdout)
            return done.stdout

        answer = json.loads(check("--server", "--model", "resnet50", "--link-bandwidth", "1Mbps", "--json"))["server"]
        self.assertEqual(answer["runs_out_first"], "link")
        self.assertEqual(answer["workers"], 0)
        for resource in answer["resources"]:
            need = resource["needed_for_all"] + resource["workers"] * resource["needed_for_each_worker"]
            self.assertAlmostEqual(need / resource["available"], 1, places=6)
        text = check("--racks", 4, "--workers-per-rack", 8, "--model", "alexnet")
        for word in ("flat", "rack", "switches", "fastest"):
            self.assertIn(word, text)


if __name__ == "__main__":
    unittest.main()
