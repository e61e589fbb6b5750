"""Tokens: what a registry challenges for, where it says one is given, and how long it lasts.

Distribution's "Token Authentication Specification" and RFC 9110, section 11. A token is
kept for the scopes it was asked for. One that ends in mid-push is asked for anew when the
registry says 401, once for a request: a second 401 is an error, never a loop (R12).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from kiln.errors import KilnError, Unavailable
from kiln.fetch.url import origin, redact
from kiln.registry.docker_config import Login
from kiln.registry.failures import refused
from kiln.registry.wire import Body, Permit, Wire, follow

Scopes = tuple[str, ...]

_MAX_TOKEN = 1 << 20  # bytes of a token server's answer
_USUAL, _EARLY = 60, 10  # seconds: the spec's default life of a token; asked for so much before
# A name, then a comma-separated list of key=value or key="value" (RFC 9110, 11.6.1).
_PAIR = re.compile(r'\s*,?\s*([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_SCHEME = re.compile(r"\s*,?\s*([A-Za-z][A-Za-z0-9-]*)(?=\s|$|,)(?!\s*=)")


@dataclass(frozen=True)
class Challenge:
    """One challenge of a WWW-Authenticate header. scheme: in lower case."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""
    error: str = ""


def parse_challenges(headers: Sequence[str]) -> list[Challenge]:
    """All challenges of all WWW-Authenticate headers; what cannot be read is left out."""
    found = []
    for header in headers:
        at = 0
        while match := _SCHEME.match(header, at):
            at, values = match.end(), dict[str, str]()
            while pair := _PAIR.match(header, at):
                at = pair.end()
                text = pair[3] if pair[2] is None else re.sub(r"\\(.)", r"\1", pair[2])
                values.setdefault(pair[1].lower(), text)
            known = {k: values.get(k, "") for k in ("realm", "service", "scope", "error")}
            found.append(Challenge(match[1].lower(), **known))
    return found


class _Answer(msgspec.Struct):
    token: str = ""
    access_token: str = ""
    expires_in: float | None = None


@dataclass(frozen=True)
class _Token:
    value: str = field(repr=False)
    until: float  # by time.monotonic()


