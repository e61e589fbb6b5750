"""A registry in memory that keeps the distribution spec, and breaks it where a test says so."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

from kiln.fetch.http import Patience
from kiln.registry.docker_config import Login
from kiln.registry.http import HttpRegistry
from kiln.registry.model import Source
from kiln.registry.names import Repository, parse_name

USER, PASSWORD = "kiln", "s3cret-Passw0rd"


@dataclass(frozen=True)
class Request:
    """A request as it came. path: without the query, which is in `query`."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def authorization(self) -> str:
        return self.headers.get("authorization", "")


@dataclass(frozen=True)
class Reply:
    """What to send. cut: reset the connection after so many bytes of the body."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None


Handler = Callable[[Request], Reply | None]


@dataclass
class _Rule:
    method: str
    pattern: re.Pattern[str]
    handler: Handler
    times: int | None
    takes: int | None


def error(status: int, code: str, message: str = "", **headers: str) -> Reply:
    """A document of errors, as the spec has it."""
    body = json.dumps({"errors": [{"code": code, "message": message}]}).encode()
    return Reply(status, {"Content-Type": "application/json", **headers}, body)


def sha(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


class FakeRegistry:
    """state: `blobs` and `manifests` by (repository, name). auth: "", "basic" or "bearer".
    certificate: a file with key and certificate, for TLS."""

    def __init__(
        self, auth: str = "", *, referrers: bool = True, certificate: Path | None = None
    ) -> None:
        self.auth, self.referrers = auth, referrers
        self.seen: list[Request] = []
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[bytes, str]] = {}
        self.uploads: dict[str, bytearray] = {}
        self.tokens: dict[str, str] = {}  # token -> the scopes that it is good for
        self.issued = 0
        self._begun = 0
        self._rules: list[_Rule] = []
        self._lock = threading.RLock()
        outer = self

        class Serve(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def _any(self) -> None:
                outer._serve(self)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _any

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass

        self._server = Quiet(("127.0.0.1", 0), Serve)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> FakeRegistry:
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
        return f"127.0.0.1:{self._server.server_address[1]}"

    def on(
        self,
        method: str,
        pattern: str,
        handler: Handler | Reply,
        times: int | None = 1,
        takes: int | None = None,
    ) -> None:
        """Answer requests so, whose path the pattern is found in; the first rule that fits.

        times: how often; None for always. A handler that returns None leaves it to the
        registry. takes: read so many bytes of the body only, and keep them in the upload.
        """
        answer = (lambda _: handler) if isinstance(handler, Reply) else handler
        self._rules.append(_Rule(method, re.compile(pattern), answer, times, takes))

    def count(self, method: str, pattern: str = "") -> int:
        """Requests that came."""
        return sum(s.method == method and bool(re.search(pattern, s.path)) for s in self.seen)

    def expire(self) -> None:
        """No token that was given is good any more."""
        with self._lock:
            self.tokens.clear()

    def put_blob(self, repository: str, data: bytes) -> str:
        self.blobs[repository, sha(data)] = data
        return sha(data)

    # ---- serving -----------------------------------------------------------------------

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        rule = self._rule(handler.command, parts.path)
        length = int(handler.headers.get("Content-Length", "0"))
        taken = length if rule is None or rule.takes is None else min(length, rule.takes)
        body = handler.rfile.read(taken)
        headers = {k.lower(): v for k, v in handler.headers.items()}
        query = parse_qs(parts.query, keep_blank_values=True)
        request = Request(handler.command, parts.path, query, headers, body)
        with self._lock:
            self.seen.append(request)
            if rule is not None and rule.takes is not None:
                self.uploads[parts.path.rsplit("/", 1)[-1]] += body
            reply = rule.handler(request) if rule is not None else None
            reply = reply or self._refused(request) or self._answer(request)
        self._send(handler, reply)
        if taken < length:
            handler.close_connection = True
            _reset(handler.connection)

    def _rule(self, method: str, path: str) -> _Rule | None:
        with self._lock:
            for rule in self._rules:
                if rule.method == method and rule.pattern.search(path) and rule.times != 0:
                    rule.times = None if rule.times is None else rule.times - 1
                    return rule
        return None

    def _send(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        if reply.status == 0:  # no answer at all
            handler.close_connection = True
            _reset(handler.connection)
            return
        handler.send_response(reply.status)
        headers = {"Content-Length": str(len(reply.body)), **reply.headers}
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(reply.body[: reply.cut])
            if reply.cut is not None:
                handler.close_connection = True
                handler.wfile.flush()
                _reset(handler.connection)

    def _refused(self, request: Request) -> Reply | None:
        if not self.auth or request.path == "/token":
            return None
        if self.auth == "basic":
            good = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            challenge = 'Basic realm="fake"'
            if request.authorization == good:
                return None
        else:
            scope = self._scope(request)
            challenge = f'Bearer realm="http://{self.host}/token",service="fake",scope="{scope}"'
            granted = self.tokens.get(request.authorization.removeprefix("Bearer "), "")
            name, _, wanted = scope.rpartition(":")
            for one in granted.split():
                resource, _, actions = one.rpartition(":")
                if resource == name and set(wanted.split(",")) <= set(actions.split(",")):
                    return None
        return error(401, "UNAUTHORIZED", "who are you?", **{"WWW-Authenticate": challenge})

    def _scope(self, request: Request) -> str:
        match = re.match(r"/v2/(.+)/(blobs|manifests|tags|referrers)/", request.path)
        name = match[1] if match else ""
        actions = {"GET": "pull", "HEAD": "pull", "DELETE": "delete"}
        return f"repository:{name}:{actions.get(request.method, 'pull,push')}"

    def _answer(self, request: Request) -> Reply:
        if request.path == "/token":
            return self._token(request)
        match = re.fullmatch(
            r"/v2/(.+?)/(blobs/uploads|blobs|manifests|tags|referrers)/(.*)", request.path
        )
        if match is None:
            return error(404, "NOT_FOUND")
        name, kind, rest = match.groups()
        kinds = {
            "blobs/uploads": self._upload,
            "blobs": self._blob,
            "manifests": self._manifest,
            "tags": self._tags,
            "referrers": self._referrers,
        }
        return kinds[kind](request, name, rest)

    def _token(self, request: Request) -> Reply:
        if request.method == "POST":
            scopes = " ".join(parse_qs(request.body.decode()).get("scope", []))
        else:
            scopes = " ".join(request.query.get("scope", []))
        self.issued += 1
        token = f"token-{self.issued}-of-the-fake"
        self.tokens[token] = scopes
        body = json.dumps({"token": token, "expires_in": 300}).encode()
        return Reply(200, {"Content-Type": "application/json"}, body)

    def _blob(self, request: Request, name: str, digest: str) -> Reply:
        data = self.blobs.get((name, digest))
        if data is None:
            return error(404, "BLOB_UNKNOWN")
        headers = {"Docker-Content-Digest": digest, "Content-Type": "application/octet-stream"}
        wanted = re.fullmatch(r"bytes=([0-9]+)-", request.headers.get("range", ""))
        if request.method == "GET" and wanted:
            start = int(wanted[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            return Reply(206, headers, data[start:])
        return Reply(200, headers, data)

    def _upload(self, request: Request, name: str, upload: str) -> Reply:
        if request.method == "POST":
            digest = request.query.get("mount", [""])[0]
            source = request.query.get("from", [""])[0]
            if digest and (source, digest) in self.blobs:
                self.blobs[name, digest] = self.blobs[source, digest]
                return Reply(201, {"Location": f"/v2/{name}/blobs/{digest}"})
            self._begun += 1
            upload = f"u{self._begun}"
            self.uploads[upload] = bytearray()
            return self._under_way(202, name, upload)
        if upload not in self.uploads:
            return error(404, "BLOB_UPLOAD_UNKNOWN")
        data = self.uploads[upload]
        if request.method == "GET":
            return self._under_way(204, name, upload)
        wanted = request.headers.get("content-range", "")
        if wanted and int(wanted.partition("-")[0]) != len(data):
            return self._under_way(416, name, upload)
        data += request.body
        if request.method == "PATCH":
            return self._under_way(202, name, upload)
        digest = request.query["digest"][0]
        del self.uploads[upload]
        if sha(bytes(data)) != digest:
            return error(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
        self.blobs[name, digest] = bytes(data)
        return Reply(201, {"Docker-Content-Digest": digest})

    def _under_way(self, status: int, name: str, upload: str) -> Reply:
        size = len(self.uploads[upload])
        where = f"/v2/{name}/blobs/uploads/{upload}?_state=opaque-{size}"
        return Reply(status, {"Location": where, "Range": f"0-{max(size - 1, 0)}"})

    def _manifest(self, request: Request, name: str, reference: str) -> Reply:
        if request.method == "PUT":
            return self._put_manifest(request, name, reference)
        found = self.manifests.get((name, reference))
        if found is None:
            return error(404, "MANIFEST_UNKNOWN")
        if request.method == "DELETE":
            gone = sha(found[0]) if ":" in reference else ""
            for key in [k for k, v in self.manifests.items() if k[0] == name]:
                if key[1] == reference or sha(self.manifests[key][0]) == gone:
                    del self.manifests[key]
            return Reply(202)
        data, kind = found
        return Reply(200, {"Content-Type": kind, "Docker-Content-Digest": sha(data)}, data)

    def _put_manifest(self, request: Request, name: str, reference: str) -> Reply:
        data = request.body
        document = json.loads(data)
        for part in [document.get("config"), *document.get("layers", [])]:
            if part and (name, part["digest"]) not in self.blobs:
                return error(400, "MANIFEST_BLOB_UNKNOWN", part["digest"])
        if ":" in reference and reference != sha(data):
            return error(400, "DIGEST_INVALID")
        entry = data, request.headers["content-type"]
        self.manifests[name, sha(data)] = self.manifests[name, reference] = entry
        headers = {"Docker-Content-Digest": sha(data)}
        if self.referrers and "subject" in document:
            headers["OCI-Subject"] = document["subject"]["digest"]
        return Reply(201, headers)

    def _tags(self, request: Request, name: str, rest: str) -> Reply:
        tags = sorted(t for n, t in self.manifests if n == name and ":" not in t)
        if not any(n == name for n, _ in self.manifests):
            return error(404, "NAME_UNKNOWN")
        last = request.query.get("last", [""])[0]
        page = [t for t in tags if t > last][:2]
        headers = {"Content-Type": "application/json"}
        if page and page[-1] != tags[-1]:
            headers["Link"] = f'</v2/{name}/tags/list?n=2&last={page[-1]}>; rel="next"'
        return Reply(200, headers, json.dumps({"name": name, "tags": page}).encode())

    def _referrers(self, request: Request, name: str, digest: str) -> Reply:
        if not self.referrers:
            return Reply(404, {"Content-Type": "text/plain"}, b"404 page not found\n")
        found = []
        for (owner, reference), (data, kind) in self.manifests.items():
            document = json.loads(data)
            subject = document.get("subject", {}).get("digest")
            if (owner, subject) == (name, digest) and ":" in reference:
                own = {"mediaType": kind, "digest": sha(data), "size": len(data)}
                found.append({**own, "artifactType": document.get("artifactType", "")})
        index = "application/vnd.oci.image.index.v1+json"
        body = json.dumps({"schemaVersion": 2, "mediaType": index, "manifests": found}).encode()
        return Reply(200, {"Content-Type": index}, body)


def source(data: bytes) -> Source:
    """Bytes to be sent."""
    return lambda: io.BytesIO(data)


def client(
    fake: FakeRegistry,
    repository: str = "team/kiln",
    *,
    login: Login | None = None,
    chunk: int = 1 << 26,
    attempts: int = 3,
) -> HttpRegistry:
    """A client with little patience. login: the right one, if none is given."""
    place = parse_name(f"{fake.host}/{repository}").place
    assert isinstance(place, Repository)
    return HttpRegistry(
        place,
        login=lambda: login or Login(USER, PASSWORD),
        patience=Patience(attempts=attempts, delay=0.01, longest=2),
        chunk=chunk,
    )


def _reset(connection: socket.socket) -> None:
    """Close with a reset, not with an end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
