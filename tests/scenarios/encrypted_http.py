"""HTTP of the scheduler and of a server's metrics at unix sockets and by HTTPS, with curl, openssl and Python's ssl as the other side."""

import grp
import http.client
import http.server
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest

import certificates
from certificates import EXPIRED
from harness import BINARY, Scenario
from live_service import LiveService


def run(*words, text=""):
    return subprocess.run([str(word) for word in words], input=text, capture_output=True, text=True, timeout=60, check=False)


class UnixSocket(LiveService):
    def setUp(self):
        super().setUp()
        self.path = self.state / "scheduler.socket"
        self.listen = f"unix:{self.path}"

    def test_commands_and_curl_reach_a_service_at_a_socket(self):
        service = self.serve("--cluster", "2x2", listen=self.listen)
        self.assertEqual(self.path.stat().st_mode & 0o777, 0o600)
        self.assertEqual((self.state / "address").read_text(), f"{self.listen}\n")
        self.schedule("submit", "--name", "one", "--estimated-duration", "5s", "--", "true")
        self.wait_until("one", "completed")
        self.schedule("drain", "node0")
        self.assertIn("drained", self.schedule("list", "--address", self.listen))
        token = (self.state / "token").read_text().strip()
        curl = ("curl", "--silent", "--show-error", "--unix-socket", self.path, "http://localhost/v1/jobs")
        self.assertIn('"completed"', run(*curl, "-H", f"Authorization: Bearer {token}").stdout)
        self.assertIn("the token is missing", run(*curl).stdout)
        service.terminate()
        self.assertEqual(service.wait(timeout=20), 0)
        self.assertFalse(self.path.exists())
        self.assertIn("does not answer", self.schedule("list", expect=1))

    def test_a_dead_services_socket_is_replaced_and_a_live_ones_is_not(self):
        first = self.serve("--cluster", "2x2", listen=self.listen)
        other = run(BINARY, "schedule", "serve", "--state-dir", self.state / "other", "--listen", self.listen, "--cluster", "2x2")
        self.assertEqual(other.returncode, 1, other.stderr)
        self.assertIn(f"cannot listen at '{self.listen}': process {first.pid} listens there", other.stderr)
        first.kill()
        first.wait(timeout=20)
        self.assertTrue(self.path.exists())
        self.serve("--cluster", "2x2", listen=self.listen)
        self.assertIn("node node0", self.schedule("list"))


