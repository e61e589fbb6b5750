"""Asking the server under test, and keeping every exchange as a blob."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kiln.canonical import dumps
from kiln.errors import KilnError
from kiln.run.client import Client, Reply
from kiln.store import BlobStore

SECONDS = 120.0  # for one reply; the first one with logprobs compiles a kernel on the CPU
READ_SECONDS = 20.0  # for /metrics, /version, /health: no engine is needed for these


class Unanswered(Exception):
    """No whole reply came. code: of the client's error, "run.timeout" among others."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Answer:
    """A reply, and the sha256 of the blob that keeps it with its question."""

    status: int
    content_type: str
    body: bytes
    events: tuple[bytes, ...]
    sha: str

    def json(self) -> Any:
        """The body as JSON; None where it is none. NaN and Infinity come as floats."""
        return loads(self.body)


class Asker:
    """Asks one server in one model's name.

    After a question that nobody answered it asks the engine nothing more: each would
    take its whole deadline. `dead` then says what happened.
    """

    def __init__(self, client: Client, blobs: BlobStore, model: str) -> None:
        self._client, self._blobs, self.model = client, blobs, model
        self.dead = ""

    def get(self, path: str) -> Answer:
        """GET, asked even of a dead engine. Raises Unanswered."""
        try:
            reply = self._client.get(path, READ_SECONDS)
        except KilnError as error:
            raise _unanswered(error) from error
        return self._keep("GET", path, None, reply)

    def post(self, path: str, body: Mapping[str, object], seconds: float = SECONDS) -> Answer:
        """POST, with the model's name put in. Raises Unanswered."""
        return self._ask(path, body, seconds, stream=False)

    def stream(self, path: str, body: Mapping[str, object], seconds: float = SECONDS) -> Answer:
        """POST with `stream` on; the answer has events. Raises Unanswered."""
        return self._ask(path, body, seconds, stream=True)

    def _ask(
        self, path: str, body: Mapping[str, object], seconds: float, *, stream: bool
    ) -> Answer:
        if self.dead:
            raise Unanswered("gate.dead", self.dead)
        whole = {"model": self.model, **body} | ({"stream": True} if stream else {})
        call = self._client.stream if stream else self._client.post_json
        try:
            reply = call(path, whole, seconds)
        except KilnError as error:
            self.dead = f"an earlier question had no answer ({error.what})"
            raise _unanswered(error) from error
        return self._keep("POST", path, whole, reply)

    def _keep(self, method: str, path: str, request: object, reply: Reply) -> Answer:
        content_type = reply.headers.get("content-type", "")
        record: dict[str, object] = {
            "method": method,
            "path": path,
            "request": "" if request is None else json.dumps(request, sort_keys=True),
            "status": reply.status,
            "content_type": content_type,
        }
        try:
            record["body"] = reply.body.decode()
        except UnicodeDecodeError:
            record["body_base64"] = base64.b64encode(reply.body).decode()
        sha = self._blobs.put(dumps(record)).sha256
        events = tuple(getattr(reply, "events", ()))
        return Answer(reply.status, content_type, reply.body, events, sha)


def _unanswered(error: KilnError) -> Unanswered:
    return Unanswered(error.code, f"{error.what} ({error.why})" if error.why else error.what)


def loads(data: bytes | str) -> Any:
    """JSON as Python reads it, NaN included; None for what is no JSON.

    Replies are hostile input: bad UTF-8, endless nesting, numbers of a million digits.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def is_bad_number(value: object) -> bool:
    """Whether it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    try:
        return not math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return True
