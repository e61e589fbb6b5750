"""Sending one blob: whole, or in chunks that go on where the registry says they ended.

Distribution spec, "Pushing blobs". A small blob is one PUT after the POST that opened the
upload. A larger one goes in chunks (PATCH with Content-Range), so that a broken connection,
a 416 or a server that took less costs one chunk: its own count (Range) decides where to go
on. An upload that the registry has lost begins anew. A registry or proxy that takes no
chunks gets the blob whole; one that takes no large bodies (413) gets smaller chunks.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from kiln.canonical import Digest
from kiln.errors import Damaged, KilnError, Unavailable
from kiln.fetch.failures import Later, Stopped
from kiln.registry.auth import Scopes
from kiln.registry.failures import Answer
from kiln.registry.model import Progress, Source, mismatch
from kiln.registry.session import Session
from kiln.registry.wire import Body, follow

CHUNK = 64 << 20  # bytes; blobs up to this size go whole
SMALLEST = 1 << 20  # bytes of a chunk after 413s
_PIECE = 1 << 17  # one send; a socket's time limit is for each of them
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]+)")
_GONE = frozenset({"BLOB_UPLOAD_UNKNOWN", "BLOB_UPLOAD_INVALID"})
_BINARY = {"Content-Type": "application/octet-stream"}


class Lost(Later):
    """The registry does not know the upload any more, or counts it otherwise."""


@dataclass
class Upload:
    """One blob on its way. scopes: for every request. chunk: bytes at once, as this registry
    takes them; None for the whole."""

    session: Session
    scopes: Scopes
    digest: Digest
    source: Source
    progress: Progress
    chunk: int | None = CHUNK
    _told: int = field(default=0, init=False)  # bytes that `progress` has heard of
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256, init=False)
    _hashed: int = field(default=0, init=False)

    def run(self, begun: Answer) -> None:
        """Send the blob into the upload that a POST has opened.

        Raises Later where it may be tried anew, `Lost` where the upload is gone; Damaged
        "store.corrupt-blob" where the bytes here are not the digest's.
        """
        target = location(begun)
        least = begun.headers.get("OCI-Chunk-Min-Length", "")
        if self.chunk is not None and least.isascii() and least.isdecimal():
            self.chunk = max(self.chunk, int(least))
        try:
            if self.chunk is None or self.digest.size <= self.chunk:
                self._commit(target, Body(self.digest.size, lambda: self._pieces(0, None)))
            else:
                self._commit(self._chunks(target), Body.of(b""))
        except BaseException:
            self._tell(0)
            raise
        self._tell(self.digest.size)

    def _chunks(self, target: str) -> str:
        """Send all chunks; returns where the upload is to be ended."""
        offset, stuck = 0, 0
        while offset < self.digest.size:
            assert self.chunk is not None
            end = min(offset + self.chunk, self.digest.size)
            try:
                answer = self._patch(target, offset, end)
                after = counted(answer, end)
            except Lost:
                raise
            except Later as error:
                answer = self._status(target, error)
                after = counted(answer, 0)
            if after > min(end, self._hashed):
                raise self._lost(answer, f"it counts {after} bytes, more than were sent")
            # A registry that stays where it is must not be sent the same for ever.
            stuck = stuck + 1 if after <= offset else 0
            if stuck >= self.session.wire.patience.attempts:
                self.chunk = None  # some take one chunk and no second one
                raise self._lost(answer, f"it does not get beyond {after} bytes")
            target, offset = location(answer, target), after
            self._tell(offset)
        return target

    def _patch(self, target: str, offset: int, end: int) -> Answer:
        headers = {**_BINARY, "Content-Range": f"{offset}-{end - 1}"}
        body = Body(end - offset, lambda: self._pieces(offset, end))
        answer = self._send("PATCH", target, headers, body)
        if answer.status in (201, 202, 204):
            return answer
        error = self.session.refused(answer)
        if answer.status == 416:  # the registry's own count decides
            raise Later(error.code, error.what, where=error.where, why=error.why)
        raise self._otherwise(answer, error, offset)

    def _otherwise(self, answer: Answer, error: KilnError, offset: int) -> KilnError:
        """What a refused chunk means: send it otherwise, anew, or not at all."""
        if answer.status == 413 and self.chunk is not None and self.chunk > SMALLEST:
            self.chunk = max(self.chunk // 4, SMALLEST)
            return self._lost(answer, f"chunks of {self.chunk} bytes are tried")
        if answer.status == 404 or answer.codes & _GONE:
            return self._lost(answer, error.why)
        if answer.status in (400, 405, 411, 501):
            if offset == 0 and "DIGEST_INVALID" not in answer.codes:
                self.chunk = None
                return self._lost(answer, "it takes no chunks; the blob is sent whole")
            return self._lost(answer, error.why)
        return error

    def _status(self, target: str, error: Later) -> Answer:
        """Ask how far an upload has come. Raises the error itself where that is not to be had."""
        if error.wait > self.session.wire.patience.longest:
            raise error
        if self.session.wire.stop.wait(max(error.wait, self.session.wire.patience.delay)):
            raise Stopped from None
        try:
            return self.session.ask("GET", target, self.scopes, (200, 202, 204))
        except Later:
            raise
        except Unavailable as gone:
            raise Lost(
                error.code, error.what, where=error.where, why=gone.why or error.why
            ) from gone

    def _commit(self, target: str, body: Body) -> None:
        """End the upload: here the registry compares the digest."""
        joint = "&" if "?" in target else "?"
        answer = self._send("PUT", f"{target}{joint}digest={self.digest}", _BINARY, body)
        if answer.status not in (200, 201, 204):
            error = self.session.refused(answer)
            if answer.status == 413 and body.size and self.digest.size > SMALLEST:
                self.chunk = max(min(self.chunk or CHUNK, self.digest.size) // 4, SMALLEST)
                raise self._lost(answer, f"chunks of {self.chunk} bytes are tried")
            if answer.status in (404, 416) or answer.codes & _GONE:
                raise self._lost(answer, error.why)
            raise error
        said = answer.headers.get("Docker-Content-Digest", "")
        if said.startswith("sha256:") and said != str(self.digest):
            raise mismatch(answer.where, str(self.digest), said[:80])

    def _send(self, method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        with self.session.open(method, url, self.scopes, headers, body) as (response, final):
            return self.session.wire.answer(method, final, response, 1 << 16)

    def _lost(self, answer: Answer, why: str) -> Lost:
        return Lost(
            "registry.upload-lost",
            "the registry has lost an upload under way",
            where=answer.where,
            why=why,
            fix="try again: blobs that are there are not sent again",
        )

    def _pieces(self, start: int, end: int | None) -> Iterator[bytes]:
        """The bytes from start to end, hashed the first time that they go by.

        The last piece is given out only if all of them are the digest's: a blob damaged
        here is not sent to its end.
        """
        end = self.digest.size if end is None else end
        self._tell(start)
        at = start
        try:
            with self.source() as file:
                file.seek(start)
                while at < end:
                    if self.session.wire.stop.is_set():
                        raise Stopped
                    piece = file.read(min(_PIECE, end - at))
                    if not piece:
                        raise self._corrupt(f"it ends after {at} of {self.digest.size} bytes")
                    if at + len(piece) > self._hashed:
                        self._hash.update(piece[self._hashed - at :])
                        self._hashed = at + len(piece)
                    found = self._hash.hexdigest() if self._hashed == self.digest.size else ""
                    if found not in ("", self.digest.sha256):
                        raise self._corrupt(f"its bytes hash to sha256:{found}")
                    at += len(piece)
                    yield piece
                    self._tell(at)
        except OSError as error:
            # Only reading raises here; a broken connection is no matter of a generator's.
            raise self._corrupt(error.strerror or str(error)) from error

    def _corrupt(self, why: str) -> Damaged:
        return Damaged(
            "store.corrupt-blob",
            "a blob's bytes are not what its name says",
            where=str(self.digest),
            why=why,
            fix="run `kiln fsck`; it sets damaged blobs aside, "
            "and the next build fetches or makes them again",
        )

    def _tell(self, done: int) -> None:
        self.progress(done - self._told)
        self._told = done


def location(answer: Answer, before: str = "") -> str:
    """Where an upload goes on: absolute or relative, with a query or without."""
    target = answer.headers.get("Location") or before
    if not target:
        raise Unavailable(
            "registry.bad-answer",
            "the registry does not say where an upload goes on",
            where=answer.where,
            why=f"HTTP status {answer.status} to {answer.method} without Location",
        )
    return follow(answer.url, target, upgrade=True)


def counted(answer: Answer, otherwise: int) -> int:
    """How many bytes the registry has by its Range header ("0-<last>")."""
    match = _RANGE.fullmatch(answer.headers.get("Range", "").strip())
    if match is None:
        return otherwise
    last = int(match[1][:18])
    # "0-0" stands for nothing as well as for one byte: nothing is what can be mended.
    return last + 1 if last else 0