class SharedSocket(LiveService):
    """One that a group may open, too, whose users are tenants."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("needs root, to be another user")
        self.other = pwd.getpwnam("nobody")
        self.group = grp.getgrgid(self.other.pw_gid).gr_name
        folder = pathlib.Path(tempfile.mkdtemp(prefix="motley-socket-"))
        self.addCleanup(shutil.rmtree, folder, True)
        folder.chmod(0o755)
        self.path = folder / "scheduler"
        self.listen = f"unix:{self.path}"

    def ask_as_another(self, method, target, body=None):
        """What curl prints as another user: the answer, and its status."""
        token = (self.state / "token").read_text().strip()
        words = ["curl", "--silent", "--show-error", "--unix-socket", str(self.path), "-X", method, f"http://localhost{target}", "-w", "\n%{http_code}",
                 "-H", f"Authorization: Bearer {token}", "-H", "Content-Type: application/json"]
        words += [] if body is None else ["--data", json.dumps(body)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd="/",
                              user=self.other.pw_uid, group=self.other.pw_gid, extra_groups=[])
        return done.stdout + done.stderr

    def test_it_is_for_its_user_alone_without_a_group(self):
        self.serve("--cluster", "2x2", listen=self.listen)
        self.assertIn("curl: (7) ", self.ask_as_another("GET", "/v1/jobs"))

    def test_users_of_its_group_are_tenants(self):
        service = self.serve("--cluster", "2x2", "--socket-group", self.group, "--max-jobs-per-tenant", "1", listen=self.listen)
        self.assertEqual((self.path.stat().st_mode & 0o777, self.path.stat().st_gid), (0o660, self.other.pw_gid))
        job = {"name": "theirs", "command": ["sleep", "100"], "directory": "/", "workers": 1, "restart_cost": 0, "grace_period": 5}
        self.assertTrue(self.ask_as_another("POST", "/v1/jobs", job).endswith("\n200"))
        refused = self.ask_as_another("POST", "/v1/jobs", job | {"name": "more"})
        self.assertIn("tenant 'nobody' has 1 unfinished job and wants 1 more; --max-jobs-per-tenant lets it have 1", refused)
        self.assertTrue(refused.endswith("\n429"))
        self.schedule("submit", "--name", "own", "--", "sleep", "100")
        service.kill()
        service.wait(timeout=20)
        self.serve("--cluster", "2x2", "--socket-group", self.group, listen=self.listen)
        jobs = json.loads(self.schedule("list", "--json"))["jobs"]
        self.assertEqual({one["name"]: one["tenant"] for one in jobs}, {"theirs": "nobody", "own": pwd.getpwuid(os.geteuid()).pw_name})
        refused = self.ask_as_another("DELETE", "/v1/jobs/own")
        self.assertIn("job 'own' is of tenant 'root', and cancelling it is not for 'nobody'", refused)
        self.assertTrue(refused.endswith("\n403"))
        self.assertTrue(self.ask_as_another("POST", "/v1/nodes/node0/drain", {}).endswith("\n403"))
        self.schedule("cancel", "own", "theirs")
        self.wait_until("theirs", "cancelled")

    def test_a_group_that_is_not_there_or_of_no_use_is_refused(self):
        for listen, group, problem in ((self.listen, "no-such-group", "--socket-group: 'no-such-group'; accepted: the name of a group"),
                                       ("127.0.0.1:0", self.group, "accepted with --listen unix:/PATH only")):
            done = run(BINARY, "schedule", "serve", "--state-dir", self.state, "--listen", listen, "--socket-group", group)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(problem, done.stderr)


class Https(LiveService):
    def setUp(self):
        super().setUp()
        self.made = certificates.Made(self.state)
        self.own = self.made.make("service", "DNS:localhost,IP:127.0.0.1")
        self.ca = self.own[2]

    def serve_encrypted(self, *more):
        self.serve("--cluster", "2x2", *certificates.flags(self.own[:2]), *more)
        self.url = (self.state / "address").read_text().strip()
        self.assertRegex(self.url, r"^https://127\.0\.0\.1:\d+$")
        self.port = int(self.url.rsplit(":", 1)[1])
        self.token = (self.state / "token").read_text().strip()

    def curl(self, *words):
        return run("curl", "--silent", "--show-error", "-H", f"Authorization: Bearer {self.token}", *words, f"{self.url}/v1/nodes")

    def test_commands_curl_and_python_talk_to_it(self):
        self.serve_encrypted()
        known = ("--tls-ca", self.ca)
        self.schedule("submit", "--name", "one", "--estimated-duration", "5s", *known, "--", "true")
        self.wait_for(lambda: "completed" in self.schedule("list", *known), "the job's end")
        self.assertIn("node1", self.schedule("list", *known, "--address", f"https://localhost:{self.port}"))
        self.assertIn('"node1"', self.curl("--cacert", self.ca).stdout)
        context = ssl.create_default_context(cafile=self.ca)
        connection = http.client.HTTPSConnection("localhost", self.port, context=context, timeout=20)
        connection.request("GET", "/v1/nodes", headers={"Authorization": f"Bearer {self.token}"})
        self.assertEqual(connection.sock.version(), "TLSv1.3")
        answer = connection.getresponse()
        self.assertEqual(answer.status, 200)
        self.assertIn(b'"node1"', answer.read())
        connection.close()

    def test_a_service_that_is_not_known_gets_no_token(self):
        self.serve_encrypted()
        other = self.made.make("other", "IP:127.0.0.1", "other-ca")
        for words, problem in (((), "the system's CAs"), (("--tls-ca", other[2]), "other-ca.pem' (--tls-ca)")):
            refused = self.schedule("list", *words, expect=1)
            self.assertIn("the certificate of 'CN = service'", refused)
            self.assertIn(problem, refused)
        self.assertIn("--tls-ca: the service at http://", self.schedule("list", "--tls-ca", self.ca, "--address", f"http://127.0.0.1:{self.port}", expect=2))
        self.assertIn("none.pem' (--tls-ca)", self.schedule("list", "--tls-ca", self.state / "none.pem", expect=2))
        self.assertNotEqual(self.curl().returncode, 0)

    def test_plain_http_and_tls_1_2_are_refused(self):
        self.serve_encrypted()
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as plain:
            plain.sendall(f"GET /v1/nodes HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {self.token}\r\n\r\n".encode())
            with plain.makefile("rb") as answer:
                self.assertNotIn(b"HTTP/", answer.read())
        self.assertIn("does not answer", self.schedule("list", "--address", f"http://127.0.0.1:{self.port}", expect=1))
        old = self.curl("--cacert", self.ca, "--tls-max", "1.2")
        self.assertIn("alert protocol version", old.stderr)
        old = run("openssl", "s_client", "-connect", f"127.0.0.1:{self.port}", "-tls1_2", "-CAfile", self.ca)
        self.assertIn("alert protocol version", old.stderr)
        new = run("openssl", "s_client", "-connect", f"127.0.0.1:{self.port}", "-tls1_3", "-CAfile", self.ca, "-verify_return_error")
        self.assertIn("Verify return code: 0 (ok)", new.stdout)
        self.assertIn("node1", self.schedule("list", "--tls-ca", self.ca))

    def test_clients_show_certificates_where_they_are_wanted(self):
        self.serve_encrypted("--tls-ca", self.ca)
        user = self.made.make("user", "DNS:user")
        self.assertIn("node1", self.schedule("list", *certificates.flags(user)))
        self.assertIn('"node1"', self.curl("--cacert", self.ca, "--cert", user[0], "--key", user[1]).stdout)
        self.assertIn("wants a certificate", self.schedule("list", "--tls-ca", self.ca, expect=1))
        self.assertIn("certificate required", self.curl("--cacert", self.ca).stderr)
        old = self.made.make("old", "DNS:user", "ca", *EXPIRED)
        self.assertIn("certificate expired", self.curl("--cacert", self.ca, "--cert", old[0], "--key", old[1]).stderr)
        self.assertIn("old.pem' (--tls-certificate) has expired", self.schedule("list", *certificates.flags(old), expect=2))
        foreign = self.made.make("foreign", "DNS:user", "other-ca")
        self.assertIn("unknown ca", self.curl("--cacert", self.ca, "--cert", foreign[0], "--key", foreign[1]).stderr)
        self.assertIn("foreign.pem' (--tls-certificate): it is of a CA that the peer does not know",
                      self.schedule("list", *certificates.flags((*foreign[:2], self.ca)), expect=1))

    def test_certificates_name_the_tenant(self):
        flags = ("--tls-ca", self.ca, "--max-changes-per-tenant", "3")
        self.serve_encrypted(*flags)
        vision, speech, operator = (certificates.flags(self.made.make(name, f"URI:motley:{names}")) for name, names in
                                    (("vision", "tenant/vision"), ("speech", "tenant/speech"), ("operator", "server")))
        self.schedule("submit", "--name", "one", *vision, "--", "sleep", "100")
        self.assertIn("job 'one' is of tenant 'vision', and cancelling it is not for 'speech'", self.schedule("cancel", "one", *speech, expect=1))
        self.assertIn("what it prints is not for 'speech'", self.schedule("logs", "one", *speech, expect=1))
        self.wait_for(lambda: re.search(r"one +running .* vision ", self.schedule("list", *speech)), "that the job runs")
        self.assertIn("tenant 'speech' may not drain nodes", self.schedule("drain", "node0", *speech, expect=1))
        self.schedule("cancel", "none", *speech, expect=2)
        refused = "tenant 'speech' has asked for 3 changes within a minute; --max-changes-per-tenant lets it ask for 3"
        # On a slow machine it may ask once more every 20 seconds.
        self.wait_for(lambda: refused in self.schedule("cancel", "none", *speech, expect=None), "that it has asked too often")
        self.schedule("cancel", "one", *vision)
        self.schedule("drain", "node0", *operator)

    def test_a_client_refuses_an_expired_service_and_one_of_another_host(self):
        """Which Python's ssl serves."""
        self.serve_encrypted()
        for name, names, validity, problem in (("old", "IP:127.0.0.1", EXPIRED, "certificate has expired"),
                                               ("elsewhere", "DNS:elsewhere.lab", (), "'DNS:elsewhere.lab' is refused: IP address mismatch")):
            files = self.made.make(name, names, "ca", *validity)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*files[:2])
            server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
            self.addCleanup(server.server_close)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            thread = threading.Thread(target=server.handle_request)
            server.timeout = 20
            server.handle_error = lambda *_: None
            thread.start()
            refused = self.schedule("list", "--tls-ca", self.ca, "--address", f"https://127.0.0.1:{server.server_port}", expect=1)
            thread.join()
            self.assertIn(problem, refused)

    def test_a_service_is_not_started_in_the_clear_or_with_bad_files(self):
        def refused(*words):
            done = run(BINARY, "schedule", "serve", "--state-dir", self.state, "--cluster", "2x2", *words)
            self.assertEqual(done.returncode, 2, done.stderr)
            return done.stderr
        message = refused("--listen", "0.0.0.0:0")
        for named in ("--listen: '0.0.0.0:0' would be plain HTTP", "--tls-certificate", "unix:/PATH", "--encryption off"):
            self.assertIn(named, message)
        old = self.made.make("old", "DNS:localhost", "ca", *EXPIRED)
        self.assertIn("old.pem' (--tls-certificate) has expired", refused(*certificates.flags(old[:2])))
        self.assertIn("old.key' (--tls-key) is not the key of", refused(*certificates.flags((self.own[0], old[1]))))
        self.assertIn("--tls-key: no file is named", refused(*certificates.flags(self.own[:1])))
        self.own[1].chmod(0o644)
        self.assertIn("mode 0644", refused(*certificates.flags(self.own[:2])))
        self.serve("--cluster", "2x2", "--encryption", "off", listen="0.0.0.0:0")
        self.assertIn("node1", self.schedule("list"))