class Auth:
    """Headers for one registry. login: asked once, when the registry first wants to know."""

    def __init__(self, base: str, wire: Wire, login: Callable[[], Login | None]) -> None:
        self._origin, self._wire, self._find = origin(base), wire, login
        self._lock = threading.Lock()
        self._login: Login | None = None
        self._asked = False
        self._challenge: Challenge | None = None
        self._tokens: dict[Scopes, _Token] = {}
        self._secrets: set[str] = set()

    def permit(self, scopes: Scopes) -> Permit | None:
        """What is known to let a request through; None before the first challenge."""
        with self._lock:
            return self._permit(scopes)

    def _permit(self, scopes: Scopes) -> Permit | None:
        if self._challenge is None:
            return None
        if self._challenge.scheme == "basic":
            return self._basic(self._origin)
        token = self._tokens.get(scopes)
        if token is None or token.until <= time.monotonic():
            return None
        return Permit(self._origin, f"Bearer {token.value}")

    def answer(self, headers: Sequence[str], scopes: Scopes, used: Permit | None) -> Permit | None:
        """Do what a 401 asks for; `used` is what it was sent with.

        None where there is nothing to send that was not sent. Raises Unavailable, Later.
        """
        with self._lock:
            known = self._permit(scopes)
            if known is not None and known != used:
                return known  # another thread got it meanwhile
            challenges = {c.scheme: c for c in reversed(parse_challenges(headers))}
            challenge = challenges.get("bearer") or challenges.get("basic")
            if challenge is None:
                return None
            login = self._who()
            if challenge.scheme == "basic":
                self._challenge = challenge
                permit = self._basic(self._origin)
                return None if permit == used else permit
            self._challenge = challenge
            if login is not None and login.bearer:
                permit = Permit(self._origin, f"Bearer {login.bearer}")
                self._tokens[scopes] = _Token(login.bearer, float("inf"))
                return None if permit == used else permit
            self._tokens.pop(scopes, None)
            wanted = dict.fromkeys([*scopes, *challenge.scope.split()])
            self._tokens[scopes] = token = self._fetch(challenge, _merge(tuple(wanted)), login)
            return Permit(self._origin, f"Bearer {token.value}")

    def scrub(self, text: str) -> str:
        """The text without secrets, should a server repeat them."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _who(self) -> Login | None:
        if not self._asked:
            self._login, self._asked = self._find(), True
            self._secrets.update(self._login.secrets if self._login else ())
        return self._login

    def _basic(self, where: str) -> Permit | None:
        login = self._who()
        if login is None or not login.user:
            return None
        return Permit(where, f"Basic {login.basic}")

    def _fetch(self, challenge: Challenge, scopes: Scopes, login: Login | None) -> _Token:
        realm = self._realm(challenge.realm)
        service = {"service": challenge.service} if challenge.service else {}
        if login is not None and login.identity:
            form = {
                "grant_type": "refresh_token",
                "client_id": "kiln",
                "refresh_token": login.identity,
                "scope": " ".join(scopes),
                **service,
            }
            body = Body.of(urlencode(form).encode())
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            return self._ask("POST", realm, None, headers, body)
        parts = urlsplit(realm)
        query = [*parse_qsl(parts.query), *service.items(), *(("scope", s) for s in scopes)]
        url = parts._replace(query=urlencode(query)).geturl()
        return self._ask("GET", url, self._basic(origin(realm)), {}, None)

    def _realm(self, realm: str) -> str:
        """Where the token is to be had; passwords go there, so never down to plain http."""
        return follow(f"{self._origin}/v2/", realm) if realm else _no_realm(self._origin)

    def _ask(
        self,
        method: str,
        url: str,
        permit: Permit | None,
        headers: dict[str, str],
        body: Body | None,
    ) -> _Token:
        def attempt() -> _Token:
            start = time.monotonic()
            with self._wire.open(method, url, permit, headers, body) as (response, final):
                answer = self._wire.answer(method, final, response, _MAX_TOKEN)
            if answer.status != 200:
                error = refused(answer, self.scrub)
                raise _unauthorized(error) if answer.status in (400, 401, 403) else error
            try:
                got = msgspec.json.decode(answer.data, type=_Answer)
            except msgspec.DecodeError as error:
                raise _no_token(url, answer.kind) from error
            value = got.token or got.access_token
            if not value or not value.isascii() or not value.isprintable():
                raise _no_token(url, "it has no `token`")
            self._secrets.add(value)
            life = _USUAL if got.expires_in is None else got.expires_in
            return _Token(value, start + max(life - _EARLY, life / 2))

        return self._wire.retried(attempt)


def _merge(scopes: Scopes) -> Scopes:
    """One scope a resource, its actions together: some token servers take only the last."""
    merged: dict[str, dict[str, None]] = {}
    for scope in scopes:
        resource, _, actions = scope.rpartition(":")
        merged.setdefault(resource, {}).update(dict.fromkeys(actions.split(",")))
    return tuple(f"{resource}:{','.join(actions)}" for resource, actions in merged.items())


def _no_realm(base: str) -> str:
    raise Unavailable(
        "registry.bad-challenge",
        "the registry wants a token and does not say where to get one",
        where=base,
    )


def _no_token(url: str, why: str) -> Unavailable:
    return Unavailable(
        "registry.no-token",
        "the token server gives no token",
        where=redact(url),
        why=f"its answer is not what the token specification says ({why})",
    )


def _unauthorized(error: KilnError) -> Unavailable:
    return Unavailable(
        "registry.unauthorized",
        "the token server does not take the credentials",
        where=error.where,
        why=error.why,
        fix="`docker login` to this registry (DOCKER_CONFIG names the folder), then try again",
    )
