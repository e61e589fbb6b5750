"""The action table: key of an action -> digests of its outputs.

SQLite in WAL mode, so that builds side by side neither block nor corrupt one
another. A row is written after its outputs' blobs are in place.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from kiln.canonical import Digest, dumps
from kiln.errors import CannotHere, Damaged, KilnError
from kiln.store.blobs import full_disk

_SCHEMA = """
create table if not exists action (
    key text primary key,      -- hex sha256 of the canonical action
    node text not null,        -- name in the graph that ran it, for people
    action blob not null,      -- the canonical action itself: what the key says
    outputs blob not null      -- {name: {sha256, size}}
) without rowid;
create table if not exists evidence (
    digest text not null,      -- hex sha256 of the image manifest
    preset text not null,
    sha256 text not null,      -- the evidence's own blob
    sequence integer primary key autoincrement
);
"""


class ActionTable:
    """Results of actions, and which evidence belongs to (digest, preset)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        self._connection()

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            try:
                connection = sqlite3.connect(self.path, timeout=60, isolation_level=None)
                connection.execute("pragma journal_mode=wal")
                connection.execute("pragma synchronous=full")
                connection.executescript(_SCHEMA)
            except sqlite3.DatabaseError as error:
                raise self._failed(error) from error
            self._local.connection = connection
        return connection

    def _failed(self, error: sqlite3.DatabaseError) -> KilnError:
        """What SQLite's error means here; a disk that is full has damaged nothing."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest is for experts
        if code == sqlite3.SQLITE_FULL:
            return full_disk(self.path, str(error))
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return CannotHere(
                "store.busy",
                "the action table is locked by another process",
                where=str(self.path),
                why=str(error),
                fix="wait until it is done",
            )
        return Damaged(
            "store.table",
            "the action table cannot be used",
            where=str(self.path),
            why=str(error),
            fix="move the file away; blobs and locks are enough to build everything again",
        )

    def _run(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        try:
            return self._connection().execute(sql, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._failed(error) from error

    def get(self, key: str) -> dict[str, Digest] | None:
        """The outputs recorded for a key, or None."""
        rows = self._run("select outputs from action where key = ?", key)
        if not rows:
            return None
        raw = rows[0][0]
        assert isinstance(raw, bytes)
        return msgspec.json.decode(raw, type=dict[str, Digest])

    def put(self, key: str, node: str, action: bytes, outputs: Mapping[str, Digest]) -> None:
        """Record a result; the outputs' blobs must be in the store already."""
        plain = {name: msgspec.to_builtins(digest) for name, digest in outputs.items()}
        self._run(
            "insert or replace into action values (?, ?, ?, ?)", key, node, action, dumps(plain)
        )

    def last(self, node: str) -> bytes | None:
        """The canonical action that last ran under this node name, to explain a miss."""
        rows = self._run("select action from action where node = ? order by key limit 1", node)
        return rows[0][0] if rows and isinstance(rows[0][0], bytes) else None

    def items(self) -> Iterator[tuple[str, str, dict[str, Digest]]]:
        """All rows: key, node, outputs."""
        for key, node, outputs in self._run("select key, node, outputs from action order by key"):
            assert isinstance(outputs, bytes)
            yield str(key), str(node), msgspec.json.decode(outputs, type=dict[str, Digest])

    def forget(self, key: str) -> None:
        """Drop one result."""
        self._run("delete from action where key = ?", key)

    def forget_all(self) -> None:
        """Drop every result; blobs stay."""
        self._run("delete from action")

    def add_evidence(self, digest: str, preset: str, sha: str) -> None:
        """Record that an evidence blob belongs to (image digest, preset)."""
        self._run(
            "insert into evidence (digest, preset, sha256) values (?, ?, ?)", digest, preset, sha
        )

    def evidence(self, digest: str, preset: str) -> list[str]:
        """The sha256 of all evidence blobs for (image digest, preset), the newest first."""
        rows = self._run(
            "select sha256 from evidence where digest = ? and preset = ? order by sequence desc",
            digest,
            preset,
        )
        return [str(sha) for (sha,) in rows]

    def all_evidence(self) -> Iterator[tuple[str, str, str]]:
        """All evidence, oldest first: its sha256, the image digest, the preset."""
        rows = self._run("select sha256, digest, preset from evidence order by sequence")
        yield from ((str(sha), str(digest), str(preset)) for sha, digest, preset in rows)