class EncryptedMetrics(Scenario):
    def setUp(self):
        super().setUp()
        self.made = certificates.Made(self.folder)
        self.token = self.folder / "token"
        self.token.write_text("a token that nobody guesses\n")
        self.token.chmod(0o600)

    def start_server(self, *flags):
        """A server, and where its metrics are."""
        return self.start_service("server", "--listen", "127.0.0.1:0", "--token-file", self.token, *flags, says="metrics at ")

    def test_metrics_at_a_socket(self):
        path = self.folder / "metrics"
        server, url = self.start_server("--metrics", f"unix:{path}")
        self.assertEqual(url, f"unix:{path}")
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        self.assertIn("# HELP motley_server_", run("curl", "--silent", "--unix-socket", path, "http://localhost/metrics").stdout)
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(timeout=20), 0)
        self.assertFalse(path.exists())

    def test_metrics_by_https(self):
        own = self.made.make("metrics", "IP:127.0.0.1")
        flags = certificates.flags(own[:2], "--metrics-")
        _, url = self.start_server("--metrics", "127.0.0.1:0", *flags)
        curl = ("curl", "--silent", "--show-error", "--cacert", own[2])
        self.assertIn("# HELP motley_server_", run(*curl, url).stdout)
        self.assertNotIn("# HELP", run("curl", "--silent", url.replace("https", "http")).stdout)
        _, url = self.start_server("--metrics", "0.0.0.0:0", *flags, "--metrics-tls-ca", own[2])
        url = url.replace("0.0.0.0", "127.0.0.1")
        self.assertIn("certificate required", run(*curl, url).stderr)
        scraper = self.made.make("scraper", "DNS:scraper")
        self.assertIn("# HELP motley_server_", run(*curl, "--cert", scraper[0], "--key", scraper[1], url).stdout)

    def test_metrics_off_loopback_are_neither_plain_nor_open(self):
        def refused(*words):
            done = run(BINARY, "server", "--listen", "127.0.0.1:0", "--token-file", self.token, "--metrics", "0.0.0.0:0", *words)
            self.assertEqual(done.returncode, 2, done.stderr)
            return done.stderr
        scrapers = ("--metrics-token-file", self.token)
        message = refused(*scrapers)
        for named in ("--metrics: '0.0.0.0:0' would be plain HTTP", "--metrics-tls-certificate", "--metrics-encryption off"):
            self.assertIn(named, message)
        own = self.made.make("metrics", "IP:127.0.0.1")
        self.assertIn("--metrics-token-file", refused(*certificates.flags(own[:2], "--metrics-")))
        self.assertIn("--metrics-token-file", refused("--metrics-encryption", "off"))
        self.start_server("--metrics", "0.0.0.0:0", *scrapers, "--metrics-encryption", "off")


if __name__ == "__main__":
    unittest.main()
