"""HTTP to a server under test: over a Unix socket, or to a URL.

Every request has one deadline for all of it, a bound on what is read, and keeps the raw
bytes, so that a gate can show what it judged. A status is data and not an error; only a
reply that did not come is one, with the codes run.refused, run.timeout and run.broken.

The socket's folder is writable by the container, so the socket is opened without
following links: a link to another server's socket on this host is refused.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from kiln.canonical import JSON
from kiln.errors import BadInput, JudgedBad

MAX_REPLY = 64 << 20  # bytes of one reply
_PIECE = 1 << 16


class CallFailed(JudgedBad):
    """No usable reply: refused, too late, or broken off."""


@dataclass(frozen=True)
class Reply:
    """A whole reply. seconds: from the first byte sent to the last one read."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    seconds: float

    def json(self) -> JSON:
        """The body as JSON. Raises CallFailed("run.broken")."""
        try:
            value: JSON = msgspec.json.decode(self.body)
        except msgspec.DecodeError as error:
            raise _failed(
                "broken", "the body is not JSON", f"{error}: {self.body[:200]!r}"
            ) from error
        return value


@dataclass(frozen=True)
class Stream(Reply):
    """A whole reply of server-sent events (HTML Living Standard, 9.2).

    events: the data of each event, `[DONE]` too. times: seconds from the request to each.
    """

    events: tuple[bytes, ...] = ()
    times: tuple[float, ...] = ()

    @property
    def done(self) -> bool:
        """Whether it ended with the `[DONE]` of OpenAI's streams."""
        return self.events[-1:] == (b"[DONE]",)


class Client:
    """Talks to one server; one connection a request, safe to use from many threads."""

    def __init__(
        self,
        connect: Callable[[float], http.client.HTTPConnection],
        name: str,
        prefix: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """connect: makes a connection with a timeout in seconds. name: for errors."""
        self._connect, self.name, self._prefix = connect, name, prefix
        self._headers = dict(headers or {})

    @classmethod
    def unix(cls, path: Path) -> Client:
        """A client of the server that listens on this socket."""
        return cls(lambda seconds: _UnixConnection(path, seconds), f"unix:{path.name}")

    @classmethod
    def url(cls, url: str, headers: Mapping[str, str] | None = None) -> Client:
        """A client of an http or https URL. No proxy of the environment is used.

        headers: sent with each request (an Authorization, say); never shown.
        """
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if parts.scheme not in ("http", "https") or not host or parts.username or parts.query:
            raise BadInput(
                "run.bad-url",
                "this is no URL of a server",
                why="expected http(s)://HOST[:PORT][/PREFIX], without user, password or query",
                fix="give a key in the environment, not in the URL",
            )

        def connect(seconds: float) -> http.client.HTTPConnection:
            if parts.scheme == "https":
                context = ssl.create_default_context()
                return http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
            return http.client.HTTPConnection(host, port, timeout=seconds)

        where = f"{parts.scheme}://{host}" + (f":{port}" if port else "")
        return cls(connect, where, parts.path.rstrip("/"), headers)

    def get(self, path: str, seconds: float = 10) -> Reply:
        """GET; `seconds` is the deadline for all of it."""
        return self._whole("GET", path, None, seconds)

    def post_json(self, path: str, obj: object, seconds: float = 60) -> Reply:
        """POST a JSON body."""
        return self._whole("POST", path, obj, seconds)

    def stream(self, path: str, obj: object, seconds: float = 60) -> Stream:
        """POST a JSON body and read the events of the reply until it ends."""
        with self._request("POST", path, obj, seconds) as (response, deadline):
            body, at, data = bytearray(), 0, list[bytes]()
            events, times = list[bytes](), list[float]()
            # Not readline: it takes a chunk that is cut off for the end.
            while piece := response.read1(_PIECE):
                body += piece
                _bounded(len(body))
                while (end := body.find(b"\n", at)) >= 0:
                    line, at = bytes(body[at:end]).rstrip(b"\r"), end + 1
                    name, _, value = line.partition(b":")
                    if name == b"data":
                        data.append(value.removeprefix(b" "))
                    elif not line and data:
                        events.append(b"\n".join(data))
                        times.append(time.monotonic() - deadline.start)
                        data = []
            _complete(response)
            taken, headers = deadline.met(), _headers(response)
            return Stream(response.status, headers, bytes(body), taken, tuple(events), tuple(times))

    def _whole(self, method: str, path: str, obj: object, seconds: float) -> Reply:
        with self._request(method, path, obj, seconds) as (response, deadline):
            body = response.read(MAX_REPLY + 1)
            taken = deadline.met()
            _bounded(len(body))
            _complete(response)
            return Reply(response.status, _headers(response), body, taken)

    @contextlib.contextmanager
    def _request(
        self, method: str, path: str, obj: object, seconds: float
    ) -> Iterator[tuple[http.client.HTTPResponse, _Deadline]]:
        where = f"{method} {self.name}{self._prefix}{path}"
        body = None if obj is None else msgspec.json.encode(obj)
        headers = {**self._headers, "Accept-Encoding": "identity"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection, start = self._connect(seconds), time.monotonic()
        deadline: _Deadline | None = None
        try:
            connection.connect()
            deadline = _Deadline(connection.sock, start, seconds)
            connection.request(method, self._prefix + path, body, headers)
            with connection.getresponse() as response:
                yield response, deadline
        except (OSError, http.client.HTTPException) as error:
            late = deadline is not None and deadline.late.is_set()
            raise _call_failed(error, late, where, seconds) from error
        except CallFailed as error:
            error.where = error.where or where
            raise
        finally:
            if deadline is not None:
                deadline.cancel()
            connection.close()


class _Deadline:
    """Shuts a socket when time is over, whatever is being done with it then.

    A socket's timeout holds for one read: a server that trickles would never end.
    """

    def __init__(self, sock: socket.socket, start: float, seconds: float) -> None:
        self._sock, self.start, self.late = sock, start, threading.Event()
        self._timer = threading.Timer(start + seconds - time.monotonic(), self._shut)
        self._timer.daemon = True
        self._timer.start()

    def _shut(self) -> None:
        self.late.set()
        with contextlib.suppress(OSError):  # SSL's own shutdown takes the object apart
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def met(self) -> float:
        """All was read: the seconds it took.

        Raises TimeoutError where the body only ended because its socket was shut.
        """
        self.cancel()
        if self.late.is_set():
            raise TimeoutError
        return time.monotonic() - self.start

    def cancel(self) -> None:
        """Time no longer matters."""
        self._timer.cancel()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        """Connect through a descriptor of the socket: no link, and no limit of 108 bytes."""
        fd = os.open(self._path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                raise _failed("broken", "there is something else where the socket should be")
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(self.timeout)
            self.sock.connect(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)


def _headers(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _complete(response: http.client.HTTPResponse) -> None:
    """Reading forgives a body that ends before its Content-Length; this does not."""
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)


def _bounded(size: int) -> None:
    if size > MAX_REPLY:
        raise _failed("broken", "the reply is too large", f"over {MAX_REPLY} bytes")


def _failed(reason: str, what: str, why: str = "", where: str = "") -> CallFailed:
    return CallFailed(f"run.{reason}", what, where=where, why=why)


def _call_failed(error: Exception, late: bool, where: str, seconds: float) -> CallFailed:
    if late or isinstance(error, TimeoutError):
        return _failed("timeout", f"no whole reply within {seconds:g} s", "", where)
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return _failed("refused", "nobody listens", str(error), where)
    return _failed("broken", "the connection broke", f"{type(error).__name__}: {error}", where)
