"""Requests to a registry: one connection pool, redirects, waiting, and secrets kept at home.

An Authorization header belongs to one origin (scheme, host, port) and is put on a request
only as it leaves for that one: a redirect or an upload's Location to another host gets none.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import urllib3

from kiln import __version__
from kiln.errors import BadInput, JudgedBad, Unavailable
from kiln.fetch.failures import Later, Stopped, plain
from kiln.fetch.http import Access, Patience
from kiln.fetch.pool import Pools
from kiln.fetch.url import check_url, origin, redact, split_credentials
from kiln.registry.failures import MAX_ERROR, Answer, bad_redirect, unreachable
from kiln.registry.names import is_loopback

T = TypeVar("T")

MAX_REDIRECTS = 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEEPS_METHOD = frozenset({307, 308})
_PIECE = 1 << 16
_COMMIT = 600  # seconds: a registry on object storage may move gigabytes before it answers


@dataclass(frozen=True)
class Body:
    """What a request carries. pieces: makes the bytes anew each time. size: in bytes."""

    size: int
    pieces: Callable[[], Iterable[bytes]]

    @classmethod
    def of(cls, data: bytes) -> Body:
        """Bytes that are there."""
        return cls(len(data), lambda: (data,) if data else ())


@dataclass(frozen=True)
class Permit:
    """An Authorization header and the origin that it is for."""

    origin: str
    header: str


class Wire:
    """Requests without belief; may be used by several threads. stop: set by `halt`."""

    def __init__(self, access: Access | None = None, patience: Patience | None = None) -> None:
        self.access, self.patience = access or Access(), patience or Patience()
        self.stop = threading.Event()
        self._pools = Pools(self.access.ca, self.access.proxy)

    def halt(self) -> None:
        """End all requests under way soon."""
        self.stop.set()
        self._pools.cut()

    @contextlib.contextmanager
    def open(
        self,
        method: str,
        url: str,
        permit: Permit | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> Iterator[tuple[urllib3.BaseHTTPResponse, str]]:
        """The response after redirects, whatever its status, and its URL.

        Raises Later("registry.unreachable"), Unavailable "registry.redirect",
        "registry.encoding", "registry.untrusted"; Stopped.
        """
        response, current = None, url
        try:
            for _ in range(MAX_REDIRECTS + 1):
                response = self._once(method, current, permit, headers or {}, body)
                target = response.headers.get("Location")
                if response.status not in _REDIRECTS or target is None:
                    break
                if method not in ("GET", "HEAD") and response.status not in _KEEPS_METHOD:
                    raise bad_redirect(current, f"status {response.status} to {method}")
                response.close()
                following = follow(current, target)
                if method == "POST" and origin(following) != origin(current):
                    raise bad_redirect(current, "it leads a POST to another host")  # with secrets
                current = following
            else:
                raise bad_redirect(url, f"more than {MAX_REDIRECTS} redirects")
            encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
            if encoding not in ("", "identity"):
                raise Unavailable(
                    "registry.encoding",
                    "something before the registry changes the bytes",
                    where=redact(url),
                    why=f"Content-Encoding is {encoding[:50]!r}; only 'identity' was accepted",
                    fix="bypass the proxy or mirror that does this",
                )
            yield response, current
        finally:
            if response is not None:
                response.close()  # not drained: what is left of a body may be endless

    def _once(
        self,
        method: str,
        url: str,
        permit: Permit | None,
        headers: Mapping[str, str],
        body: Body | None,
    ) -> urllib3.BaseHTTPResponse:
        if self.stop.is_set():
            raise Stopped
        sent = {"Accept-Encoding": "identity", "User-Agent": f"kiln/{__version__}", **headers}
        if permit is not None and permit.origin == origin(url):
            sent["Authorization"] = permit.header
        if body is not None:
            sent["Content-Length"] = str(body.size)
        read = self.access.read if body is None else _COMMIT
        direct = is_loopback(urlsplit(url).netloc)
        try:
            return self._pools.of(url, direct=direct).request(
                method,
                url,
                headers=sent,
                body=None if body is None else body.pieces(),
                redirect=False,
                retries=False,
                preload_content=False,
                timeout=urllib3.Timeout(connect=self.access.connect, read=read),
            )
        except urllib3.exceptions.SSLError as error:
            raise Unavailable(
                "registry.untrusted",
                "no trusted TLS connection can be made",
                where=redact(url),
                why=plain(error),
                fix="if your own authority signed the certificate, name its bundle in "
                "SSL_CERT_FILE; a registry without TLS is written http://HOST/...",
            ) from error
        except (urllib3.exceptions.HTTPError, OSError, UnicodeError) as error:
            raise self.lost(url, error) from error

    def lost(self, url: str, error: BaseException) -> Exception:
        """The error for a request that broke off: the user's wish, or the network's."""
        return Stopped() if self.stop.is_set() else unreachable(url, error)

    def answer(
        self, method: str, url: str, response: urllib3.BaseHTTPResponse, limit: int
    ) -> Answer:
        """The response read to its end. Raises JudgedBad("registry.too-large"), Later, Stopped."""
        if response.status >= 300:
            limit = MAX_ERROR
        data = bytearray()
        try:
            while len(data) <= limit and (piece := response.read(_PIECE, decode_content=False)):
                data += piece
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self.lost(url, error) from error
        if len(data) > limit and response.status < 300:
            raise JudgedBad(
                "registry.too-large",
                "the registry's answer is larger than it may be",
                where=redact(url),
                why=f"it has more than {limit} bytes",
            )
        return Answer(method, url, response.status, response.headers, bytes(data[:limit]))

    def retried(self, attempt: Callable[[], T]) -> T:
        """What the attempt returns; it is repeated while it raises `Later`, within patience."""
        tries = Tries(self)
        while True:
            try:
                return attempt()
            except Later as error:
                tries.failed(error)


class Tries:
    """Counts what failed in a row, and waits in between."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self._left = wire, wire.patience.attempts
        self._delay = wire.patience.delay

    def failed(self, error: Later, *, gained: bool = False) -> None:
        """Wait for the next attempt, or raise the error where there is none.

        gained: the attempt brought something, so the count starts anew. A registry that
        asks for a longer wait than patience has is not asked again.
        """
        patience = self._wire.patience
        if gained:
            self._left, self._delay = patience.attempts, patience.delay
        self._left -= 1
        if error.wait > patience.longest:
            error.fix = f"the registry asks to wait {error.wait:.0f} s; try again after that"
            raise error
        if self._left <= 0:
            raise error
        if self._wire.stop.wait(max(self._delay, error.wait)):
            raise Stopped from None
        self._delay = min(self._delay * 2, patience.longest)


