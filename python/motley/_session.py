"""How the ranks of a process group find each other for connections of our own.

Who is a rank is proved by a secret. On one host rank 0 draws it and hands it to the others in a file that only this user can read;
between hosts it is in a file that the user names.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import tempfile
from typing import Any

from . import _motley
from ._backend import find_reachable_address
from ._ranks import Ranks


class Meeting:
    """All ranks make one together.

    Attributes:
        hosts: on how many the ranks are.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.hosts = len(set(ranks.gather(_motley.host_id())))

    @functools.cached_property
    def secret(self) -> _motley.Secret:
        """Of the ranks, which all ask for it the first time."""
        if self.hosts == 1:
            return self._draw_secret()
        return self._ranks.agree(lambda: _motley.Secret.from_file("", _motley.SECRET_FILE_VARIABLE))

    def join(self, timeout: float) -> _motley.Session:
        """Waits for all ranks, so many seconds at most. RuntimeError on all of them where one does not come."""
        job, secret = self._ranks.gather(f"torch-{secrets.token_hex(6)}")[0], self.secret
        return self._ranks.agree(lambda: self._join(job, secret, timeout))

    def _draw_secret(self) -> _motley.Secret:
        """A new secret of the ranks of this host, which reaches them in a file of this user that is removed at once."""
        ranks = self._ranks
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

    def _join(self, job: str, secret: _motley.Secret, timeout: float) -> _motley.Session:
        """Rank 0 listens and tells the others where, through the process group."""
        ranks, one_host = self._ranks, self.hosts == 1
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
            told.append(address if one_host else f"{find_reachable_address()}:{address.rsplit(':', 1)[1]}")
            ranks.gather(told[0])

        try:
            return join(f"{host}:0", publish)
        finally:
            if not told:
                ranks.gather(None)
