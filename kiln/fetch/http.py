"""The HTTP client of all fetching: proxies, certificates, credentials, redirects.

Credentials are kept by origin (scheme, host, port) and put on a request only as it
leaves, so no URL that Kiln passes around, prints or stores holds any; a redirect to
another origin gets none by construction.
"""

from __future__ import annotations

import contextlib
import hashlib
import netrc
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import urllib3

from kiln import __version__
from kiln.canonical import Digest
from kiln.errors import BadInput, Unavailable
from kiln.fetch.failures import Later, Stopped, missing, plain, refused, unreachable
from kiln.fetch.pool import Pools
from kiln.fetch.url import check_url, local_path, origin, redact, split_credentials

T = TypeVar("T")

MAX_REDIRECTS = 10
MAX_PAGE = 64 << 20  # bytes of an index page; the largest public ones have about a sixth
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True)
class Access:
    """How the network is reached.

    credentials: origin -> (user, password). ca: file or folder of certificates, "" for
    the system's. proxy: URL for all requests, "" for what the environment says
    (HTTP_PROXY, HTTPS_PROXY, NO_PROXY). connect, read: seconds without an answer.
    """

    credentials: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    ca: str = ""
    proxy: str = field(default="", repr=False)
    connect: float = 15
    read: float = 60


@dataclass(frozen=True)
class Patience:
    """How often and how long to try one URL.

    attempts: in a row that bring nothing. delay: seconds before the second attempt,
    doubled each time up to `longest`. stall: seconds over which a body must bring at
    least `slowest` bytes a second.
    """

    attempts: int = 5
    delay: float = 0.5
    longest: float = 30
    stall: float = 60
    slowest: int = 1024


@dataclass(frozen=True)
class Page:
    """A small document. kind: its media type. url: where it was after redirects."""

    data: bytes
    kind: str
    url: str