class Pace:
    """Says when a body has become too slow to wait for."""

    def __init__(self, patience: Patience) -> None:
        self._patience, self._start, self._count = patience, time.monotonic(), 0

    def too_slow(self, amount: int) -> bool:
        """Count bytes that came."""
        self._count += amount
        if (passed := time.monotonic() - self._start) <= self._patience.stall:
            return False
        slow = self._count < passed * self._patience.slowest
        self._start, self._count = time.monotonic(), 0
        return slow


def follow(current: str, target: str, *, upgrade: bool = False) -> str:
    """Where a Location leads, seen from the URL that named it.

    upgrade: http of the same host becomes https (a registry behind a proxy that does not
    know of TLS); else that is refused. Raises Unavailable("registry.redirect").
    """
    try:
        # Credentials that it carries are the server's own business: not taken.
        following = split_credentials(urljoin(current, target))[0].partition("#")[0]
        parts = urlsplit(check_url(following))
    except (ValueError, BadInput) as error:
        raise bad_redirect(current, "it names no http or https URL") from error
    if parts.scheme not in ("http", "https"):
        raise bad_redirect(current, f"it leads to the scheme {parts.scheme!r}")
    before = urlsplit(current)
    if before.scheme == "https" and parts.scheme == "http":
        if not upgrade or parts.netloc != before.netloc:
            raise bad_redirect(current, "it leads from https to http")
        return parts._replace(scheme="https").geturl()
    return following
