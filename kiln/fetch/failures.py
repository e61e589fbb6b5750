"""What goes wrong between here and a server, as errors; and which of it may pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import Unavailable
from kiln.fetch.url import redact

if TYPE_CHECKING:
    import urllib3


class Later(Unavailable):
    """Not to be had now; trying again may help. wait: seconds that the server asked for."""

    wait: float = 0


class Stopped(Exception):  # not a KilnError: it is the user's Ctrl-C, seen by a thread
    """The work was asked to stop."""


def unreachable(url: str, why: str) -> Later:
    """The error for a server that does not answer."""
    return Later(
        "fetch.unreachable",
        "the server cannot be reached",
        where=redact(url),
        why=why,
        fix="check the network and the proxy (HTTPS_PROXY, NO_PROXY), then try again",
    )


def missing(url: str, error: OSError) -> Unavailable:
    """The error for a local file that cannot be read."""
    why = error.strerror or str(error)
    return Unavailable("fetch.not-found", "the file is not there", where=redact(url), why=why)


def refused(url: str, response: urllib3.BaseHTTPResponse) -> Unavailable:
    """The error for a response that is no file, by the kind of its status."""
    status, where = response.status, redact(url)
    why = f"HTTP status {status} {response.reason or ''}".rstrip()
    if status in (404, 410):
        return Unavailable("fetch.not-found", "the file is not there", where=where, why=why)
    if status >= 500 or status in (408, 429):
        error = Later(
            "fetch.server-error", "the server failed", where=where, why=why, fix="try again later"
        )
        after = response.headers.get("Retry-After", "")
        error.wait = float(after) if after.isdecimal() else 0
        return error
    return Unavailable(
        "fetch.refused",
        "the server refused",
        where=where,
        why=why,
        fix="check the credentials for this host (in the index URL or in netrc)",
    )


def plain(error: BaseException) -> str:
    """The innermost reason of a urllib3 error, without pools, objects and URLs."""
    while isinstance(
        inner := error.__cause__ or getattr(error, "reason", None) or error.__context__,
        BaseException,
    ):
        error = inner
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{type(error).__name__}: {text}"