class Http:
    """A client over one pool of connections; may be used by several threads.

    stop: set by `halt`; whoever waits or streams then raises `Stopped`.
    """

    def __init__(self, access: Access, patience: Patience | None = None) -> None:
        self.access, self.patience = access, patience or Patience()
        self.stop = threading.Event()
        self._silent: set[str] = set()  # origins that did not answer in this run
        self._netrc = _read_netrc()
        self._credentials = dict(access.credentials)
        self._pools = Pools(access.ca, access.proxy)

    def halt(self) -> None:
        """End all requests under way soon, also those that wait for a silent server."""
        self.stop.set()
        self._pools.cut()

    def learn(self, url: str) -> str:
        """The URL without credentials, which are kept for its origin."""
        plain, login = split_credentials(url)
        if login is not None:
            self._credentials.setdefault(origin(plain), login)
        return plain

    def login(self, url: str) -> tuple[str, str] | None:
        """User and password for a URL's origin: from the settings, else from netrc."""
        known = self._credentials.get(origin(url))
        if known is None and self._netrc is not None:
            found = self._netrc.hosts.get(urlsplit(url).hostname or "")
            known = (found[0], found[2] or "") if found else None
        return known

    @contextlib.contextmanager
    def open(
        self, url: str, headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> Iterator[tuple[urllib3.BaseHTTPResponse, str]]:
        """The response after redirects, whatever its status, and its URL; its body is not read.

        Raises Unavailable "fetch.unreachable", "fetch.redirect" or "fetch.encoding".
        """
        response = None
        current = check_url(url)
        try:
            for _ in range(MAX_REDIRECTS + 1):
                response = self._request(current, headers or {}, method)
                target = response.headers.get("Location")
                if response.status not in _REDIRECTS or target is None:
                    break
                response.close()
                current = _redirect(current, target)
            else:
                raise _bad_redirect(url, f"more than {MAX_REDIRECTS} redirects")
            encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
            if encoding not in ("", "identity"):
                raise Unavailable(
                    "fetch.encoding",
                    "the server changed the encoding of the file",
                    where=redact(url),
                    why=f"Content-Encoding is {encoding!r}, and only 'identity' was accepted",
                    fix="bypass the proxy or mirror that does this",
                )
            yield response, current
        finally:
            if response is not None:
                # Closed, not drained: what is left of a body may be endless.
                response.close()

    def _request(
        self, url: str, headers: Mapping[str, str], method: str
    ) -> urllib3.BaseHTTPResponse:
        if self.stop.is_set():
            raise Stopped
        if origin(url) in self._silent:
            raise unreachable(url, "it did not answer before, in this run")
        sent = {"Accept-Encoding": "identity", "User-Agent": f"kiln/{__version__}", **headers}
        if login := self.login(url):
            sent.update(urllib3.make_headers(basic_auth=":".join(login)))
        try:
            return self._pools.of(url).request(
                method,
                url,
                headers=sent,
                redirect=False,
                retries=False,
                preload_content=False,
                timeout=urllib3.Timeout(connect=self.access.connect, read=self.access.read),
            )
        except urllib3.exceptions.SSLError as error:
            raise Unavailable(
                "fetch.untrusted",
                "no trusted TLS connection can be made",
                where=redact(url),
                why=plain(error),
                fix="if the certificate is signed by your own authority, name its bundle in "
                "SSL_CERT_FILE",
            ) from error
        except (urllib3.exceptions.HTTPError, OSError, UnicodeError) as error:
            raise unreachable(url, plain(error)) from error

    def page(self, url: str, accept: str) -> Page:
        """A small document, at most MAX_PAGE bytes.

        Raises Unavailable: "fetch.not-found", "fetch.server-error", "fetch.page-too-large" ...
        """
        if (path := local_path(check_url(url))) is not None:
            try:
                with path.open("rb") as file:
                    data = file.read(MAX_PAGE + 1)
            except OSError as error:
                raise missing(url, error) from error
            kind, final = "text/html", url
        else:
            data, kind, final = self.retried(url, lambda: self._page(url, accept))
        if len(data) > MAX_PAGE:
            raise Unavailable(
                "fetch.page-too-large",
                "the index page is too large",
                where=redact(url),
                why=f"it has more than {MAX_PAGE} bytes",
            )
        return Page(data, kind.partition(";")[0].strip().lower(), final)

    def _page(self, url: str, accept: str) -> tuple[bytes, str, str]:
        with self.open(url, {"Accept": accept}) as (response, final):
            if response.status != 200:
                raise refused(url, response)
            try:
                # Until nothing comes: only then a body that was cut off is noticed.
                data = bytearray()
                while len(data) <= MAX_PAGE and (
                    chunk := response.read(1 << 16, decode_content=False)
                ):
                    data += chunk
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise unreachable(url, plain(error)) from error
            return bytes(data), response.headers.get("Content-Type", ""), final

    def size(self, url: str) -> int:
        """A file's size in bytes, without fetching it. Raises as `page` does."""
        if (path := local_path(check_url(url))) is not None:
            try:
                return path.stat().st_size
            except OSError as error:
                raise missing(url, error) from error
        return self.retried(url, lambda: self._size(url))

    def _size(self, url: str) -> int:
        with self.open(url, method="HEAD") as (response, _):
            if response.status != 200:
                raise refused(url, response)
            length = response.headers.get("Content-Length", "")
            if not length.isdecimal():
                raise Unavailable(
                    "fetch.no-size", "the server does not tell the file's size", where=redact(url)
                )
            return int(length)

    def digest(self, url: str) -> Digest:
        """A file's size and sha256, by reading all of it and keeping nothing.

        For places that tell no hash, when a lock is made. Raises as `page` does.
        """
        if (path := local_path(check_url(url))) is not None:
            try:
                with path.open("rb") as file:
                    return Digest(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())
            except OSError as error:
                raise missing(url, error) from error
        return self.retried(url, lambda: self._digest(url))

    def _digest(self, url: str) -> Digest:
        hashing, size = hashlib.sha256(), 0
        with self.open(url) as (response, _):
            if response.status != 200:
                raise refused(url, response)
            try:
                while chunk := response.read(1 << 20, decode_content=False):
                    hashing.update(chunk)
                    size += len(chunk)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise unreachable(url, plain(error)) from error
        return Digest(hashing.hexdigest(), size)

    def retried(self, url: str, attempt: Callable[[], T]) -> T:
        """What the attempt returns; it is repeated while it raises `Later`, within patience."""
        tries = Tries(self, url)
        while True:
            try:
                return attempt()
            except Later as error:
                tries.failed(error)


class Tries:
    """Counts failed attempts at one URL and waits between them."""

    def __init__(self, http: Http, url: str) -> None:
        self._http, self._url = http, url
        self._left, self._delay = http.patience.attempts, http.patience.delay

    def failed(self, error: Later, *, gained: bool = False) -> None:
        """Wait for the next attempt, or raise the error when there is none left.

        gained: the attempt brought something, so the count starts anew.
        """
        patience, http = self._http.patience, self._http
        self._left = patience.attempts if gained else self._left - 1
        if self._left <= 0:
            if error.code == "fetch.unreachable":
                # So that a host that is down costs this wait once, not once a file.
                http._silent.add(origin(self._url))
            raise error
        if origin(self._url) in http._silent:
            raise error
        if http.stop.wait(min(max(self._delay, error.wait), patience.longest)):
            raise Stopped from None
        self._delay = min(self._delay * 2, patience.longest)


def _redirect(current: str, target: str) -> str:
    try:
        # Credentials that a redirect carries are the server's own business: not taken.
        following = split_credentials(urljoin(current, target))[0]
        scheme = urlsplit(check_url(following)).scheme
    except (ValueError, BadInput) as error:
        raise _bad_redirect(current, "its target is no http or https URL") from error
    if scheme not in ("http", "https"):
        raise _bad_redirect(current, f"its target has the scheme {scheme!r}")
    if scheme == "http" and urlsplit(current).scheme == "https":
        raise _bad_redirect(current, "it leads from https to http")
    return following


def _bad_redirect(url: str, why: str) -> Unavailable:
    return Unavailable(
        "fetch.redirect",
        "the server's redirect is not followed",
        where=redact(url),
        why=why,
        fix="correct the index or mirror URL in your settings",
    )


def _read_netrc() -> netrc.netrc | None:
    path = os.environ.get("NETRC") or Path.home() / ".netrc"
    try:
        return netrc.netrc(path)
    except FileNotFoundError:
        return None
    except (OSError, netrc.NetrcParseError) as error:
        # The parser's message may quote the line, and with it a password.
        raise BadInput(
            "fetch.bad-netrc",
            "the netrc file cannot be read",
            where=str(path),
            why=type(error).__name__,
            fix="correct the file, or set NETRC to another one",
        ) from None
