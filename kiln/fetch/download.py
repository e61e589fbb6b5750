"""One locked file into the store: streamed, checked as it comes, resumed, never trusted.

Size and sha256 come from the lock: a longer body is cut off at once, and a file of
another hash is discarded and never becomes a blob. A broken transfer goes on where it
ended, by Range and If-Range (RFC 9110, sections 13.1.5 and 14), in this run or in a
later one (kiln/fetch/partial.py).
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import urllib3

from kiln.canonical import Digest
from kiln.errors import Unavailable
from kiln.fetch.failures import Later, Stopped, missing, plain, refused
from kiln.fetch.http import Http, Tries
from kiln.fetch.partial import Partial, hold
from kiln.fetch.url import check_url, local_path, redact
from kiln.progress import Reporter, Task
from kiln.store import Store
from kiln.store.blobs import CHUNK

_GAIN = 1 << 20  # bytes: an attempt that brought as much does not count as a failed one

# Which answer names the error, when every place failed.
_WORST = (
    "fetch.hash-mismatch",
    "fetch.wrong-size",
    "fetch.untrusted",
    "fetch.refused",
    "fetch.server-error",
    "fetch.cut",
    "fetch.wrong-range",
    "fetch.unreachable",
)


@dataclass(frozen=True)
class Downloader:
    """What the downloads of one run have in common."""

    store: Store
    http: Http
    reporter: Reporter

    def fetch(
        self,
        digest: Digest,
        name: str,
        urls: Iterable[str],
        task: Task,
        asked: Sequence[Unavailable] = (),
    ) -> None:
        """Have the file in the store, from the first URL that gives it.

        asked: what is known, once `urls` is used up, of places without such a file.
        Raises Unavailable, its code that of the worst answer: "fetch.hash-mismatch",
        "fetch.wrong-size", "fetch.server-error", "fetch.unreachable", "fetch.cut",
        "fetch.not-found" and others; CannotHere("store.no-space"); Stopped.
        """
        with hold(self.store, digest, name, self.reporter, self.http.stop) as partial:
            if partial is None:
                task.advance(digest.size)
                return
            transfer = _Transfer(self.http, self.reporter, digest, partial, task)
            failures: list[Unavailable] = []
            for url in urls:
                try:
                    transfer.run(check_url(self.http.learn(url)))
                except Unavailable as error:
                    failures.append(error)
                else:
                    for failure in failures:
                        self.reporter.note(f"{name}: passed over {_line(failure)}")
                    return
            if partial.size == 0:
                partial.remove()
        raise _nowhere(name, [*failures, *asked])


class _Transfer:
    """Fills one partial file and keeps the task's count in step with it."""

    def __init__(
        self, http: Http, reporter: Reporter, digest: Digest, partial: Partial, task: Task
    ) -> None:
        self.http, self.reporter, self.digest = http, reporter, digest
        self.partial, self.task = partial, task
        task.advance(partial.size)

    def run(self, url: str) -> None:
        """The whole file from one URL, with retries. Raises Unavailable."""
        tries = Tries(self.http, url)
        resumed = self.partial.size > 0
        while True:
            before = self.partial.size
            try:
                if before < self.digest.size or self.digest.size == 0:
                    self._attempt(url)
                if self.partial.sha256 == self.digest.sha256:
                    return self.partial.commit()
                found = self.partial.sha256
                self._reset()
                if not resumed:
                    raise self._mismatch(url, found)
                # What was resumed may be made of two different files.
                self.reporter.note(f"{redact(url)}: wrong sha256 after resuming; starting anew")
                resumed = False
            except Later as error:
                resumed = self.partial.size > 0
                tries.failed(error, gained=self.partial.size - before >= _GAIN)

    def _attempt(self, url: str) -> None:
        """One request, or one reading of a local file, added to what is there."""
        if (path := local_path(url)) is not None:
            # Another file's beginning is no help where reading costs next to nothing.
            self._reset()
            self._copy(path, url)
            return
        headers = {}
        if self.partial.size:
            headers["Range"] = f"bytes={self.partial.size}-"
            if validator := self.partial.validator(url):
                headers["If-Range"] = validator
        with self.http.open(url, headers) as (response, _):
            self._check(url, response)

            def read() -> bytes:
                try:
                    return response.read1(CHUNK, decode_content=False)
                except (urllib3.exceptions.HTTPError, OSError) as error:
                    raise self._cut(url, plain(error)) from error

            self._pour(read, url)

    def _copy(self, path: Path, url: str) -> None:
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise OSError(0, "it is no regular file")
            with path.open("rb") as file:
                self._pour(lambda: file.read(CHUNK), url)
        except OSError as error:
            raise missing(url, error) from error

    def _check(self, url: str, response: urllib3.BaseHTTPResponse) -> None:
        """Look at status and headers before any byte is taken."""
        partial, size = self.partial, self.digest.size
        content_range = response.headers.get("Content-Range", "")
        wanted = f"bytes {partial.size}-{size - 1}/{size}"
        wrong_range = response.status == 206 and (not partial.size or content_range != wanted)
        if response.status == 416 or wrong_range:
            self._reset()
            raise Later(
                "fetch.wrong-range",
                "the server sent another range than was asked for",
                where=redact(url),
                why=f"HTTP status {response.status}, Content-Range {content_range or 'absent'!r}, "
                f"wanted {wanted!r}",
            )
        if response.status not in (200, 206):
            raise refused(url, response)
        if response.status == 200:
            length = response.headers.get("Content-Length", "")
            if length.isdecimal() and int(length) != size:
                raise self._wrong_size(url, f"{int(length)} bytes")
            if partial.size:
                self.reporter.note(f"{redact(url)}: cannot be resumed; starting anew")
            self._reset()
        etag = response.headers.get("ETag", "")
        strong = etag if etag.startswith('"') else ""
        partial.remember(url, strong or response.headers.get("Last-Modified", ""))

    def _pour(self, read: Callable[[], bytes], url: str) -> None:
        patience = self.http.patience
        start, count = time.monotonic(), 0
        while chunk := read():
            if self.http.stop.is_set():
                raise Stopped
            if self.partial.size + len(chunk) > self.digest.size:
                self._reset()
                raise self._wrong_size(url, "more")
            self.partial.write(chunk)
            self.task.advance(len(chunk))
            count += len(chunk)
            if (passed := time.monotonic() - start) > patience.stall:
                if count < passed * patience.slowest:
                    raise self._cut(url, f"it brought {count} bytes in {passed:.0f} s")
                start, count = time.monotonic(), 0
        if self.partial.size < self.digest.size:
            if local_path(url) is not None:
                raise self._wrong_size(url, f"{self.partial.size} bytes")
            raise self._cut(url, "the connection was closed")

    def _reset(self) -> None:
        self.task.advance(-self.partial.size)
        self.partial.reset()

    def _cut(self, url: str, why: str) -> Later:
        return Later(
            "fetch.cut",
            "the transfer broke off",
            where=redact(url),
            why=f"{why}, after {self.partial.size} of {self.digest.size} bytes",
            fix="try again: it goes on where it ended",
        )

    def _wrong_size(self, url: str, found: str) -> Unavailable:
        return Unavailable(
            "fetch.wrong-size",
            "the file has another size than the lock says",
            where=redact(url),
            why=f"expected {self.digest.size} bytes, found {found}",
            fix=_OTHER,
        )

    def _mismatch(self, url: str, found: str) -> Unavailable:
        return Unavailable(
            "fetch.hash-mismatch",
            "the file is not the one that was locked",
            where=redact(url),
            why=f"expected {self.digest}, found sha256:{found}; it was discarded",
            fix=_OTHER,
        )


_OTHER = (
    "if its publisher replaced the file, `kiln lock` takes the new one; "
    "if not, do not trust this place and take it out of your settings"
)


def _line(error: Unavailable) -> str:
    return f"{error.where}: {error.what} ({error.why or error.code})"


def _nowhere(name: str, failures: Sequence[Unavailable]) -> Unavailable:
    """One error for all places; its code is that of the worst answer."""
    why = "\n".join(map(_line, failures)) or "there is no place to ask"
    ranks = {code: rank for rank, code in enumerate(_WORST)}
    worst = min(failures, key=lambda e: ranks.get(e.code, len(ranks)), default=None)
    if worst is None or worst.code == "fetch.not-found":
        return Unavailable(
            "fetch.not-found",
            f"{name} is nowhere to be had",
            why=why,
            fix="name a place that has it (extra-index-url, find-links), or a store that has it "
            "(KILN_ALTERNATES); if it was withdrawn, `kiln lock` chooses another",
        )
    if len(failures) == 1:
        why = worst.why
    return Unavailable(
        worst.code, f"{name}: {worst.what}", where=worst.where, why=why, fix=worst.fix
    )
