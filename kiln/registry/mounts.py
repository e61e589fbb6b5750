"""Which repository of a registry has had a blob: so that it can be mounted, not sent again.

`<store>/pushed.json`, by registry and repository, what pushes from this store have put
there. It is a hint and no record: a registry that has collected the blob since answers a
mount with an upload (R5), and the blob is sent.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable

import msgspec

from kiln.canonical import Digest, dumps
from kiln.store import Store

_REPOSITORIES, _BLOBS = 32, 1024  # kept for each registry, and for each repository
_SOURCES = 2  # repositories that are tried for one blob

_Known = dict[str, dict[str, list[str]]]


class Mounts:
    """What one registry is known to have. host: as in names; repository: the one pushed to."""

    def __init__(self, store: Store, host: str, repository: str, first: Iterable[str] = ()) -> None:
        self._path, self._lock = store.root / "pushed.json", store.root / "pushed.lock"
        self._host, self._repository, self._first = host, repository, tuple(first)
        known = self._read().get(host, {})
        self._known = {name: frozenset(blobs) for name, blobs in known.items()}

    def sources(self, digest: Digest) -> list[str]:
        """Repositories to try, the named ones first, then those pushed to last."""
        known = [n for n, blobs in reversed(self._known.items()) if digest.sha256 in blobs]
        wanted = dict.fromkeys([*self._first, *known[:_SOURCES]])
        return [name for name in wanted if name != self._repository]

    def remember(self, blobs: Iterable[Digest]) -> None:
        """The repository has these blobs now. A disk that does not take it is no failure."""
        with contextlib.suppress(OSError), self._lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self._read()
            host = known.setdefault(self._host, {})
            old = host.pop(self._repository, [])
            host[self._repository] = list(dict.fromkeys([*(b.sha256 for b in blobs), *old]))[
                :_BLOBS
            ]
            known[self._host] = dict(list(host.items())[-_REPOSITORIES:])
            # Lists of pairs: the order says what is recent, and canonical JSON sorts keys.
            pairs = [[name, list(map(list, repos.items()))] for name, repos in known.items()]
            temporary = self._path.with_suffix(".json.new")
            temporary.write_bytes(dumps(pairs))
            os.replace(temporary, self._path)

    def _read(self) -> _Known:
        try:
            pairs = msgspec.json.decode(
                self._path.read_bytes(), type=list[tuple[str, list[tuple[str, list[str]]]]]
            )
        except (OSError, msgspec.DecodeError):
            return {}
        return {name: dict(repositories) for name, repositories in pairs}
