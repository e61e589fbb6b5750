"""A server that somebody else started, by its URL.

Kiln cannot look inside, start or stop it, nor say which image it runs, so what it gives
is partial evidence and never enough for a promotion.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from kiln.errors import BadInput, Unavailable
from kiln.image.read import Image
from kiln.run.client import CallFailed, Client
from kiln.run.runner import Launch, Server, Stopped


class EndpointRunner:
    """ "Starts" an image by believing that the URL serves it."""

    name = "endpoint"

    def __init__(self, url: str, model: str = "", headers: Mapping[str, str] | None = None) -> None:
        """model: which of the server's models; "" where it has only one. headers: sent
        with each request, never shown."""
        self._client, self._model = Client.url(url, headers), model

    @contextlib.contextmanager
    def start(self, image: Image, launch: Launch) -> Iterator[Server]:  # noqa: ARG002
        """See `Runner.start`; image and launch are not looked at.

        Raises Unavailable("run.unreachable"), BadInput("run.which-model").
        """
        yield _EndpointServer(self._client, self._model or self._only_model())

    def _only_model(self) -> str:
        try:
            reply = self._client.get("/v1/models")
            value = reply.json()
        except CallFailed as error:
            raise Unavailable(
                "run.unreachable",
                "the endpoint does not answer",
                where=self._client.name,
                why=str(error),
                fix="check the URL; it is the part before /v1",
            ) from error
        data = value.get("data") if isinstance(value, dict) else None
        names = [
            str(entry["id"])
            for entry in (data if isinstance(data, list) else [])
            if isinstance(entry, dict) and "id" in entry
        ]
        if len(names) != 1:
            raise BadInput(
                "run.which-model",
                "the endpoint does not serve exactly one model",
                where=self._client.name,
                why=f"HTTP {reply.status}; models: {', '.join(names) or 'none'}",
                fix="name the model to judge",
            )
        return names[0]


class _EndpointServer:
    """`exit_status` and `execute` are None: nobody can say."""

    confirms = ""

    def __init__(self, client: Client, model: str) -> None:
        self.client, self.model = client, model

    def alive(self) -> bool:
        """Whether anything answers there."""
        try:
            self.client.get("/v1/models")
        except CallFailed:
            return False
        return True

    def exit_status(self) -> int | None:
        return None

    def log_tail(self, lines: int) -> str:  # noqa: ARG002
        return ""

    def execute(
        self,
        argv: Sequence[str],  # noqa: ARG002
        seconds: float,  # noqa: ARG002
    ) -> tuple[int, bytes, bytes] | None:
        return None

    def stop(self) -> Stopped:
        return Stopped(0, clean=False, ours=False)
