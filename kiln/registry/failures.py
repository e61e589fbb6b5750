"""What a registry's answer means, as an error: by its status and by its own error codes.

Distribution spec, "Error Codes": {"errors": [{"code", "message", "detail"}]}. What is no
such document (a proxy's page of HTML) is said to be that. Nothing secret is shown: neither
the query of a URL (signed links carry keys there) nor what a server repeats of a request.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import urllib3

from kiln.errors import JudgedBad, KilnError, Unavailable
from kiln.fetch.failures import Later, plain
from kiln.fetch.url import redact

MAX_ERROR = 1 << 16  # bytes that are read of an error document
_SHOWN = 300


class _One(msgspec.Struct):
    code: str = ""
    message: str | None = None


class _Document(msgspec.Struct):
    errors: list[_One] = []


@dataclass(frozen=True)
class Answer:
    """A response that was read. url: where it came from, after redirects."""

    method: str
    url: str
    status: int
    headers: urllib3.HTTPHeaderDict = field(repr=False)
    data: bytes = field(repr=False)

    @property
    def where(self) -> str:
        """The URL for people."""
        return redact(self.url)

    @property
    def kind(self) -> str:
        """The media type, without parameters."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def codes(self) -> frozenset[str]:
        """The registry's own error codes."""
        return frozenset(error.code for error in self._errors)

    @property
    def _errors(self) -> list[_One]:
        try:
            return msgspec.json.decode(self.data, type=_Document).errors
        except msgspec.DecodeError:
            return []

    def words(self) -> str:
        """What the server says, on one line."""
        if errors := self._errors:
            text = "; ".join(f"{e.code}: {e.message or ''}".rstrip(": ") for e in errors)
        elif self.kind == "text/html" or self.data.lstrip()[:1] == b"<":
            title = re.search(rb"<title>(.*?)</title>", self.data, re.DOTALL | re.IGNORECASE)
            text = "a page of HTML, so no registry" + (
                f": {title[1].decode(errors='replace')}" if title else ""
            )
        else:
            text = self.data.decode(errors="replace")
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return text[:_SHOWN]


def refused(answer: Answer, scrub: Callable[[str], str] = str) -> KilnError:
    """The error for an answer that was not asked for. scrub: takes secrets out of a text."""
    words = scrub(answer.words())
    status, where = answer.status, answer.where
    why = f"HTTP status {status} to {answer.method}" + (f": {words}" if words else "")
    if status == 429:
        return _later(answer, "registry.rate-limited", "the registry asks to come back later", why)
    if (status >= 500 and status != 501) or status == 408:
        return _later(answer, "registry.server-error", "the registry failed", why)
    if "DIGEST_INVALID" in answer.codes and answer.method != "DELETE":
        return JudgedBad(
            "registry.digest-refused",
            "the registry got other bytes than the digest says",
            where=where,
            why=why,
            fix="`kiln fsck` says whether the store's bytes are good; if so, something between "
            "here and the registry changes them",
        )
    if "SIZE_INVALID" in answer.codes:
        return JudgedBad(
            "registry.wrong-size",
            "the registry got another size than was said",
            where=where,
            why=why,
        )
    code, what, fix = _meaning(answer)
    return Unavailable(code, what, where=where, why=why, fix=fix)


def _meaning(answer: Answer) -> tuple[str, str, str]:
    """Code, sentence and advice for an answer that will be the same next time."""
    codes, status = answer.codes, answer.status
    if codes & {"MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN"} and answer.method == "PUT":
        return (
            "registry.blob-unknown",
            "the registry lacks a blob that was there or was sent before",
            "push again: what is missing is sent",
        )
    if status == 401:
        return (
            "registry.unauthorized",
            "the registry does not take the credentials, or wants some",
            "`docker login` to this registry (DOCKER_CONFIG names the folder), then try again",
        )
    if status == 403:
        return (
            "registry.denied",
            "this account may not do that here",
            "ask whoever runs the registry for the right to it, or log in as someone else",
        )
    if status in (404, 410):
        return (
            "registry.not-found",
            "the registry does not have it",
            "check the name; a purged image comes back only if it is pushed again",
        )
    # Distribution says 400 DIGEST_INVALID to the wish to delete a tag alone.
    if status in (405, 501) or "UNSUPPORTED" in codes or (status, answer.method) == (400, "DELETE"):
        return (
            "registry.unsupported",
            "the registry does not offer this",
            "deleting is off by default in distribution (storage.delete.enabled), and it takes "
            "manifests by digest, with all their tags, and no tag alone"
            if answer.method == "DELETE"
            else "",
        )
    if status == 413:
        return (
            "registry.request-too-large",
            "something before the registry takes no body of this size",
            "raise the limit of the proxy before it (client_max_body_size and the like)",
        )
    return "registry.refused", "the registry refused", ""


def _later(answer: Answer, code: str, what: str, why: str) -> Later:
    error = Later(code, what, where=answer.where, why=why, fix="try again later")
    error.wait = retry_after(answer.headers.get("Retry-After", ""))
    return error


def retry_after(text: str) -> float:
    """Seconds of a Retry-After header, in either form; 0 where it says nothing."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0


def unreachable(url: str, error: BaseException) -> Later:
    """The error for a server that does not answer, or not to the end."""
    return Later(
        "registry.unreachable",
        "the registry cannot be reached",
        where=redact(url),
        why=plain(error),
        fix="check the name, the network and the proxy (HTTPS_PROXY, NO_PROXY), then try again",
    )


def bad_redirect(url: str, why: str) -> Unavailable:
    """The error for a redirect, or a Location, that is not followed."""
    return Unavailable(
        "registry.redirect",
        "the registry leads to where Kiln does not go",
        where=redact(url),
        why=why,
        fix="correct the registry's address; behind a proxy it has to know its own (`host`, "
        "`relativeurls` in distribution)",
    )
