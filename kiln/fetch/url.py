"""URLs as settings and pages give them: checked, and parted from their credentials."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from kiln.errors import BadInput


def origin(url: str) -> str:
    """Scheme, host and port of a URL, in one spelling: "https://host:443"."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{port}"


def split_credentials(url: str) -> tuple[str, tuple[str, str] | None]:
    """The URL without user and password, and those two."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    user, _, password = login.partition(":")
    return urlunsplit(parts._replace(netloc=host)), (unquote(user), unquote(password))


def redact(url: str) -> str:
    """The URL for people: no user and password, and no query (signed links carry keys there)."""
    try:
        parts = urlsplit(split_credentials(url)[0])
    except ValueError:
        return "(a URL that cannot be parsed)"
    return urlunsplit(parts._replace(query="***" if parts.query else "", fragment=""))


def _usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError where it is no number
    except ValueError:
        return False
    if any(ord(char) <= 32 for char in url):
        return False
    if parts.scheme == "file":
        return parts.netloc in ("", "localhost")
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def check_url(url: str, where: str = "") -> str:
    """The URL itself if it is http, https or a local file; BadInput("fetch.bad-url") if not."""
    if not _usable(url):
        raise BadInput(
            "fetch.bad-url",
            f"{redact(url)!r} is not a URL to fetch from",
            where=where,
            fix="give an http:// or https:// URL, or a file:// URL of this machine",
        )
    return url


def local_path(url: str) -> Path | None:
    """The path of a file:// URL; None for other URLs."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
