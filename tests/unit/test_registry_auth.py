"""Challenges and tokens: what is asked for, when anew, and that nothing secret goes astray."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

from kiln.canonical import digest
from kiln.errors import Unavailable
from kiln.registry.auth import Challenge, parse_challenges
from kiln.registry.docker_config import Login
from tests.helpers.fake_registry import (
    PASSWORD,
    USER,
    FakeRegistry,
    Reply,
    Request,
    client,
    error,
    source,
)

DATA = b"some layer " * 1000
BLOB = digest(DATA)


@pytest.fixture
def bearer() -> Iterator[FakeRegistry]:
    with FakeRegistry("bearer") as fake:
        fake.put_blob("team/kiln", DATA)
        yield fake


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (
            'Bearer realm="https://auth.example/token",service="r",scope="repository:a:pull,push"',
            [Challenge("bearer", "https://auth.example/token", "r", "repository:a:pull,push")],
        ),
        ("BASIC realm=fake", [Challenge("basic", "fake")]),
        ('Basic realm="a, b=\\"c\\""', [Challenge("basic", 'a, b="c"')]),
        (
            'Negotiate, Basic realm="x", Bearer realm = "https://t/" , error="invalid_token"',
            [
                Challenge("negotiate"),
                Challenge("basic", "x"),
                Challenge("bearer", "https://t/", error="invalid_token"),
            ],
        ),
        ("", []),
        ("=,=,", []),
        ('Bearer realm="unclosed', [Challenge("bearer")]),
    ],
)
def test_challenges(header: str, expected: list[Challenge]) -> None:
    assert parse_challenges([header]) == expected


def test_challenges_of_several_headers() -> None:
    found = parse_challenges(['Basic realm="a"', 'Bearer realm="b"'])
    assert [c.scheme for c in found] == ["basic", "bearer"]


def test_basic() -> None:
    with FakeRegistry("basic") as fake:
        fake.put_blob("team/kiln", DATA)
        registry = client(fake)
        assert registry.has_blob(BLOB)
        assert registry.has_blob(BLOB)
        sent = [bool(s.authorization) for s in fake.seen]
        assert sent == [False, True, True], "a password only goes where it is asked for"


def test_a_password_is_sent_in_utf_8() -> None:
    with FakeRegistry("basic") as fake, pytest.raises(Unavailable):
        client(fake, login=Login("kiln", "pä€s:s")).has_blob(BLOB)
    sent = fake.seen[-1].authorization.removeprefix("Basic ")
    assert base64.b64decode(sent).decode() == "kiln:pä€s:s"


def test_a_token_is_asked_for_once_a_scope(bearer: FakeRegistry) -> None:
    registry = client(bearer)
    for _ in range(3):
        assert registry.has_blob(BLOB)
    assert bearer.issued == 1
    asked = next(s for s in bearer.seen if s.path == "/token")
    assert asked.query["scope"] == ["repository:team/kiln:pull"]
    assert asked.query["service"] == ["fake"]
    assert base64.b64decode(asked.authorization.removeprefix("Basic ")) == (
        f"{USER}:{PASSWORD}".encode()
    )
    registry.write_blob(BLOB, source(DATA), lambda _: None)
    assert bearer.issued == 2, "pushing needs a token of its own, and one for all its requests"


def test_what_the_challenge_wants_is_added_to_the_scopes(bearer: FakeRegistry) -> None:
    bearer.on(
        "HEAD",
        "/blobs/",
        lambda r: error(
            401,
            "UNAUTHORIZED",
            **{
                "WWW-Authenticate": f'Bearer realm="http://{bearer.host}/token?a=b",'
                'scope="repository:team/kiln:pull,audit repository:base:pull"'
            },
        ),
    )
    assert client(bearer).has_blob(BLOB)
    asked = next(s for s in bearer.seen if s.path == "/token")
    assert asked.query == {
        "a": ["b"],
        "scope": ["repository:team/kiln:pull,audit", "repository:base:pull"],
    }


def test_a_refresh_token_is_posted(bearer: FakeRegistry) -> None:
    registry = client(bearer, login=Login(identity="refresh-s3cret"))
    assert registry.has_blob(BLOB)
    asked = next(s for s in bearer.seen if s.path == "/token")
    assert asked.method == "POST"
    assert b"grant_type=refresh_token" in asked.body
    assert b"refresh_token=refresh-s3cret" in asked.body
    assert not asked.query
    assert not asked.authorization


def test_a_token_of_the_config_file_is_used_as_it_is(bearer: FakeRegistry) -> None:
    bearer.tokens["given"] = "repository:team/kiln:pull"
    assert client(bearer, login=Login(bearer="given")).has_blob(BLOB)
    assert bearer.issued == 0


def test_a_token_that_ended_by_its_own_word_is_not_sent(bearer: FakeRegistry) -> None:
    def short(request: Request) -> Reply:
        bearer.issued += 1
        bearer.tokens[f"t{bearer.issued}"] = request.query["scope"][0]
        body = json.dumps({"access_token": f"t{bearer.issued}", "expires_in": 0}).encode()
        return Reply(200, {"Content-Type": "application/json"}, body)

    bearer.on("GET", "/token", short, times=None)
    registry = client(bearer)
    assert registry.has_blob(BLOB)
    assert registry.has_blob(BLOB)
    assert bearer.issued == 2


def test_r12_a_token_that_ends_in_mid_push(bearer: FakeRegistry) -> None:
    """401 with a challenge after the third PATCH: a new token, that request once more."""
    patches = 0

    def ends(request: Request) -> None:
        nonlocal patches
        patches += 1
        if patches == 4:
            bearer.expire()

    bearer.on("PATCH", "/uploads/", ends, times=None)
    data = bytes(range(256)) * 24
    registry = client(bearer, chunk=1024)
    registry.write_blob(digest(data), source(data), lambda _: None)
    assert bearer.blobs["team/kiln", str(digest(data))] == data
    assert patches == 7, "six chunks, one of them twice"
    assert bearer.issued == 3, "to push, the same again, and to look"


def test_endless_401_is_an_error_and_no_loop(bearer: FakeRegistry) -> None:
    challenge = f'Bearer realm="http://{bearer.host}/token",service="fake"'
    bearer.on(
        "HEAD", "/blobs/", error(401, "UNAUTHORIZED", **{"WWW-Authenticate": challenge}), times=None
    )
    with pytest.raises(Unavailable) as caught:
        client(bearer).has_blob(BLOB)
    assert caught.value.code == "registry.unauthorized"
    assert caught.value.exit_code == 3
    assert bearer.count("HEAD") == 2
    assert bearer.issued == 1


def test_a_wrong_password(bearer: FakeRegistry) -> None:
    def wrong(request: Request) -> Reply:
        # A server that is so kind as to repeat what it got.
        got = request.authorization.removeprefix("Basic ")
        text = f"no: {got} {base64.b64decode(got).decode()}"
        return error(401, "UNAUTHORIZED", text)

    bearer.on("GET", "/token", wrong, times=None)
    with pytest.raises(Unavailable) as caught:
        client(bearer, login=Login("kiln", "wr0ng-s3cret")).has_blob(BLOB)
    assert caught.value.code == "registry.unauthorized"
    text = str(caught.value)
    assert "***" in text
    assert "wr0ng-s3cret" not in text
    assert base64.b64encode(b"kiln:wr0ng-s3cret").decode() not in text
    assert bearer.count("GET", "/token") == 1


def test_a_token_that_a_server_repeats_is_not_shown(bearer: FakeRegistry) -> None:
    bearer.on("GET", "/manifests/", lambda r: error(403, "DENIED", r.authorization) if
              r.authorization else None, times=None)  # fmt: skip
    with pytest.raises(Unavailable) as caught:
        client(bearer).read_manifest("v1")
    assert caught.value.code == "registry.denied"
    assert "Bearer ***" in caught.value.why
    assert "token-1" not in str(caught.value)


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"{}", b'{"token": 5}', b'{"token": ""}', b'{"token": "a\\nb: c"}']
)
def test_no_token_from_the_token_server(bearer: FakeRegistry, body: bytes) -> None:
    bearer.on("GET", "/token", Reply(200, {"Content-Type": "text/html"}, body), times=None)
    with pytest.raises(Unavailable) as caught:
        client(bearer).has_blob(BLOB)
    assert caught.value.code == "registry.no-token"


def test_a_token_server_that_fails_for_a_while(bearer: FakeRegistry) -> None:
    bearer.on("GET", "/token", Reply(503), times=2)
    assert client(bearer).has_blob(BLOB)
    bearer.on("GET", "/token", Reply(503), times=None)
    with pytest.raises(Unavailable) as caught:
        client(bearer).has_blob(BLOB)
    assert caught.value.code == "registry.server-error"


def test_a_challenge_without_a_place(bearer: FakeRegistry) -> None:
    bearer.on("HEAD", "/blobs/", error(401, "X", **{"WWW-Authenticate": "Bearer"}), times=None)
    with pytest.raises(Unavailable) as caught:
        client(bearer).has_blob(BLOB)
    assert caught.value.code == "registry.bad-challenge"


def test_a_realm_of_another_scheme_gets_no_password(bearer: FakeRegistry) -> None:
    challenge = {"WWW-Authenticate": 'Bearer realm="file:///etc/passwd"'}
    bearer.on("HEAD", "/blobs/", error(401, "X", **challenge), times=None)
    with pytest.raises(Unavailable) as caught:
        client(bearer).has_blob(BLOB)
    assert caught.value.code == "registry.redirect"


def test_a_401_without_any_challenge(bearer: FakeRegistry) -> None:
    bearer.on("HEAD", "/blobs/", Reply(401), times=None)
    with pytest.raises(Unavailable) as caught:
        client(bearer).has_blob(BLOB)
    assert caught.value.code == "registry.unauthorized"
    assert bearer.count("HEAD") == 1


def test_a_redirected_token_request_takes_no_password_along(bearer: FakeRegistry) -> None:
    with FakeRegistry() as other:
        target = f"http://{other.host}/token"
        bearer.on("GET", "/token", Reply(302, {"Location": target}), times=None)
        with pytest.raises(Unavailable):
            client(bearer).has_blob(BLOB)
        assert other.count("GET", "/token") >= 1
        assert not any(s.authorization for s in other.seen)
        bearer.on("POST", "/token", Reply(307, {"Location": target}), times=None)
        with pytest.raises(Unavailable) as caught:
            client(bearer, login=Login(identity="refresh-s3cret")).has_blob(BLOB)
        assert caught.value.code == "registry.redirect"
        assert not any(s.method == "POST" for s in other.seen)
