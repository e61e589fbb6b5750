"""The client against scripted servers: whole replies, and each way not to give one."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kiln.errors import BadInput
from kiln.run import client as module
from kiln.run.client import CallFailed, Client
from tests.helpers.server import Answer, Server, closed_port

Script = Callable[[socket.socket], None]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a server's own bind knows at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="k"))
    yield path
    shutil.rmtree(path)


@contextlib.contextmanager
def listening(path: Path, script: Script) -> Iterator[None]:
    """A Unix server that reads a request's head and lets the script answer."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                data = b""
                while b"\r\n\r\n" not in data:
                    data += connection.recv(65536)
                script(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(5)


def says(*pieces: bytes, pause: float = 0) -> Script:
    def script(connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(pause)

    return script


OK = b"HTTP/1.1 200 OK\r\nX-Kiln: a\r\n"


def chunked(*parts: bytes) -> list[bytes]:
    return [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]


def failure(client: Client, seconds: float = 5) -> str:
    with pytest.raises(CallFailed) as caught:
        client.get("/x", seconds)
    assert caught.value.where.startswith("GET ")
    assert caught.value.exit_code == 1
    return caught.value.code


def test_a_whole_reply(folder: Path) -> None:
    with listening(folder / "s", says(OK + b'Content-Length: 8\r\n\r\n{"a": 1}')):
        reply = Client.unix(folder / "s").post_json("/x", {"b": 2})
    assert (reply.status, reply.json(), reply.headers["x-kiln"]) == (200, {"a": 1}, "a")
    assert reply.body == b'{"a": 1}'
    assert 0 < reply.seconds < 5


def test_statuses_are_data(folder: Path) -> None:
    with listening(folder / "s", says(b"HTTP/1.1 503 No\r\nContent-Length: 3\r\n\r\nno!")):
        reply = Client.unix(folder / "s").get("/health")
    assert (reply.status, reply.body) == (503, b"no!")
    with pytest.raises(CallFailed) as caught:
        reply.json()
    assert caught.value.code == "run.broken"


def test_nobody_there(folder: Path) -> None:
    assert failure(Client.unix(folder / "none")) == "run.refused"
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(folder / "bound"))  # vLLM while it loads: bound, not listening
    assert failure(Client.unix(folder / "bound")) == "run.refused"
    bound.close()
    assert failure(Client.url(f"http://127.0.0.1:{closed_port()}")) == "run.refused"


def test_a_link_to_another_servers_socket_is_not_followed(folder: Path) -> None:
    with listening(folder / "other", says(OK + b"Content-Length: 0\r\n\r\n")):
        (folder / "s").symlink_to(folder / "other")
        assert failure(Client.unix(folder / "s")) == "run.broken"
        assert Client.unix(folder / "other").get("/x").status == 200
    (folder / "file").touch()
    assert failure(Client.unix(folder / "file")) == "run.broken"


def test_paths_longer_than_the_kernels_limit(folder: Path, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    with listening(folder / "s", says(OK + b"Content-Length: 0\r\n\r\n")):
        long.mkdir()
        (folder / "s").rename(long / "s")
        assert len(os.fsencode(long / "s")) > 108
        assert Client.unix(long / "s").get("/x").status == 200


@pytest.mark.parametrize(
    "script",
    [
        says(),
        says(b"SSH-2.0-OpenSSH\r\n"),
        says(OK + b"Content-Length: 10\r\n\r\nshort"),
        says(OK + b"Transfer-Encoding: chunked\r\n\r\n", chunked(b"half")[0]),
        says(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
    ],
    ids=["closed", "not http", "cut length", "cut chunks", "bad chunk"],
)
def test_broken_off(folder: Path, script: Script) -> None:
    with listening(folder / "s", script):
        assert failure(Client.unix(folder / "s")) == "run.broken"
        with pytest.raises(CallFailed) as caught:
            Client.unix(folder / "s").stream("/x", {})
        assert caught.value.code == "run.broken"


@pytest.mark.parametrize(
    "script",
    [
        lambda connection: time.sleep(2),
        says(*[b"H"] * 40, pause=0.05),
        says(OK + b"Content-Length: 100\r\n\r\n", *[b"x"] * 40, pause=0.05),
        says(OK + b"\r\n", *[b"x"] * 40, pause=0.05),
        says(OK + b"Transfer-Encoding: chunked\r\n\r\n", *chunked(*[b"x\n"] * 40), pause=0.05),
    ],
    ids=["silent", "slow head", "slow body", "body without end", "slow chunks"],
)
def test_one_deadline_for_all_of_it(folder: Path, script: Script) -> None:
    """Each single read is quick enough; a timeout of the socket alone would never strike."""
    with listening(folder / "s", script):
        start = time.monotonic()
        assert failure(Client.unix(folder / "s"), 0.3) == "run.timeout"
        with pytest.raises(CallFailed) as caught:
            Client.unix(folder / "s").stream("/x", {}, 0.3)
        assert caught.value.code == "run.timeout"
        assert time.monotonic() - start < 1.8


def test_a_reply_without_end_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REPLY", 1000)
    with listening(folder / "s", says(OK + b"\r\n", b"x" * 5000)):
        assert failure(Client.unix(folder / "s")) == "run.broken"
    endless = listening(folder / "t", says(OK + b"\r\n", b"data: x\n\n" * 500))
    with endless, pytest.raises(CallFailed) as caught:
        Client.unix(folder / "t").stream("/x", {})
    assert caught.value.code == "run.broken"


def test_streams_come_as_events_with_their_raw_bytes(folder: Path) -> None:
    text = b': hi\r\n\r\ndata: {"a":\r\ndata: 1}\r\n\r\nevent: x\ndata:b\n\ndata: [DONE]\n\n'
    parts = [text[:9], text[9:30], text[30:31], text[31:]]  # cut anywhere
    with listening(
        folder / "s",
        says(OK + b"Transfer-Encoding: chunked\r\n\r\n", *chunked(*parts), b"0\r\n\r\n"),
    ):
        stream = Client.unix(folder / "s").stream("/x", {})
    assert stream.events == (b'{"a":\n1}', b"b", b"[DONE]")
    assert stream.body == text
    assert stream.done
    assert len(stream.times) == 3
    assert list(stream.times) == sorted(stream.times)


def test_a_stream_that_just_ends_is_not_done(folder: Path) -> None:
    end = [*chunked(b"data: a\n\n", b"data: [DONE]"), b"0\r\n\r\n"]
    with listening(folder / "s", says(OK + b"Transfer-Encoding: chunked\r\n\r\n", *end)):
        stream = Client.unix(folder / "s").stream("/x", {})
    assert stream.events == (b"a",)  # an event ends with an empty line
    assert not stream.done


def test_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with Server() as server:
        server.on("/base/v1/models", Answer(b"{}"))
        client = Client.url(server.url("/base/"), {"Authorization": "Bearer secret"})
        assert client.get("/v1/models").status == 200
        assert server.seen[0].headers["Authorization"] == "Bearer secret"
        assert "secret" not in client.name


@pytest.mark.parametrize(
    "url", ["ftp://a", "a:80", "http://", "http://u:p@h/", "http://h:99999", "http://h/?a=1", ""]
)
def test_no_urls(url: str) -> None:
    with pytest.raises(BadInput) as caught:
        Client.url(url)
    assert caught.value.code == "run.bad-url"
    assert "u:p" not in str(caught.value)
