"""The head of a patch file and the message of its commit are one text in two forms."""

from __future__ import annotations

import pytest

from kiln.authoring import mail
from kiln.errors import BadInput

DIFF = b"diff --git a/vllm/a.py b/vllm/a.py\n"


@pytest.mark.parametrize(
    "message",
    [
        b"p70: match more",
        b"p70: match more\n\nA body.\n\nOf two parts.",
        b"p70: m\xc3\xbcssen\n\nmehr \xc3\xbcber",
        b"p70: latin \xe9",
        b"p70: x\n\nSigned-off-by: A <a@x>",
        b"p70: x\n\n    diff --git indented\n #12 stays",
    ],
)
def test_a_message_goes_round(message: bytes) -> None:
    data = mail.compose(message, DIFF, "x")
    head, diff = mail.split(data)
    assert diff == DIFF
    assert mail.message_of(head) == message
    with_id = mail.with_id(message, "p70")
    assert mail.ids_of(with_id) == ["p70"]
    assert mail.without_id(with_id) == message


def test_the_shipped_head_is_this() -> None:
    assert mail.compose(b"p70: x\n\nbody", DIFF, "x") == (
        b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
        b"From: Kiln <kiln@localhost>\n"
        b"Date: Sat, 1 Jan 2000 00:00:00 +0000\n"
        b"Subject: p70: x\n"
        b"\n"
        b"body\n"
        b"\n" + DIFF
    )
    assert b"charset=UTF-8" in mail.compose("p70: ü".encode(), DIFF, "x")


def test_what_others_write_is_read() -> None:
    head = (
        b"From 0123 Mon Sep 17 00:00:00 2001\nFrom: A <a@x>\nSubject: [PATCH v2 3/7]\n"
        b" [Bugfix] a long\n subject (#12)\n\nBody.\n---\n vllm/a.py | 2 +-\n 1 file changed\n\n"
    )
    assert mail.message_of(head) == b"[Bugfix] a long subject (#12)\n\nBody."
    assert mail.message_of(b"Subject: =?utf-8?q?na=C3=AFve?=\n\nx\n\n") == "naïve\n\nx".encode()
    assert mail.message_of(b"") == b""
    assert mail.message_of(b"Only some words.\nAnd more.\n\n") == b"Only some words.\nAnd more."


@pytest.mark.parametrize(
    "line", [b"diff --git a/x b/x", b"@@ -1 +1 @@", b"---", b"From me to you", b"GIT binary patch"]
)
def test_a_message_that_looks_like_a_diff_is_refused(line: bytes) -> None:
    with pytest.raises(BadInput) as caught:
        mail.compose(b"p70: x\n\n" + line, DIFF, "commit 1")
    assert caught.value.code == "authoring.message"
    assert caught.value.where == "commit 1"


def test_the_id_joins_other_trailers() -> None:
    assert mail.with_id(b"x\n\nSigned-off-by: A <a@x>", "p1") == (
        b"x\n\nSigned-off-by: A <a@x>\nKiln-Patch: p1\n"
    )
    assert mail.with_id(b"fix: x", "p1") == b"fix: x\n\nKiln-Patch: p1\n"
    assert mail.ids_of(b"x\n\nKiln-Patch: a\nKiln-Patch:b\n") == ["a", "b"]
    assert mail.ids_of(b"not a Kiln-Patch: a\n") == []
