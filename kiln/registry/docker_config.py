"""Who the user is to a registry: docker's config file and its credential helpers.

DOCKER_CONFIG names the folder (default ~/.docker) of config.json; of it `auths`,
`credHelpers` and `credsStore` are read. A helper is the program docker-credential-NAME: it
gets the registry's name on stdin and answers JSON. Nothing secret stands in an error: not
what the file says, nor what a helper says when it fails.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kiln.errors import BadInput, CannotHere

_HUB_KEYS = frozenset({"index.docker.io", "docker.io", "registry-1.docker.io"})
_HUB = "https://index.docker.io/v1/"  # under which docker keeps the login of its own registry
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NONE = b"credentials not found"
_SECONDS = 60  # a helper may ask the user to unlock something
_MAX = 1 << 20  # bytes of a config file or of a helper's answer


@dataclass(frozen=True)
class Login:
    """What the user has for a registry. identity: a refresh token (OAuth 2) instead of a
    password; bearer: a token that is used as it is."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity: str = field(default="", repr=False)
    bearer: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """User and password as basic authorization has them; in UTF-8, as registries do."""
        return base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown."""
        basic = self.basic if self.password else ""
        return tuple(s for s in (self.password, self.identity, self.bearer, basic) if s)


class _Auth(msgspec.Struct, rename="lower"):
    auth: str = ""
    username: str = ""
    password: str = ""
    identity_token: str = msgspec.field(name="identitytoken", default="")
    registry_token: str = msgspec.field(name="registrytoken", default="")


class _File(msgspec.Struct, rename="camel"):
    auths: dict[str, _Auth] = {}
    cred_helpers: dict[str, str] = {}
    creds_store: str = ""


class _Helped(msgspec.Struct, rename="pascal"):
    username: str = ""
    secret: str = ""


def find_login(host: str, environ: Mapping[str, str] | None = None) -> Login | None:
    """The login for a registry's host[:port], or None.

    Asked for in docker's order: the host's own helper, else the store of all, else `auths`.
    Raises BadInput("registry.bad-config"), CannotHere("registry.helper").
    """
    environ = os.environ if environ is None else environ
    config, path = _read(environ)
    key = _key(host)
    helper = next((n for name, n in config.cred_helpers.items() if _key(name) == key), "")
    server = _HUB if key in _HUB_KEYS else host
    if name := helper or config.creds_store:
        found = _ask(name, server, environ)
        if found is not None:
            return found
    for name, auth in config.auths.items():
        if _key(name) == key and (login := _login(auth, path)) is not None:
            return login
    return None


def _key(name: str) -> str:
    """The host of a key of the file, which may be a URL with a path."""
    host = name.partition("://")[2] or name
    host = host.partition("/")[0].lower()
    return "docker.io" if host in _HUB_KEYS else host


def _read(environ: Mapping[str, str]) -> tuple[_File, Path]:
    folder = environ.get("DOCKER_CONFIG")
    path = Path(folder) if folder else Path(environ.get("HOME") or Path.home()) / ".docker"
    path /= "config.json"
    try:
        with path.open("rb") as file:
            data = file.read(_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return _File(), path
    except OSError as error:
        raise _bad_file(path, error.strerror or type(error).__name__) from error
    if len(data) > _MAX:
        raise _bad_file(path, f"it has more than {_MAX} bytes")
    try:
        return msgspec.json.decode(data, type=_File), path
    except msgspec.DecodeError as error:
        # Which key is wrong, never what stands there.
        raise _bad_file(path, re.sub(r"'[^']*'", "***", str(error))) from None


def _login(auth: _Auth, path: Path) -> Login | None:
    user, password = auth.username, auth.password
    if auth.auth:
        try:
            text = base64.b64decode(auth.auth, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise _bad_file(path, "an `auth` is not base64 of user:password") from None
        user, colon, password = text.partition(":")
        if not colon:
            raise _bad_file(path, "an `auth` is not base64 of user:password")
        password = password.rstrip("\0")
    login = Login(user, password, auth.identity_token, auth.registry_token)
    return login if login != Login() else None


def _bad_file(path: Path, why: str) -> BadInput:
    return BadInput(
        "registry.bad-config",
        "docker's config file cannot be used",
        where=str(path),
        why=why,
        fix="correct it, log in again with `docker login`, or set DOCKER_CONFIG to another folder",
    )


def _ask(name: str, server: str, environ: Mapping[str, str]) -> Login | None:
    program = f"docker-credential-{name}"
    if not _HELPER.fullmatch(name):
        raise _bad_helper(program[:100], "this is no name of a helper")
    try:
        done = subprocess.run(
            [program, "get"],
            input=server.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            timeout=_SECONDS,
            check=False,
        )
    except OSError as error:
        raise _bad_helper(program, error.strerror or type(error).__name__) from error
    except subprocess.TimeoutExpired:
        raise _bad_helper(program, f"it did not answer in {_SECONDS} s") from None
    if done.returncode != 0:
        if _NONE in done.stdout[:1000].lower():
            return None
        raise _bad_helper(program, f"it ended with code {done.returncode}")
    try:
        helped = msgspec.json.decode(done.stdout[:_MAX], type=_Helped)
    except msgspec.DecodeError:
        raise _bad_helper(program, "its answer is not the JSON that a helper gives") from None
    if not helped.secret:
        return None
    if helped.username == "<token>":
        return Login(identity=helped.secret)
    return Login(helped.username, helped.secret)


def _bad_helper(program: str, why: str) -> CannotHere:
    return CannotHere(
        "registry.helper",
        "the credential helper gives no login",
        where=program,
        why=why,
        fix="run it by hand (`echo HOST | PROGRAM get`), or take it out of docker's config file",
    )
