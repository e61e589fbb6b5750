"""Requests to one registry with its authorization: what goes wrong comes out as an error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import urllib3

from kiln.errors import KilnError
from kiln.fetch.http import Access, Patience
from kiln.fetch.url import origin
from kiln.registry.auth import Auth, Scopes
from kiln.registry.docker_config import Login
from kiln.registry.failures import Answer, refused
from kiln.registry.model import MAX_MANIFEST
from kiln.registry.wire import Body, Wire


class Session:
    """A registry at an address. login: finds the user's credentials, when they are wanted."""

    def __init__(
        self,
        base: str,
        login: Callable[[], Login | None],
        access: Access | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.base, self.wire = base, Wire(access, patience)
        self._auth = Auth(base, self.wire, login)

    @contextlib.contextmanager
    def open(
        self,
        method: str,
        url: str,
        scopes: Scopes,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> Iterator[tuple[urllib3.BaseHTTPResponse, str]]:
        """The response, whatever its status; after a 401 the request was repeated, once."""
        permit = self._auth.permit(scopes)
        with contextlib.ExitStack() as stack:
            response, final = stack.enter_context(
                self.wire.open(method, url, permit, headers, body)
            )
            if response.status == 401 and origin(final) == origin(self.base):
                asked = response.headers.getlist("WWW-Authenticate")
                if (permit := self._auth.answer(asked, scopes, permit)) is not None:
                    stack.close()
                    response, final = stack.enter_context(
                        self.wire.open(method, url, permit, headers, body)
                    )
            yield response, final

    def once(
        self,
        method: str,
        url: str,
        scopes: Scopes,
        good: tuple[int, ...],
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        limit: int = MAX_MANIFEST,
    ) -> Answer:
        """The answer, if its status is good; else the error that it means."""
        with self.open(method, url, scopes, headers, body) as (response, final):
            answer = self.wire.answer(method, final, response, limit)
        if answer.status not in good:
            raise self.refused(answer)
        return answer

    def ask(
        self,
        method: str,
        url: str,
        scopes: Scopes,
        good: tuple[int, ...],
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> Answer:
        """As `once`, repeated within patience: for what may be asked twice."""
        return self.wire.retried(lambda: self.once(method, url, scopes, good, headers, body))

    def refused(self, answer: Answer) -> KilnError:
        """The error that an answer means, without secrets."""
        return refused(answer, self._auth.scrub)
