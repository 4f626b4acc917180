"""A network of hosts on this machine, whose packets go by a program of user space, this one: it loses some, chosen from a seed, and can
cut a link or answer for a host that it has never heard of the connection. Hosts are namespaces of networks, so TCP itself does the rest."""

import ctypes
import fcntl
import itertools
import os
import pathlib
import random
import selectors
import shutil
import struct
import subprocess
import threading

ADDRESS = "10.213.9."  # of the hosts, with 1, 2, ... behind it
TCP, RESET = 6, 4
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
MOST_BYTES = 1 << 16
NUMBERS = itertools.count()  # of networks


def why_not():
    """What is missing for such a network here, or nothing."""
    if os.geteuid() != 0 or not shutil.which("ip") or not os.path.exists("/dev/net/tun"):
        return "needs root, iproute2 and /dev/net/tun, to be a network"
    tried = subprocess.run(["unshare", "--net", "--pid", "--mount-proc", "--fork", "true"], capture_output=True, check=False)
    return "this machine lets nobody make namespaces" if tried.returncode else ""


def run_ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True)


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def make_reset(source, target, source_port, target_port, sequence):
    """A packet that ends the connection at `target`, where it has all before `sequence`."""
    addresses = source + target

    def segment(value):
        return struct.pack("!HHIIBBHHH", source_port, target_port, sequence, 0, 5 << 4, RESET, 0, value, 0)

    def header(value):
        return struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, TCP, value) + addresses

    sum_of_segment = checksum(addresses + struct.pack("!BBH", 0, TCP, 20) + segment(0))
    return header(checksum(header(0))) + segment(sum_of_segment)


class LossyNetwork:
    """`loss`: the share of packets that are lost. `silent`, `reset`: pairs of hosts between which none gets through, or each ends its
    connection at both ends. `packet_bytes`: of the largest, which cuts what is sent into small pieces. To be closed."""

    def __init__(self, hosts, seed, packet_bytes=1500):
        number = next(NUMBERS)
        self.names = [f"motley-lossy-{os.getpid()}-{number}-{host}" for host in range(hosts)]
        self.loss, self.silent, self.reset = 0.0, set(), set()
        self.lost = 0
        self._random = random.Random(seed)
        self._devices, self._is_closed = [], threading.Event()
        for host, name in enumerate(self.names):
            run_ip("netns", "add", name)
            self._devices.append(self._open_device(name))
            for words in (("link", "set", "lo", "up"), ("link", "set", "tun0", "mtu", packet_bytes, "up"),
                          ("addr", "add", f"{self.address(host)}/24", "dev", "tun0")):
                run_ip("-n", name, *words)
        self._thread = threading.Thread(target=self._forward)
        self._thread.start()

    def close(self):
        self._is_closed.set()
        self._thread.join()
        for device, name in zip(self._devices, self.names):
            os.close(device)
            run_ip("netns", "del", name)

    def address(self, host):
        return f"{ADDRESS}{host + 1}"

    def prefix(self, host):
        """Before the words of a program that is to run on the host, where it sees no processes of others."""
        return ["ip", "netns", "exec", self.names[host], "unshare", "--pid", "--mount-proc", "--fork", "--kill-child=KILL"]

    def links(self, host):
        """All that the host has."""
        return {frozenset((host, other)) for other in range(len(self.names)) if other != host}

    @staticmethod
    def _open_device(name):
        libc = ctypes.CDLL(None, use_errno=True)

        def enter(path):
            with pathlib.Path(path).open("rb") as namespace:
                if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), f"cannot enter {path}")

        with pathlib.Path("/proc/thread-self/ns/net").open("rb") as own:
            enter(f"/run/netns/{name}")
            try:
                device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI))
            finally:
                enter(f"/proc/self/fd/{own.fileno()}")
        return device

    def _forward(self):
        with selectors.DefaultSelector() as devices:
            for device in self._devices:
                devices.register(device, selectors.EVENT_READ)
            while not self._is_closed.is_set():
                for key, _ in devices.select(0.1):
                    self._pass_on(os.read(key.fd, MOST_BYTES))

    def _pass_on(self, packet):
        if packet[0] >> 4 != 4:
            return
        source, target = packet[15] - 1, packet[19] - 1
        if not 0 <= target < len(self._devices):
            return
        link = frozenset((source, target))
        if link in self.reset and packet[9] == TCP:
            self._reset_both(packet)
        elif link in self.silent or self._random.random() < self.loss:
            self.lost += 1
        else:
            self._send(target, packet)

    def _reset_both(self, packet):
        source, target = packet[12:16], packet[16:20]
        source_port, target_port, sequence, acknowledged = struct.unpack_from("!HHII", packet, 4 * (packet[0] & 15))
        self._send(target[3] - 1, make_reset(source, target, source_port, target_port, sequence))
        self._send(source[3] - 1, make_reset(target, source, target_port, source_port, acknowledged))

    def _send(self, host, packet):
        try:
            os.write(self._devices[host], packet)
        except BlockingIOError:
            self.lost += 1  # as a network does that has more than it can hold
