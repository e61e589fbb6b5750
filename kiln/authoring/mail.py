"""The head of a patch file, and the message of its commit: one text in two forms.

A shipped patch is a mail as `git format-patch` writes it, with author and date fixed,
and no signature of git's version. Its commit has the same subject and body, and one more
line that says which patch it is ("Kiln-Patch: p70-auto-strict-ngram"). All is bytes: a
message is nobody's to re-encode.
"""

from __future__ import annotations

import re
from email.errors import HeaderParseError
from email.header import decode_header, make_header

from kiln.errors import BadInput
from kiln.source.diff import split_lines

TRAILER = b"Kiln-Patch"
_HEAD = b"""\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: Kiln <kiln@localhost>
Date: Sat, 1 Jan 2000 00:00:00 +0000
Subject: """
_MIME = b"""\
MIME-Version: 1.0
Content-Type: text/plain; charset=UTF-8
Content-Transfer-Encoding: 8bit
"""
_TAG = re.compile(rb"\A\s*\[[^\]\n]*PATCH[^\]\n]*\]\s*")  # "[PATCH 2/3]", not "[Bugfix]"
_ID_LINE = re.compile(rb"^" + TRAILER + rb":[ \t]*(\S*)[ \t]*\n?", re.MULTILINE)
_TRAILERS = re.compile(rb"\A(?:[A-Za-z0-9-]+: .*\n?)+\Z")
# What the parser of patches would take for the diff itself.
_DIFF_LIKE = (b"diff --git ", b"@@ -", b"Binary files ", b"GIT binary patch", b"Only in ", b"From ")


def split(data: bytes) -> tuple[bytes, bytes]:
    """What stands before the first file of a patch, and the diff itself."""
    lines = split_lines(data)
    for at, line in enumerate(lines):
        named = line.startswith(b"--- ") and lines[at + 1 : at + 2]
        if line.startswith(b"diff --git ") or (named and named[0].startswith(b"+++ ")):
            return b"".join(lines[:at]), b"".join(lines[at:])
    return data, b""


def headers(head: bytes) -> tuple[dict[str, bytes], bytes]:
    """A mail's header fields (lower case; folded lines joined) and the text behind them.

    Without a mail's head there are none, and all of it is text.
    """
    lines = split_lines(head)
    at = 1 if lines and lines[0].startswith(b"From ") else 0
    fields: dict[str, bytes] = {}
    name = ""
    for number, line in enumerate(lines[at:], at):
        if not line.strip():
            return (fields, b"".join(lines[number + 1 :])) if fields else ({}, head)
        if line[:1] in b" \t" and name:
            fields[name] += b" " + line.strip()
            continue
        key, colon, value = line.partition(b":")
        if not colon or not re.fullmatch(rb"[A-Za-z][A-Za-z0-9-]*", key):
            return {}, head
        name = key.decode().lower()
        fields[name] = value.strip()
    return (fields, b"") if fields else ({}, head)


def message_of(head: bytes) -> bytes:
    """The commit message that a patch's head says: subject, blank line, body ("" if none)."""
    fields, text = headers(head)
    lines = split_lines(text)
    for at, line in enumerate(lines):
        if line == b"---\n":  # a mail's notes and figures follow
            lines = lines[:at]
            break
    body = b"".join(lines).strip(b"\n")
    subject = decoded(fields.get("subject", b""))
    return b"\n\n".join(part for part in (_TAG.sub(b"", subject).strip(), body) if part)


def decoded(field: bytes) -> bytes:
    """A header field in UTF-8, where it is written in RFC 2047's way; else as it is."""
    if b"=?" not in field:
        return field
    try:
        return str(make_header(decode_header(field.decode("ascii")))).encode()
    except (UnicodeError, LookupError, ValueError, HeaderParseError):
        return field


def compose(message: bytes, diff: bytes, where: str) -> bytes:
    """A patch file: the shipped head of a message, and the diff.

    Raises BadInput("authoring.message") for a message that would be read as a diff.
    """
    subject, _, body = message.partition(b"\n\n")
    subject, body = b" ".join(subject.split()), body.strip(b"\n")
    for line in split_lines(body):
        if line.startswith(_DIFF_LIKE) or line.rstrip(b"\n") == b"---":
            raise BadInput(
                "authoring.message",
                "a line of the commit's message would be taken for a part of the diff",
                where=where,
                why=f"it is {line.decode(errors='backslashreplace').strip()!r}",
                fix="indent it, with `git commit --amend` or `git rebase -i`",
            )
    mime = b"" if message.isascii() else _MIME
    text = b"\n" + body + b"\n" if body else b""
    return _HEAD + subject + b"\n" + mime + text + b"\n" + diff


def ids_of(message: bytes) -> list[str]:
    """The patches that a commit's message names, in its order."""
    return [match[1].decode(errors="backslashreplace") for match in _ID_LINE.finditer(message)]


def with_id(message: bytes, patch: str) -> bytes:
    """The message with the line that says which patch its commit is."""
    bare = without_id(message)
    last = bare.rpartition(b"\n\n")[2]
    joined = b"\n" if b"\n\n" in bare and _TRAILERS.match(last) else b"\n\n"
    return bare + joined + TRAILER + b": " + patch.encode() + b"\n"


def without_id(message: bytes) -> bytes:
    """The message as the patch file has it."""
    return _ID_LINE.sub(b"", message).strip(b"\n")
