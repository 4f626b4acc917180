"""Jobs whose workers and servers know each other by certificates: who gets in as which tenant, and what is refused where."""

import contextlib
import socket
import ssl
import subprocess
import time
import unittest

import certificates
from certificates import EXPIRED
from harness import Scenario, relative_difference

SAME = ("--workers", 2, "--batch-split.mode", "equal")


class MutualTls(Scenario):
    def setUp(self):
        super().setUp()
        self.made = certificates.Made(self.folder)
        self.server_files = self.made.make("server", "URI:motley:server")
        self.vision = self.made.make("vision", "URI:motley:tenant/vision")
        self.ca = self.server_files[2]

    def token(self, name):
        token = self.folder / f"{name}.token"
        token.write_text(f"a token of {name} that nobody guesses\n")
        token.chmod(0o600)
        return token

    def start_and_wait(self, command, *words):
        """A service, and where it listens."""
        address = self.folder / f"address-{time.monotonic_ns()}"
        service, _ = self.start_service(command, *words, "--listen", "127.0.0.1:0", "--address-file", address, says="listening at")
        return service, address.read_text().strip()

    def server(self, *flags):
        return self.start_and_wait("server", *certificates.flags(self.server_files), *flags)

    def tenants(self):
        file = self.folder / "tenants.yaml"
        names = {name: self.token(name) for name in ("vision", "speech")}
        file.write_text("tenants:\n" + "".join(f"  - {{name: {name}, token_file: {token}}}\n" for name, token in names.items()))
        file.chmod(0o600)
        return file, names

    @staticmethod
    def keys(files):
        return certificates.flags(files, "--network.")

    def served(self, address, tenant, token, *more):
        return (*SAME, "--gradient-sync.method", "parameter-server", "--gradient-sync.servers", address, "--gradient-sync.tenant", tenant,
                "--gradient-sync.token-file", token, "--deadline.join", "20 s", *more)

    def test_workers_of_one_host_know_each_other_by_certificates(self):
        files = self.made.make("local", "URI:motley:tenant/local")
        self.train("plain", *SAME)
        for method in ("tcp-ring", "parameter-server"):  # whose server the launcher starts
            self.train(method, *SAME, "--gradient-sync.method", method, *self.keys(files))
            self.assertLess(relative_difference(self.weights("plain"), self.weights(method)), 1e-5)
        variables = dict(zip(("MOTLEY_TLS_CERTIFICATE", "MOTLEY_TLS_KEY", "MOTLEY_TLS_CA"), map(str, files), strict=True))
        self.train("variables", *SAME, "--gradient-sync.method", "parameter-server", environment=variables)
        self.assertLess(relative_difference(self.weights("plain"), self.weights("variables")), 1e-5)

    def test_servers_of_racks_ranks_and_data_have_certificates_too(self):
        token = self.token("jobs")
        local = self.made.make("local", "URI:motley:tenant/local")
        keys = self.keys(local)
        self.train("plain", *SAME)
        racks = ",".join(self.server("--token-file", token)[1] for _ in range(2))
        _, data = self.start_and_wait("data-server", self.job, "--token-file", token, *self.keys(self.server_files))
        for name, more in {
            "racks": ("--gradient-sync.method", "parameter-server", "--gradient-sync.placement", "hierarchical", "--gradient-sync.servers",
                      racks, "--gradient-sync.racks", "0,1", "--gradient-sync.token-file", token),
            "colocated": ("--gradient-sync.method", "parameter-server", "--gradient-sync.placement", "colocated"),
            "data": ("--data.server", data, "--data.token-file", token),
            "elastic": ("--elastic", "1:2"),
        }.items():
            with self.subTest(name):
                self.train(name, *SAME[2 if name == "elastic" else 0:], *more, *keys)
                self.assertLess(relative_difference(self.weights("plain"), self.weights(name)), 1e-5)
        output = self.train("foreign", *SAME, "--data.server", data, "--data.token-file", token, *self.keys(self.vision), expect=1)
        self.assertIn("does not speak for tenant 'local'", output)

    def test_a_tenant_is_who_its_certificate_says(self):
        file, tokens = self.tenants()
        _, address = self.server("--tenants", file)
        self.train("vision", *self.served(address, "vision", tokens["vision"], *self.keys(self.vision)))
        # With the other tenant's token, too, but not with its certificate.
        output = self.train("speech", *self.served(address, "speech", tokens["speech"], *self.keys(self.vision)), expect=1)
        self.assertIn("does not speak for tenant 'speech': it is the certificate of 'CN = vision'", output)
        # With the certificate, but without the token.
        output = self.train("guess", *self.served(address, "vision", tokens["speech"], *self.keys(self.vision)), expect=1)
        self.assertIn("secret differs", output)
        output = self.train("none", *self.served(address, "vision", tokens["vision"]), expect=1)
        self.assertRegex(output, "the peer has certificates|takes nothing in the clear")

    def test_what_is_wrong_with_certificates_is_said_by_name(self):
        file, tokens = self.tenants()
        _, address = self.server("--tenants", file)
        job = self.served(address, "vision", tokens["vision"])
        foreign = self.made.make("foreign", "URI:motley:tenant/vision", "other-ca")
        output = self.train("foreign", *job, *self.keys((*foreign[:2], self.ca)), expect=1)
        self.assertIn("foreign.pem' (network.tls_certificate): it is of a CA that the peer does not know", output)
        output = self.train("judged", *job, *self.keys((*self.vision[:2], foreign[2])), expect=1)
        self.assertRegex(output, r"the certificate of 'CN = \w+' .* is refused: .*other-ca.pem' \(network.tls_ca\)")
        old = self.made.make("old", "URI:motley:tenant/vision", "ca", *EXPIRED)
        self.assertIn("old.pem' (network.tls_certificate) has expired", self.train("old", *job, *self.keys(old), expect=2))
        output = self.train("key", *job, *self.keys((self.vision[0], old[1], self.ca)), expect=2)
        self.assertIn("old.key' (network.tls_key) is not the key of", output)
        output = self.train("part", *job, *self.keys((self.vision[0],)), expect=2)
        self.assertIn("network.tls_key: no file is named", output)
        output = self.train("off", *job, *self.keys(self.vision), "--network.encryption", "off", expect=2)
        self.assertIn("network.encryption: off", output)

    def test_other_programs_are_judged_by_their_certificates(self):
        """By Python's ssl and the openssl program."""
        server, address = self.server("--token-file", self.token("jobs"))
        host, port = address.rsplit(":", 1)

        def connect(files, highest=ssl.TLSVersion.TLSv1_3, said=b""):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(self.ca)
            context.maximum_version = highest
            if files:
                context.load_cert_chain(*files[:2])
            with socket.create_connection((host, int(port)), timeout=20) as plain, context.wrap_socket(plain) as encrypted:
                names = encrypted.getpeercert()["subjectAltName"]
                encrypted.sendall(said)
                return names, encrypted.recv(1)

        names, answer = connect(self.vision, said=bytes(12))  # no handshake of Motley's
        self.assertEqual((names, answer), ((("URI", "motley:server"),), b""))
        for files, problem in ((None, "CERTIFICATE_REQUIRED"),
                               (self.made.make("old", "URI:motley:tenant/vision", "ca", *EXPIRED), "CERTIFICATE_EXPIRED"),
                               (self.made.make("foreign", "URI:motley:tenant/vision", "other-ca"), "UNKNOWN_CA")):
            with self.assertRaisesRegex(ssl.SSLError, problem):
                connect(files)
        with self.assertRaisesRegex(ssl.SSLError, "PROTOCOL_VERSION"):
            connect(self.vision, ssl.TLSVersion.TLSv1_2)
        old = subprocess.run(["openssl", "s_client", "-connect", address, "-tls1_2"], input="", capture_output=True, text=True,
                             timeout=60, check=False)
        self.assertIn("alert protocol version", old.stderr)
        with socket.create_connection((host, int(port)), timeout=20) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                self.assertEqual(plain.recv(1000), b"")
        self.assertIsNone(server.poll())

    def test_a_worker_refuses_a_server_with_a_bad_certificate(self):
        """Of the openssl program: its certificate may have expired, or be another tenant's."""
        for name, names, validity, problem in (
                ("old", "URI:motley:server", EXPIRED, "is refused: certificate has expired"),
                ("speech", "URI:motley:tenant/speech", (), "the answering side does not speak for tenant 'vision'")):
            files = self.made.make(name, names, "ca", *validity)
            server = subprocess.Popen(["openssl", "s_server", "-accept", "127.0.0.1:0", "-cert", files[0], "-key", files[1],
                                       "-tls1_3", "-CAfile", self.ca, "-Verify", "1", "-naccept", "20"],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.addCleanup(server.stdout.close)
            self.addCleanup(server.stdin.close)
            self.addCleanup(server.wait)
            self.addCleanup(server.kill)
            address = next(line.split()[1] for line in server.stdout if line.startswith("ACCEPT"))
            output = self.train(name, *self.served(address, "vision", self.token("vision"), *self.keys(self.vision)), expect=1)
            self.assertIn(problem, output)


if __name__ == "__main__":
    unittest.main()
