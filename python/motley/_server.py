"""How the ranks of a script reach a parameter server together: the one that is named, or one that rank 0 runs in its own process.

On one host the server's token is the secret of the ranks where the server is rank 0's; otherwise it is in a file that the user names.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from . import _motley
from ._ranks import Ranks
from ._session import Meeting

_shared: list[Server] = []


class Server:
    """A parameter server as this rank reaches it, in one session with the other ranks. Made by ``use_server``, and given back by
    ``release``."""

    def __init__(self, group: dist.ProcessGroup | None, server: str | None, token_file: str | None, embedding_dir: str | None,
                 timeout: float) -> None:
        self.ranks = ranks = Ranks(group)
        self.asked, self.embedding_dir = (group, server, token_file), embedding_dir
        self.has_directory = server is not None or embedding_dir is not None  # as far as is known here
        self._users, self._starts = 0, 0
        self.name = ranks.gather(uuid.uuid4().hex)[0]  # the same on all ranks
        meeting = Meeting(ranks)
        if server is None and meeting.hosts > 1:
            raise ValueError(f"the ranks are on {meeting.hosts} hosts, and rank 0's own server is reached on its host only: start "
                             "`motley server` where all ranks reach it, and say server='HOST:PORT'")
        if server is not None and embedding_dir is not None:
            raise ValueError("embedding_dir is for rank 0's own server; the one that server= names has a directory of its own "
                             "(motley server --embedding-dir)")
        self._own: _motley.ParameterServer | None = None
        if server is None:
            self.token = meeting.secret
            address = ranks.gather(ranks.agree(lambda: self._start_own(embedding_dir)))[0]
            self.addresses = [address]
        else:
            self.token = ranks.agree(lambda: _read_token(server, token_file))
            self.addresses = [part.strip() for part in server.split(",")]
        self.session = meeting.join(timeout)

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


def check_server(server: Any, token_file: Any) -> None:
    """ValueError where these are no addresses and no file."""
    addresses = [server] if isinstance(server, str) else server
    if addresses is not None and not (isinstance(addresses, Sequence) and addresses and all(
            isinstance(each, str) and each.strip() for each in addresses)):
        raise ValueError(f"server is {server!r}; 'HOST:PORT', or several of these, is accepted")
    if token_file is not None and not isinstance(token_file, (str, os.PathLike)):
        raise ValueError(f"token_file is {token_file!r}; the path of a file is accepted")


def use_server(group: dist.ProcessGroup | None, server: str | Sequence[str] | None, token_file: str | None, embedding_dir: str | None,
               timeout: float) -> Server:
    """The server that was asked for, the same object for users that ask alike. Waits for all ranks of the group.

    An earlier one that a rank has let go is shared by no rank: when that happens is up to each rank's garbage collection.

    Raises:
        ValueError: what cannot be, on every rank, with what is accepted.
        RuntimeError: a rank or the server that did not come within `timeout` seconds.
    """
    named = server if server is None or isinstance(server, str) else ", ".join(server)
    asked = group, named, token_file
    shared = next((one for one in _shared if one.asked == asked and embedding_dir in (None, one.embedding_dir)), None)
    if len(set(Ranks(group).gather(shared.name if shared else None))) > 1:
        shared = None
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
