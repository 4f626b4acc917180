"""Jobs over a network that loses packets, falls silent or breaks connections: late is not lost, and who is lost is named."""

import subprocess
import unittest

from elastic import ElasticRun
from harness import BINARY
from lossy_network import LossyNetwork, why_not

PORT = 29400
RING = ("--gradient-sync.method", "tcp-ring")


@unittest.skipIf(why_not(), why_not())
class LossyLinks(ElasticRun):
    def network(self, hosts, seed, **more):
        network = LossyNetwork(hosts, seed, **more)
        self.addCleanup(network.close)
        return network

    def secret(self, name="secret"):
        secret = self.folder / name
        secret.write_text("0123456789abcdef0123456789abcdef")
        secret.chmod(0o600)
        return secret

    def start_on(self, network, host, words):
        process = subprocess.Popen([*network.prefix(host), *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def start_ranks(self, network, count, name, *flags, pace=0.002):
        """A rank on each of the first hosts, in a folder of its own, which is named NAME-RANK."""
        hosts = self.folder / "hosts"
        hosts.write_text("".join(f"{network.address(rank)}:{PORT}\n" for rank in range(count)))
        common = (*self.double, "--cluster", self.cluster([pace] * count), "--hosts", hosts, "--secret-file", self.secret(), *flags)
        return [self.start_on(network, rank, self.command(f"{name}-{rank}", *common, "--rank", rank)) for rank in range(count)]

    def end(self, processes, codes):
        outputs = [process.communicate(timeout=170)[0] for process in processes]
        self.assertEqual([process.returncode for process in processes], codes, "\n---\n".join(outputs))
        return outputs

    def test_packets_that_are_lost_are_only_late(self):
        self.train("one", *self.double, "--workers", 1)
        for seed, (name, *more) in enumerate((("rigid",), ("elastic", "--elastic", "1:3"))):
            with self.subTest(name):
                network = self.network(3, seed, packet_bytes=400)
                network.loss = 0.03
                outputs = self.end(self.start_ranks(network, 3, name, *RING, "--deadline.silence", "15 s", *more), [0, 0, 0])
                self.assertGreater(network.lost, 20)
                self.assertNotIn("lost", "".join(outputs))
                self.assert_as_one_worker(f"{name}-0")

    def cut(self, network, name, links, how, *flags):
        """Three ranks, where after a step these links fall silent or are reset."""
        ranks = self.start_ranks(network, 3, name, *RING, "--epochs", 6, *flags)
        self.wait_for_step(f"{name}-0", 5)
        getattr(network, how).update(links)
        return ranks

    def test_whoever_is_silent_or_cut_off_is_named_and_the_others_go_on(self):
        self.train("one", *self.double, "--workers", 1, "--epochs", 6)
        for seed, how in enumerate(("silent", "reset")):
            with self.subTest(how):
                network = self.network(3, seed)
                ranks = self.cut(network, how, network.links(2), how, "--elastic", "2:3", "--deadline.silence", "3 s",
                                 "--deadline.join", "20 s")
                outputs = self.end(ranks, [0, 0, 1])
                self.assertIn("rank 2 was lost; 2 of 3 workers go on", outputs[0])
                self.assertIn("no majority", outputs[2])
                self.assertIn("a checkpoint was written", outputs[2])
                self.assert_as_one_worker(f"{how}-0", 60)

    def test_where_one_link_is_silent_one_of_its_ends_is_put_out(self):
        self.train("one", *self.double, "--workers", 1, "--epochs", 6)
        network = self.network(3, 3)
        ranks = self.cut(network, "own", [frozenset((1, 2))], "silent", "--elastic", "2:3", "--deadline.silence", "3 s",
                         "--deadline.join", "20 s")
        outputs = [rank.communicate(timeout=170)[0] for rank in ranks]
        lost = [rank for rank in (1, 2) if f"rank {rank} was lost; 2 of 3 workers go on" in outputs[0]]
        self.assertEqual(len(lost), 1, outputs)
        self.assertEqual([rank.returncode for rank in ranks], [1 if rank in lost else 0 for rank in range(3)], outputs)
        self.assertEqual(self.losses("own-0").keys(), self.losses("one").keys())
        self.assert_as_one_worker("own-0", 60)

    def test_a_job_that_is_rigid_ends_and_names_whom_it_waited_for(self):
        for seed, how in enumerate(("silent", "reset")):
            with self.subTest(how):
                network = self.network(3, seed)
                ranks = self.cut(network, how, network.links(2), how, "--deadline.silence", "3 s")
                outputs = self.end(ranks, [1, 1, 1])
                for output in outputs[:2]:
                    self.assertIn("rank 2", output.strip().splitlines()[-1])

    def start_served(self, network, name, *flags):
        """A parameter server on the last host, which has weights in float32, and ranks on the others."""
        self.double, self.tolerance = ("--model.dropout", 0.2), 1e-5
        host = len(network.names) - 1
        address, token = f"{network.address(host)}:{PORT}", self.secret("token")
        self.start_on(network, host, (BINARY, "server", "--listen", address, "--threads", 1, "--token-file", token))
        return self.start_ranks(network, host, name, "--gradient-sync.method", "parameter-server", "--gradient-sync.servers", address,
                                "--gradient-sync.token-file", token, *flags)

    def test_what_is_lost_on_the_way_to_a_server_is_only_late(self):
        network = self.network(3, 4, packet_bytes=400)
        network.loss = 0.03
        ranks = self.start_served(network, "served", "--deadline.silence", "15 s")
        self.end(ranks, [0, 0])
        self.assertGreater(network.lost, 20)
        self.train("one", *self.double, "--workers", 1)
        self.assert_as_one_worker("served-0")

    def test_a_server_that_is_silent_or_cut_off_is_named(self):
        for seed, how in enumerate(("silent", "reset")):
            with self.subTest(how):
                network = self.network(3, seed)
                ranks = self.start_served(network, how, "--epochs", 6, "--deadline.silence", "3 s")
                self.wait_for_step(f"{how}-0", 5)
                getattr(network, how).update(network.links(2))
                for output in self.end(ranks, [1, 1]):
                    self.assertIn(f"{network.address(2)}:{PORT}", output.strip().splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
