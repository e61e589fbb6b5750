"""Where the user's own clients look for wheels: the settings of pip and of uv.

They say where to look, never what to choose: constraints, `pre`, `upgrade`, index
strategies and the like are not taken. What is taken, the first that names it winning:

    default index   UV_DEFAULT_INDEX, UV_INDEX_URL, uv.toml, PIP_INDEX_URL, pip.conf,
                    else what uv itself takes when nothing is set (asked from uv, so that
                    no host is written here); none with pip's `no-index`
    extra indexes   UV_INDEX, UV_EXTRA_INDEX_URL, uv.toml, then pip's `extra-index-url`
    find-links      UV_FIND_LINKS, uv.toml, then pip's `find-links`
    certificates    pip's `cert` (PIP_CERT), SSL_CERT_FILE, REQUESTS_CA_BUNDLE
    proxy           pip's `proxy` (PIP_PROXY), else HTTPS_PROXY, HTTP_PROXY, NO_PROXY
    timeout         UV_HTTP_TIMEOUT, pip's `timeout`, in seconds

Of pip.conf the sections [global], [install] and [download] are read, in pip's order of
files: system, user, virtual environment, PIP_CONFIG_FILE; the environment goes last.
"""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from kiln.errors import BadInput, CannotHere
from kiln.fetch.http import Access
from kiln.fetch.url import check_url, origin, redact, split_credentials

_SECTIONS = ("global", "install", "download")
_LISTS = frozenset({"extra-index-url", "find-links"})
_KEYS = _LISTS | {"index-url", "no-index", "cert", "proxy", "timeout"}


@dataclass(frozen=True)
class Place:
    """A place to look at. url: without credentials. source: the setting that names it."""

    url: str
    source: str


@dataclass(frozen=True)
class Settings:
    """The user's settings, read once. default: None where indexes are switched off."""

    default: Place | None
    extra: tuple[Place, ...] = ()
    find_links: tuple[Place, ...] = ()
    access: Access = field(default_factory=Access)
    ca_source: str = ""

    def with_credentials(self, url: str) -> str:
        """The URL as another program needs it, with user and password. Never print it."""
        login = self.access.credentials.get(origin(url))
        if login is None:
            return url
        parts = urlsplit(url)
        user, password = (quote(text, safe="") for text in login)
        return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.netloc}"))

    def describe(self) -> list[str]:
        """Lines for `kiln doctor`: every place and who named it, nothing secret."""
        access = self.access
        places = [("index", self.default)] if self.default else []
        places += [("extra index", p) for p in self.extra]
        places += [("find-links", p) for p in self.find_links]
        lines = [f"{kind}: {redact(p.url)} ({p.source})" for kind, p in places]
        if self.default is None:
            lines.insert(0, "index: none (no-index is set)")
        ca = f"{access.ca} ({self.ca_source})" if access.ca else "the system's"
        lines.append(f"certificates: {ca}")
        if access.proxy:
            lines.append(f"proxy: {redact(access.proxy)} (pip's proxy)")
        if access.credentials:
            lines.append(f"credentials: for {', '.join(sorted(access.credentials))}")
        return lines


