"""How the ranks of a script reach a parameter server together: the one that is named, or one that rank 0 runs in its own process.

Who is a rank is proved by a secret. On one host rank 0 draws it and hands it to the others in a file that only this user can
read, and the server's token likewise where the server is rank 0's; between hosts both are files that the user names.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from . import _motley
from ._ranks import Ranks

_shared: list[Server] = []


class Server:
    """A parameter server as this rank reaches it, in one session with the other ranks. Made by ``use_server``, and given back by
    ``release``."""

    def __init__(self, group: dist.ProcessGroup | None, server: str | None, token_file: str | None, embedding_dir: str | None,
                 timeout: float) -> None:
        self.ranks = ranks = Ranks(group)
        self.asked, self.embedding_dir = (group, server, token_file), embedding_dir
        self._users, self._starts = 0, 0
        hosts = ranks.gather(_motley.host_id())
        one_host = all(host == hosts[0] for host in hosts)
        if server is None and not one_host:
            raise ValueError(f"the ranks are on {len(set(hosts))} hosts, and rank 0's own server is reached on its host only: start "
                             "`motley server` where all ranks reach it, and say server='HOST:PORT'")
        if server is not None and embedding_dir is not None:
            raise ValueError("embedding_dir is for rank 0's own server; the one that server= names has a directory of its own "
                             "(motley server --embedding-dir)")
        secret = _draw_secret(ranks) if one_host else ranks.agree(
            lambda: _motley.Secret.from_file("", _motley.SECRET_FILE_VARIABLE))
        self._own: _motley.ParameterServer | None = None
        if server is None:
            self.token = secret
            address = ranks.gather(ranks.agree(lambda: self._start_own(embedding_dir)))[0]
            self.addresses = [address]
        else:
            self.token = ranks.agree(lambda: _read_token(server, token_file))
            self.addresses = [part.strip() for part in server.split(",")]
        job = ranks.gather(f"torch-{secrets.token_hex(6)}")[0]
        self.session = ranks.agree(lambda: _join_session(ranks, job, secret, one_host, timeout))

    def _start_own(self, embedding_dir: str | None) -> str | None:
        if self.ranks.rank == 0:
            self._own = _motley.ParameterServer(self.token, "127.0.0.1:0", embedding_dir or "")
        return self._own.address if self._own else None

    def next_suffix(self) -> str:
        """A name for one more set of parameters at the server, the same on all ranks."""
        self._starts += 1
        return f"-{self._starts}"

    def release(self) -> None:
        """Told by each user once; after the last one this rank leaves, and rank 0's own server ends."""
        self._users -= 1
        if self._users == 0:
            _shared.remove(self)
            self.session.leave()
            self._own = None


def use_server(group: dist.ProcessGroup | None, server: str | Sequence[str] | None, token_file: str | None, embedding_dir: str | None,
               timeout: float) -> Server:
    """The server that was asked for, the same object for users that ask alike. Waits for all ranks of the group.

    Raises:
        ValueError: what cannot be, on every rank, with what is accepted.
        RuntimeError: a rank or the server that did not come within `timeout` seconds.
    """
    named = server if server is None or isinstance(server, str) else ", ".join(server)
    asked = group, named, token_file
    shared = next((one for one in _shared if one.asked == asked and embedding_dir in (None, one.embedding_dir)), None)
    if shared is None:
        shared = Server(group, named, token_file, embedding_dir, timeout)
        _shared.append(shared)
    shared._users += 1
    return shared


def _read_token(server: str, token_file: str | None) -> _motley.Secret:
    if not token_file and not os.environ.get(_motley.TOKEN_FILE_VARIABLE):
        raise ValueError(f"server='{server}' needs its token: token_file='FILE', or the environment variable "
                         f"{_motley.TOKEN_FILE_VARIABLE}, is accepted")
    return _motley.Secret.from_file(token_file or "", _motley.TOKEN_FILE_VARIABLE)


def _draw_secret(ranks: Ranks) -> _motley.Secret:
    """A new secret of the ranks of this host, which reaches them in a file of this user that is removed at once."""
    with contextlib.ExitStack() as stack:
        def write() -> tuple[_motley.Secret, str] | None:
            if ranks.rank != 0:
                return None
            path = os.path.join(stack.enter_context(tempfile.TemporaryDirectory(prefix="motley-")), "secret")
            drawn = _motley.Secret.generate()
            drawn.write(path)
            return drawn, path

        mine = ranks.agree(write)
        path = ranks.gather(mine[1] if mine else None)[0]
        return ranks.agree(lambda: mine[0] if mine else _motley.Secret.from_file(path, ""))


def _join_session(ranks: Ranks, job: str, secret: _motley.Secret, one_host: bool, timeout: float) -> _motley.Session:
    """Rank 0 listens and tells the others where, through the process group."""
    host = "127.0.0.1" if one_host else "0.0.0.0"

    def join(rendezvous: str, publish: Any) -> _motley.Session:
        return _motley.Session(job, ranks.rank, ranks.count, rendezvous, secret, host, not one_host, timeout, publish)

    if ranks.rank != 0:
        address = ranks.gather(None)[0]
        if address is None:
            raise RuntimeError("rank 0 cannot listen for the other ranks")
        return join(address, None)
    told: list[str] = []

    def publish(address: str) -> None:
        told.append(address if one_host else f"{os.environ['MASTER_ADDR']}:{address.rsplit(':', 1)[1]}")
        ranks.gather(told[0])

    try:
        return join(f"{host}:0", publish)
    finally:
        if not told:
            ranks.gather(None)
