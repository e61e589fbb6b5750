"""What a person hands in: one mail of `git format-patch`, an mbox of several, a plain .diff.

Read as bytes and within bounds. What a mail says of itself (author, sign-off, pull request)
is kept as words for patch.yaml; nothing is made up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kiln.authoring import mail
from kiln.errors import BadInput

MAX_BYTES = 8 << 20
MAX_MAILS = 200
_MAIL = re.compile(rb"^From [0-9a-f]{7,64} .*\n", re.MULTILINE)
_NUMBER = re.compile(r"\(#(\d{1,7})\)\s*$")
_NAMED = re.compile(r"(?:^|[^0-9])(\d{3,7})\.(?:patch|diff)$")
_SIGNED = re.compile(rb"^Signed-off-by:[ \t]*(.+?)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Mail:
    """A patch as it came. message: for its commit. origin: what it says of where it is from."""

    data: bytes
    message: bytes
    title: str
    origin: str


def read_mails(data: bytes, name: str) -> list[Mail]:
    """The mails of an mbox, or the one patch that there is. name: of the file.

    Raises BadInput "authoring.too-large", "authoring.not-a-patch", "authoring.mail".
    """
    if len(data) > MAX_BYTES:
        raise unreadable("too-large", name, f"it has more than {MAX_BYTES >> 20} MiB")
    if b"\0" in data:
        raise unreadable("not-a-patch", name, "it holds NUL bytes: it is no text")
    starts = [match.start() for match in _MAIL.finditer(data)]
    if starts and data[: starts[0]].strip():
        starts = []
    if len(starts) > MAX_MAILS:
        raise unreadable("too-large", name, f"it has more than {MAX_MAILS} mails")
    starts = starts or [0]
    bounds = zip(starts, [*starts[1:], len(data)], strict=True)
    mails = [_mail(data[start:end], name) for start, end in bounds]
    found = [each for each in mails if mail.split(each.data)[1]]  # a cover letter has no diff
    if not found:
        raise unreadable("not-a-patch", name, "it has no diff (`diff --git`, `---` and `+++`)")
    return found


def joined(mails: Sequence[Mail]) -> Mail:
    """Several mails as one patch, each on top of those before it."""
    if len(mails) == 1:
        return mails[0]
    whole = []
    for each in mails:
        start = b"" if each.data.startswith(b"From ") else b"From " + b"0" * 40 + b" \n"
        whole.append(start + each.data.rstrip(b"\n") + b"\n")
    origins = dict.fromkeys(each.origin for each in mails if each.origin)
    return replace(mails[0], data=b"".join(whole), origin="; ".join(origins))


def _mail(data: bytes, name: str) -> Mail:
    data = _decoded(data, name)
    head, _ = mail.split(data)
    fields, _ = mail.headers(head)
    message = mail.message_of(head) if fields else b""
    subject = message.split(b"\n", 1)[0].decode(errors="replace")
    number = _NUMBER.search(subject) or _NAMED.search(name)
    parts = [f"vllm-project/vllm pull request {number[1]}"] if number else []
    if author := mail.decoded(fields.get("from", b"")).decode(errors="replace"):
        parts.append(f"by {author}")
    signed = [found.decode(errors="replace") for found in _SIGNED.findall(message)]
    parts += [f"signed off by {', '.join(signed)}"] if signed else []
    title = "".join(c for c in _NUMBER.sub("", subject).strip() if c.isprintable())
    origin = "".join(c for c in "; ".join(parts) if c.isprintable())
    return Mail(data, message, title, origin)


def _decoded(data: bytes, name: str) -> bytes:
    """A mail whose text is written in quoted-printable or base64, plainly."""
    fields, _ = mail.headers(data)
    coding = fields.get("content-transfer-encoding", b"8bit").strip().lower()
    if fields.get("content-type", b"").lower().startswith(b"multipart"):
        raise unreadable("mail", name, "a mail has several parts; save its patch by itself")
    if coding in (b"7bit", b"8bit", b"binary"):
        return data
    if coding not in (b"quoted-printable", b"base64"):
        raise unreadable("mail", name, f"a mail is written in {coding.decode(errors='replace')!r}")
    from email import message_from_bytes

    first = data.index(b"\n") + 1 if data.startswith(b"From ") else 0
    text = message_from_bytes(data[first:]).get_payload(decode=True)
    assert isinstance(text, bytes)
    kept = b"".join(
        b"%s: %s\n" % (key.title().encode(), value)
        for key, value in fields.items()
        if key in ("from", "subject", "date")
    )
    return data[:first] + kept + b"\n" + text.replace(b"\r\n", b"\n")


def unreadable(reason: str, name: str, why: str) -> BadInput:
    """ "authoring.<reason>": this cannot be imported."""
    return BadInput(
        f"authoring.{reason}",
        "this cannot be imported",
        where=name,
        why=why,
        fix="give the output of `git format-patch`, or the .patch or .diff of a pull request",
    )