def read_settings(environ: Mapping[str, str] | None = None, home: Path | None = None) -> Settings:
    """The settings of this user on this machine.

    Raises BadInput "settings.bad-file" or "fetch.bad-url", naming the setting, and
    CannotHere "settings.no-uv" where no index is named and uv cannot be asked.
    """
    environ = os.environ if environ is None else environ
    home = Path.home() if home is None else home
    reader = _Reader()
    pip, uv = _pip(environ, home), _uv(environ, home)

    def first(*keys: tuple[dict[str, _Value], str]) -> _Value | None:
        return next((t[key] for t, key in keys if key in t and t[key].texts), None)

    def all_of(key: str) -> tuple[Place, ...]:
        values = [table[key] for table in (uv, pip) if key in table]
        found: dict[str, Place] = {}
        for place in (reader.place(text, v.source) for v in values for text in v.texts):
            found.setdefault(place.url, place)
        return tuple(found.values())

    named = first((uv, "index-url"), (pip, "index-url"))
    no_index = first((pip, "no-index"))
    if no_index is not None and _true(no_index.texts[0]):
        default = None
    elif named is not None:
        default = reader.place(named.texts[-1], named.source)
    else:
        default = reader.place(_uv_default(), "uv's own default")

    ca = first((pip, "cert")) or next(
        (
            _Value((environ[n],), n)
            for n in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
            if environ.get(n)
        ),
        None,
    )
    timeout = first((uv, "timeout"), (pip, "timeout"))
    proxy = first((pip, "proxy"))
    access = Access(
        credentials=reader.credentials,
        ca=str(Path(ca.texts[0]).expanduser()) if ca else "",
        proxy=proxy.texts[0] if proxy else "",
        read=_seconds(timeout) if timeout else Access.read,
    )
    extra = () if default is None else all_of("extra-index-url")
    return Settings(default, extra, all_of("find-links"), access, ca.source if ca else "")


@dataclass(frozen=True)
class _Value:
    """A setting's words and where they were found."""

    texts: tuple[str, ...]
    source: str


class _Reader:
    """Makes places of settings, and keeps the credentials that they carry."""

    def __init__(self) -> None:
        self.credentials: dict[str, tuple[str, str]] = {}

    def place(self, text: str, source: str) -> Place:
        if "://" not in text and not text.startswith("file:"):
            return Place(Path(text).expanduser().absolute().as_uri(), source)
        try:
            url, login = split_credentials(text)
        except ValueError:
            url, login = check_url("", source), None
        check_url(url, source)
        if login is not None:
            self.credentials.setdefault(origin(url), login)
        return Place(url, source)


# ---- pip -----------------------------------------------------------------------------------


def _pip(environ: Mapping[str, str], home: Path) -> dict[str, _Value]:
    found: dict[str, _Value] = {}
    for path in _pip_files(environ, home):
        found |= _pip_file(path)
    for name, text in environ.items():
        if name.startswith("PIP_") and text.strip():
            key = _pip_key(name.removeprefix("PIP_"))
            if key in _KEYS:
                found[key] = _Value(_texts(key, text), name)
    return found


