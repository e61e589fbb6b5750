"""docker's config file and credential helpers: who is found, and that nothing secret shows."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from kiln.errors import BadInput, CannotHere
from kiln.registry.docker_config import Login, find_login

HUB = "https://index.docker.io/v1/"


def basic(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


def environ(folder: Path, config: object) -> dict[str, str]:
    """A DOCKER_CONFIG with this config.json, and a PATH with helpers of tests only."""
    folder.mkdir(exist_ok=True)
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "config.json").write_text(text)
    return {"DOCKER_CONFIG": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}


def helper(folder: Path, name: str, script: str) -> None:
    path = folder / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("registry.example", "registry.example"),
        ("registry.example", "https://registry.example"),
        ("registry.example", "https://registry.example/v2/"),
        ("registry.example:5000", "registry.example:5000"),
        ("docker.io", HUB),
        ("index.docker.io", HUB),
    ],
)
def test_auths(tmp_path: Path, host: str, key: str) -> None:
    config = {"auths": {"other.example": basic("no:no"), key: basic("user:pass:word")}}
    found = find_login(host, environ(tmp_path / "d", config))
    assert found == Login("user", "pass:word")


def test_a_port_is_another_registry(tmp_path: Path) -> None:
    config = {"auths": {"registry.example:5000": basic("user:x")}}
    assert find_login("registry.example", environ(tmp_path / "d", config)) is None


def test_tokens_of_auths(tmp_path: Path) -> None:
    config = {
        "auths": {
            "a.example": {"identitytoken": "refresh"},
            "b.example": {"registrytoken": "bearer"},
            "c.example": {},
        }
    }
    env = environ(tmp_path / "d", config)
    assert find_login("a.example", env) == Login(identity="refresh")
    assert find_login("b.example", env) == Login(bearer="bearer")
    assert find_login("c.example", env) is None


def test_no_file_is_no_login(tmp_path: Path) -> None:
    assert find_login("a.example", {"DOCKER_CONFIG": str(tmp_path / "none")}) is None
    assert find_login("a.example", {"HOME": str(tmp_path)}) is None


def test_the_helper_of_a_host_goes_before_the_store_of_all(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    config = {
        "credHelpers": {"a.example": "one"},
        "credsStore": "all",
        "auths": {"a.example": {}, "c.example": basic("file:file")},
    }
    env = environ(folder, config)
    # Each answers with the name that it was given, so what it was asked is tested too.
    answer = 'read -r host; printf \'{"Username": "%s", "Secret": "of-%s"}\' ME "$host"'
    helper(folder, "one", '[ "$1" = get ] || exit 9\n' + answer.replace("ME", "one"))
    helper(
        folder,
        "all",
        f"read -r host; [ $host = c.example ] && echo credentials not found in native keychain "
        f"&& exit 1; echo $host | {{ {answer.replace('ME', 'all')}; }}",
    )
    assert find_login("a.example", env) == Login("one", "of-a.example")
    assert find_login("b.example", env) == Login("all", "of-b.example")
    assert find_login("docker.io", env) == Login("all", f"of-{HUB}")
    assert find_login("c.example", env) == Login("file", "file"), "what no store has, a file may"


def test_a_helpers_refresh_token(tmp_path: Path) -> None:
    env = environ(tmp_path / "d", {"credsStore": "all"})
    helper(tmp_path / "d", "all", """echo '{"Username": "<token>", "Secret": "refresh"}'""")
    assert find_login("a.example", env) == Login(identity="refresh")


@pytest.mark.parametrize(
    "script",
    ["echo s3cret; echo s3cret >&2; exit 1", "echo s3cret", """echo '{"Secret": ["s3cret"]}'"""],
)
def test_a_helper_that_fails_is_named_and_not_quoted(tmp_path: Path, script: str) -> None:
    env = environ(tmp_path / "d", {"credsStore": "all"})
    helper(tmp_path / "d", "all", script)
    with pytest.raises(CannotHere) as caught:
        find_login("a.example", env)
    assert caught.value.code == "registry.helper"
    assert "docker-credential-all" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("name", ["../evil", "a b", "a/b", "none-of-that-name"])
def test_a_helper_that_cannot_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(CannotHere) as caught:
        find_login("a.example", environ(tmp_path / "d", {"credsStore": name}))
    assert caught.value.code == "registry.helper"


@pytest.mark.parametrize(
    "config",
    [
        '{"auths": {"a.example": {"auth": "s3cret!"}}}',
        {"auths": {"a.example": basic("s3cret-without-colon")}},
        {"auths": {"a.example": {"auth": 5}}},
        {"auths": ["s3cret"]},
        '{"auths": s3cret}',
        '{"auths"',
    ],
)
def test_a_bad_file_is_named_and_not_quoted(tmp_path: Path, config: object) -> None:
    env: Mapping[str, str] = environ(tmp_path / "d", config)
    with pytest.raises(BadInput) as caught:
        find_login("a.example", env)
    assert caught.value.code == "registry.bad-config"
    assert caught.value.where == str(tmp_path / "d" / "config.json")
    assert "s3cret" not in str(caught.value)
    assert base64.b64encode(b"s3cret-without-colon").decode() not in str(caught.value)


def test_a_login_does_not_print_its_secrets() -> None:
    login = Login("user", "s3cret", "s3cret", "s3cret")
    assert "s3cret" not in repr(login)
    assert base64.b64encode(b"user:s3cret").decode() in login.secrets
