"""Identity from /metrics and /version (hard input K6; incidents 1, 12, 15)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kiln.gate.ask import Asker
from kiln.gate.identity import Read, Unreadable, parse_metrics, read_identity
from kiln.gate.model import Patch
from tests.helpers.fake_openai import (
    MODEL,
    PATCHES,
    FakeClient,
    Memory,
    Script,
    expected,
    metrics,
    reply,
    silence,
)


def read(scripts: Mapping[str, Script]) -> Read:
    return read_identity(Asker(FakeClient(scripts), Memory(), MODEL), expected())


def codes(page: Script) -> set[str]:
    return {problem.code for problem in read({"/metrics": page}).problems}


def page(text: str) -> Script:
    return reply(text, kind="text/plain; version=1.0.0; charset=utf-8")


def test_the_right_image() -> None:
    found = read({})
    assert found.problems == ()
    assert found.seen is not None
    assert found.seen.kiln_id == "1" * 64
    assert found.seen.patches == PATCHES
    assert len(found.replies) == 2


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (metrics(kiln_id="9" * 64), "kiln-id"),  # a stale digest booted
        (metrics(pin="dev714"), "pin"),
        (metrics(patch_set="9" * 64), "patch-set"),
        (metrics(version="0.23.0"), "version"),
        (metrics(modified=2), "modified-files"),
        (metrics(patches=PATCHES[:1]), "patches"),
        (metrics(patches=(*PATCHES, Patch("zz", "5" * 64))), "patches"),
        (metrics(patches=(PATCHES[0], Patch(PATCHES[1].id, "5" * 64))), "patches"),
        (metrics(patches=(*PATCHES, Patch(PATCHES[1].id, "5" * 64))), "series-twice"),
        (metrics(patches=()), "series-missing"),
        (metrics() + metrics(kiln_id="9" * 64), "series-twice"),
        (metrics().replace("kiln_build_info", "other_info"), "series-missing"),
        (metrics().replace("kiln_modified_files", "other_files"), "series-missing"),
        (metrics().replace('"} 1.0', '"} 0.0'), "series-value"),
        (metrics().replace("kiln_modified_files 0.0", "kiln_modified_files NaN"), "modified-files"),
        ("", "metrics-unreadable"),
        ("\r\n", "metrics-unreadable"),
        ("# EOF\n", "metrics-unreadable"),
        ("<!doctype html><html><body>Not found</body></html>", "metrics-unreadable"),
        ("vllm_x{a= 1", "metrics-unreadable"),
    ],
)
def test_another_image_or_no_identity_fails(text: str, code: str) -> None:
    assert code in codes(page(text))


def test_an_unpatched_vllm_fails() -> None:
    assert codes(page("vllm:num_requests_running 0.0\n")) == {"series-missing"}


def test_no_page_is_no_identity() -> None:
    assert codes(reply("error", 500)) == {"http-status"}
    assert codes(silence("refused")) == {"no-answer"}
    assert codes(reply(b"\xff\xfe")) == {"metrics-unreadable"}


@pytest.mark.parametrize(
    ("body", "good"),
    [
        ('{"version":"0.32.0"}', True),
        ('{"version":"0.32.0+cpu"}', True),
        ('{"version":"0.32.0+cu130"}', False),
        ('{"version":"0.23.0"}', False),
        ('{"version":null}', False),
        ("[]", False),
        ("dev", False),
    ],
)
def test_the_version_endpoint(body: str, good: bool) -> None:
    found = {problem.code for problem in read({"/version": body}).problems}
    assert found == (set() if good else {"version"})


@pytest.mark.parametrize(
    "text",
    [
        "m 1e+02\n",
        "m 100.0 1395066363000\n",
        "# HELP m a line like n 7.0\n# TYPE m gauge\nm 100\n",
        "# TYPE m gauge\r\nm 100\r\n",
        "m 100\n# EOF\n",
        "m 100",
    ],
)
def test_odd_pages_parse(text: str) -> None:
    assert parse_metrics(text.encode())["m"] == [({}, 100.0)]


def test_labels_may_hold_what_looks_like_syntax() -> None:
    found = parse_metrics(b'm{b="a,}\\"\\n",a="1"} 7.0\n')
    assert found["m"] == [({"a": "1", "b": 'a,}"\n'}, 7.0)]


def test_openmetrics_parses() -> None:
    kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    text = b"# TYPE m gauge\nm 100.0\n# EOF\n"
    assert parse_metrics(text, kind)["m"] == [({}, 100.0)]
    with pytest.raises(Unreadable):
        parse_metrics(b"# TYPE m gauge\nm 100.0\n", kind)