def _pip_files(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    """pip's files, the later ones going before the earlier ones."""
    own = environ.get("PIP_CONFIG_FILE")
    if own == os.devnull:
        return
    for directory in reversed((environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)):
        yield Path(directory) / "pip" / "pip.conf"
    yield Path("/etc/pip.conf")
    if not (own and Path(own).exists()):
        yield home / ".pip" / "pip.conf"
        yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    yield Path(environ.get("VIRTUAL_ENV") or sys.prefix) / "pip.conf"
    if own:
        yield Path(own)


def _pip_file(path: Path) -> dict[str, _Value]:
    parser = configparser.RawConfigParser()
    try:
        if not path.is_file():
            return {}
        parser.read_string(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise _bad_file(path, error) from None
    return {
        key: _Value(_texts(key, text), f"{path} [{section}]")
        for section in _SECTIONS
        if parser.has_section(section)
        for name, text in parser.items(section)
        if (key := _pip_key(name)) in _KEYS
    }


def _pip_key(name: str) -> str:
    key = name.lower().replace("_", "-").removeprefix("--")
    return {"default-timeout": "timeout"}.get(key, key)


def _texts(key: str, text: str) -> tuple[str, ...]:
    if key in _LISTS:
        return tuple(text.split())
    return (text.strip(),) if text.strip() else ()


# ---- uv ------------------------------------------------------------------------------------


def _uv(environ: Mapping[str, str], home: Path) -> dict[str, _Value]:
    found = _uv_files(environ, home)

    def take(key: str, name: str, separator: str) -> None:
        if texts := tuple(t for t in re.split(separator, environ.get(name, "").strip()) if t):
            before = found.get(key)
            many = before is not None and key != "index-url" and before.source.startswith("UV_")
            source = f"{before.source}, {name}" if before and many else name
            found[key] = _Value((before.texts if before and many else ()) + texts, source)

    take("index-url", "UV_INDEX_URL", r"\s+")
    take("index-url", "UV_DEFAULT_INDEX", r"\s+")
    take("extra-index-url", "UV_INDEX", r"\s+")
    take("extra-index-url", "UV_EXTRA_INDEX_URL", r"\s+")
    take("find-links", "UV_FIND_LINKS", r"[,\s]+")
    take("timeout", "UV_HTTP_TIMEOUT", r"\s+")
    for key, value in found.items():
        if key != "timeout":
            # An index may be written name=url.
            plain = tuple(re.sub(r"^[A-Za-z0-9._-]+=(?=\w+:)", "", text) for text in value.texts)
            found[key] = _Value(plain, value.source)
    return found


def _uv_files(environ: Mapping[str, str], home: Path) -> dict[str, _Value]:
    if own := environ.get("UV_CONFIG_FILE"):
        paths: Sequence[Path] = [Path(own)]
    elif environ.get("UV_NO_CONFIG"):
        return {}
    else:
        user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "uv" / "uv.toml"
        paths = [Path("/etc/uv/uv.toml"), user]
    found: dict[str, _Value] = {}
    for path in paths:
        try:
            table = tomllib.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise _bad_file(path, error) from None
        for key, texts in _uv_table(table).items():
            if texts:
                found[key] = _Value(tuple(texts), str(path))
    return found


def _uv_table(table: Mapping[str, object]) -> dict[str, list[str]]:
    def strings(value: object) -> list[str]:
        items = value if isinstance(value, list) else [value]
        return [item for item in items if isinstance(item, str)]

    found: dict[str, list[str]] = {"index-url": [], "extra-index-url": [], "find-links": []}
    # uv itself lets the options below [pip] go before the general ones in `uv pip`.
    pip = table.get("pip")
    for part in (table, pip if isinstance(pip, dict) else {}):
        for key in found:
            found[key] = strings(part.get(key)) or found[key]
    indexes = table.get("index")
    for index in indexes if isinstance(indexes, list) else []:
        if isinstance(index, dict) and not index.get("explicit"):
            key = "index-url" if index.get("default") else "extra-index-url"
            found[key] += strings(index.get("url"))
    return found


def _uv_default() -> str:
    """The index that uv takes when nothing names one: it prints it on request."""
    from uv import find_uv_bin

    # With nothing to resolve, no settings and no network, only the index is left to print.
    arguments = ["pip", "compile", "-", "--emit-index-url", "--no-header", "--quiet"]
    arguments += ["--no-config", "--no-cache", "--offline", "--python", sys.executable]
    try:
        done = subprocess.run(
            [find_uv_bin(), *arguments],
            input="\n",
            text=True,
            capture_output=True,
            timeout=60,
            env={"PATH": os.defpath, "HOME": os.devnull},
            cwd="/",
        )
        why = done.stderr
        match = re.search(r"^--(?:default-index|index-url)[ =](\S+)$", done.stdout, re.MULTILINE)
    except (OSError, subprocess.TimeoutExpired) as error:
        match, why = None, str(error)
    if match is None:
        raise CannotHere(
            "settings.no-uv",
            "no index is named, and uv does not tell its own",
            why=why.strip(),
            fix="name an index in PIP_INDEX_URL or pip.conf, or install Kiln's `uv` anew",
        )
    return match[1]


# ---- values --------------------------------------------------------------------------------


def _true(text: str) -> bool:
    return text.lower() in ("1", "y", "yes", "t", "true", "on")


def _seconds(value: _Value) -> float:
    try:
        return max(1.0, float(value.texts[0]))
    except ValueError:
        raise BadInput(
            "settings.bad-value",
            f"{value.texts[0]!r} is no number of seconds",
            where=value.source,
        ) from None


def _bad_file(path: Path, error: Exception) -> BadInput:
    # Parsers quote the line that they cannot read, and it may hold a password.
    return BadInput(
        "settings.bad-file",
        "the settings file cannot be read",
        where=str(path),
        why=type(error).__name__,
        fix="correct the file; `pip config debug` shows what pip makes of it",
    )
