"""Simple indexes and find-links, well-behaved and hostile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from kiln.errors import BadInput, Unavailable
from kiln.fetch.http import Access, Http, Patience
from kiln.fetch.index import Index, Link, _from_html, only, parse_file
from kiln.fetch.settings import Place, Settings
from tests.helpers.server import Answer, Server

FILE = "thing-1.0-py3-none-any.whl"
SHA, OTHER = "a" * 64, "b" * 64
HTML = {"Content-Type": "text/html; charset=utf-8"}
JSON = {"Content-Type": "application/vnd.pypi.simple.v1+json"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    with Server() as running:
        yield running


def page(text: str) -> Answer:
    return Answer(text.encode(), headers=HTML)


def document(*files: object) -> Answer:
    return Answer(json.dumps({"meta": {}, "files": files}).encode(), headers=JSON)


def make(
    default: str | None = None,
    extra: tuple[str, ...] = (),
    links: tuple[str, ...] = (),
    named: dict[str, str] | None = None,
) -> Index:
    settings = Settings(
        Place(default, "test") if default else None,
        tuple(Place(url, "test") for url in extra),
        tuple(Place(url, "test") for url in links),
    )
    patience = Patience(attempts=2, delay=0.01)
    return Index(Http(Access(connect=1, read=1), patience), settings, named or {})


def links(text: str, url: str = "https://h.invalid/simple/thing/") -> list[Link]:
    return list(_from_html(text.encode(), url))


def test_html(server: Server) -> None:
    server.on("/simple/the-thing/", page(f'<a href="../../f/{FILE}#sha256={SHA}">x</a>'))
    index = make(server.url("/simple"))
    found = index.project(Place(server.url("/simple"), "t"), "The_Thing")
    assert found == (Link(FILE, server.url(f"/f/{FILE}"), SHA),)
    assert "application/vnd.pypi.simple.v1+json" in server.seen[0].headers["Accept"]


def test_json(server: Server) -> None:
    entry = {
        "filename": FILE, "url": f"/f/{FILE}", "hashes": {"sha256": SHA.upper()}, "size": 7,
        "requires-python": ">=3.9", "yanked": "broken", "upload-time": "2026-01-01", "x": [1],
    }  # fmt: skip
    server.on("/simple/thing/", document(entry))
    found = make().project(Place(server.url("/simple/"), "t"), "thing")
    assert found == (Link(FILE, server.url(f"/f/{FILE}"), SHA, 7, ">=3.9", True),)


def test_a_page_is_read_once(server: Server) -> None:
    server.on("/simple/thing/", page(f'<a href="/f/{FILE}">x</a>'))
    index = make(server.url("/simple"))
    for _ in range(3):
        assert list(index.find("thing", FILE, SHA)) == [server.url(f"/f/{FILE}")]
    assert len(server.seen) == 1


def test_links_resolve_against_where_a_redirect_led(server: Server) -> None:
    server.on("/simple/thing/", Answer(status=301, headers={"Location": "/deep/er/thing/"}))
    server.on("/deep/er/thing/", page(f'<a href="../{FILE}">x</a>'))
    index = make(server.url("/simple"))
    assert list(index.find("thing", FILE, SHA)) == [server.url(f"/deep/er/{FILE}")]


def test_file_indexes_and_escaped_names(tmp_path: Path) -> None:
    folder = tmp_path / "simple" / "thing"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text('<a href="../../files/thing-1.0%2Bcpu.tar.gz">x</a>')
    index = make((tmp_path / "simple").as_uri())
    (url,) = index.find("thing", "thing-1.0+cpu.tar.gz", SHA)
    assert url == f"{tmp_path.as_uri()}/files/thing-1.0%2Bcpu.tar.gz"
    assert list(index.find("absent", "absent-1.0.tar.gz", SHA)) == []


def test_the_nearest_place_first_and_lazily(server: Server, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"x")
    (tmp_path / "README.whl").write_bytes(b"x")
    for name in ("named", "extra", "main"):
        server.on(f"/{name}/thing/", page(f'<a href="/f/{name}/{FILE}">x</a>'))
    index = make(
        server.url("/main"),
        (server.url("/extra"),),
        (tmp_path.as_uri(),),
        {"special": server.url("/named")},
    )
    found = index.find("thing", FILE, SHA, "special")
    assert next(found) == (tmp_path / FILE).as_uri()
    assert server.seen == []
    assert list(found) == [server.url(f"/f/{n}/{FILE}") for n in ("named", "extra", "main")]


def test_what_was_asked_is_told(server: Server, tmp_path: Path) -> None:
    server.on("/other/thing/", page(f'<a href="/f/{FILE}#sha256={OTHER}">x</a>'))
    server.on("/down/thing/", Answer(status=500))
    index = make(
        server.url("/none"), (server.url("/other"), server.url("/down")), (tmp_path.as_uri(),)
    )
    asked: list[Unavailable] = []
    assert list(index.find("thing", FILE, SHA, asked=asked)) == []
    assert [error.code for error in asked] == [
        "fetch.not-found", "fetch.hash-mismatch", "fetch.server-error", "fetch.not-found",
    ]  # fmt: skip
    assert OTHER in asked[1].why
    assert [error.where for error in asked[:2]] == [tmp_path.as_uri(), server.url("/other")]


def test_find_links_pages(server: Server) -> None:
    server.on("/l.html", page(f'<a href="{FILE}">x</a><a href="more-2.0.tar.gz">y</a>'))
    index = make(links=(server.url("/l.html"),))
    assert list(index.find("thing", FILE, SHA)) == [server.url(f"/{FILE}")]
    assert list(index.find("more", "more-2.0.tar.gz", SHA)) == [server.url("/more-2.0.tar.gz")]


def test_versions(server: Server) -> None:
    server.on(
        "/s/thing/", page('<a href="thing-1.0.tar.gz">x</a><a href="thing-1.0.1.tar.gz">y</a>')
    )
    place = Place(server.url("/s"), "t")
    (link,) = make().versions(place, "Thing", Version("1.0.0"))
    assert link.file == "thing-1.0.tar.gz"


def test_an_unknown_index_is_an_error() -> None:
    with pytest.raises(BadInput) as caught:
        list(make().find("thing", FILE, SHA, "nowhere"))
    assert caught.value.code == "fetch.unknown-index"


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"<html>", headers={"Content-Type": "text/plain"}),
        Answer(b"[]", headers=JSON),
        Answer(b"[" * 100_000, headers=JSON),
        Answer(b'{"files": [{"filename": 1}]}', headers=JSON),
        Answer(b"\xff\xfe", headers=JSON),
        Answer(b"\x1f\x8b", headers={**HTML, "Content-Encoding": "gzip"}),
        Answer(status=401),
        Answer(b"<a href='x'><![foo<a", headers=HTML),
        Answer(b"x" * 100, headers=HTML, cut=10),
    ],
)
def test_pages_that_are_none(server: Server, answer: Answer) -> None:
    server.on("/s/thing/", answer)
    with pytest.raises(Unavailable):
        make().project(Place(server.url("/s"), "t"), "thing")


def test_a_huge_page_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.fetch.http.MAX_PAGE", 1000)
    server.on("/s/thing/", page("x" * 2000))
    with pytest.raises(Unavailable) as caught:
        make().project(Place(server.url("/s"), "t"), "thing")
    assert caught.value.code == "fetch.page-too-large"


def test_hostile_links_are_not_taken() -> None:
    text = "".join(
        f'<a href="{href}">x</a>'
        for href in (
            f"file:///etc/{FILE}", f"http://h.invalid/{FILE}", f"javascript:{FILE}", "https://[/x",
            "https://h.invalid/a%2Fb.whl", "https://h.invalid/a%00.whl", "https://h.invalid/", "",
        )
    )  # fmt: skip
    assert links(text) == []


def test_a_base_may_not_lead_elsewhere() -> None:
    assert links(f'<base href="file:///etc/"><a href="{FILE}">x</a>')[0].url.startswith(
        "https://h."
    )
    moved = links(f'<base href="https://cdn.invalid/p/"><a href="{FILE}">x</a>')
    assert moved[0].url == f"https://cdn.invalid/p/{FILE}"


def test_credentials_in_a_page_are_dropped() -> None:
    assert (
        links(f'<a href="https://u:p@h.invalid/{FILE}">x</a>')[0].url == f"https://h.invalid/{FILE}"
    )


def test_markup_is_only_text() -> None:
    tricky = (
        f'<!-- <a href="c-1.0.tar.gz"> --><script><a href="s-1.0.tar.gz"></script>'
        f'<a title="x>" href="{FILE}#sha256=nothex" data-yanked data-requires-python="&gt;=3.9">'
        '<a href="b c-1.0.tar.gz"><a'
    )
    found = links(tricky)
    assert [link.file for link in found] == [FILE, "b c-1.0.tar.gz"]
    assert found[0].sha256 == ""
    assert found[0].yanked
    assert found[0].requires_python == ">=3.9"
    assert found[1].url.endswith("b%20c-1.0.tar.gz")


def test_file_names() -> None:
    assert parse_file("The_Thing-1.0-py3-none-any.whl") == ("the-thing", Version("1.0"))
    assert parse_file("the.thing-1.0.tar.gz") == ("the-thing", Version("1.0"))
    assert parse_file("thing-1.0.exe") is None
    assert parse_file("thing.whl") is None


def test_one_name_with_two_contents_is_refused() -> None:
    one, two = Link("f", "https://a.invalid/f", SHA), Link("f", "https://b.invalid/f", OTHER)
    only([one, one, Link("f", "https://c.invalid/f"), Link("g", "https://c.invalid/g", OTHER)], "f")
    with pytest.raises(BadInput) as caught:
        only([one, two], "f")
    assert caught.value.code == "resolve.two-files"
    assert "b.invalid" in caught.value.why
