"""A scripted HTTP server on loopback: each answer of a path is said beforehand."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


@dataclass(frozen=True)
class Answer:
    """What to send. cut: close after so many bytes. pause: seconds before each piece of
    `piece` bytes. length: a Content-Length that lies; None for none at all."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    pause: float = 0
    piece: int = 1 << 16
    length: int | None = -1


@dataclass(frozen=True)
class Seen:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]


Script = Callable[[Seen], Answer]


def file(body: bytes, etag: str = '"v1"', **more: object) -> Script:
    """A well-behaved file: it knows Range and If-Range."""

    def answer(seen: Seen) -> Answer:
        headers = {"ETag": etag, "Accept-Ranges": "bytes"}
        wanted = seen.headers.get("Range", "")
        if wanted.startswith("bytes=") and seen.headers.get("If-Range", etag) == etag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            return Answer(body[start:], 206, headers, **more)  # type: ignore[arg-type]
        return Answer(body, 200, headers, **more)  # type: ignore[arg-type]

    return answer


class Server:
    """Answers of a path are used up in order; the last one stays. Unknown paths are 404."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._scripts: dict[str, list[Answer | Script]] = {}
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer._serve(self)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that went away is what some tests are about

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def host(self) -> str:
        """host:port"""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def url(self, path: str) -> str:
        """The URL of a path."""
        return f"http://{self.host}{path}"

    def on(self, path: str, *answers: Answer | Script) -> str:
        """Say what a path answers, request by request; returns its URL."""
        self._scripts[path] = list(answers)
        return self.url(path)

    def paths(self) -> list[str]:
        """Paths asked for, in order."""
        return [seen.path for seen in self.seen]

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        seen = Seen(
            handler.command, handler.path, {k.title(): v for k, v in handler.headers.items()}
        )
        with self._lock:
            self.seen.append(seen)
            left = self._scripts.get(handler.path.partition("?")[0], [Answer(status=404)])
            script = left.pop(0) if len(left) > 1 else left[0]
        answer = script if isinstance(script, Answer) else script(seen)
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        if answer.length is not None:
            length = len(answer.body) if answer.length == -1 else answer.length
            handler.send_header("Content-Length", str(length))
        else:
            handler.send_header("Connection", "close")
        handler.end_headers()
        if handler.command == "HEAD":
            return
        body = answer.body if answer.cut is None else answer.body[: answer.cut]
        for start in range(0, len(body), answer.piece):
            time.sleep(answer.pause)
            handler.wfile.write(body[start : start + answer.piece])
            handler.wfile.flush()
        if answer.cut is not None or answer.length is None:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)


def closed_port() -> int:
    """A port on loopback where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Notes:
    """A reporter that remembers: `lines` are the notes, `tasks` (name, total, done)."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.tasks: list[tuple[str, int | None, list[int]]] = []

    def note(self, text: str) -> None:
        self.lines.append(text)

    def task(self, name: str, total: int | None = None) -> NotedTask:
        done: list[int] = []
        self.tasks.append((name, total, done))
        return NotedTask(done)


class NotedTask:
    """A task that sums up."""

    def __init__(self, done: list[int] | None = None) -> None:
        self.done = [] if done is None else done

    def advance(self, amount: int) -> None:
        self.done.append(amount)

    def __enter__(self) -> NotedTask:
        return self

    def __exit__(self, *_: object) -> None:
        pass
