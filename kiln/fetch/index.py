"""A client of simple indexes and find-links: which places have a file of a given name.

Simple indexes as of PEP 503 (HTML) and PEP 691 (JSON), over HTTP or file://; find-links
are folders or HTML pages, as pip's --find-links. Pages are hostile input: they are
bounded in size, scripts and markup mean nothing, and a page from the network cannot
name a local file, nor an https page an http one. What is taken from a page is checked
again by hash when the file comes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

import msgspec
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from kiln.canonical import is_sha256
from kiln.errors import BadInput, KilnError, Unavailable
from kiln.fetch.http import Http
from kiln.fetch.settings import Place, Settings
from kiln.fetch.url import local_path, redact, split_credentials

DEFAULT = "default"
_JSON = "application/vnd.pypi.simple.v1+json"
_HTML = frozenset({"text/html", "application/vnd.pypi.simple.v1+html", "application/xhtml+xml"})
_ACCEPT = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True)
class Link:
    """A file that a place offers. sha256: "" and size: -1 where the page does not say."""

    file: str
    url: str
    sha256: str = ""
    size: int = -1
    requires_python: str = ""
    yanked: bool = False


class Index:
    """All places where wheels and sdists are looked for.

    named: logical index names of pins.yaml -> URL. Pages are read once a run; may be
    used by several threads.
    """

    def __init__(self, http: Http, settings: Settings, named: Mapping[str, str] = {}) -> None:
        self.http, self.settings = http, settings
        self.named = {name: http.learn(url) for name, url in named.items()}
        self._pages: dict[tuple[str, str], tuple[Link, ...] | KilnError] = {}
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._guard = threading.Lock()

    def indexes(self, index: str = DEFAULT) -> list[Place]:
        """Simple indexes to ask, in order: the named one, extra ones, the default one.

        Raises BadInput("fetch.unknown-index") where pins.yaml does not know the name.
        """
        places: list[Place] = []
        if index != DEFAULT:
            if index not in self.named:
                raise BadInput(
                    "fetch.unknown-index",
                    f"no index is called {index!r}",
                    why=f"known are: {', '.join([DEFAULT, *sorted(self.named)])}",
                    fix="name it under `indexes` in pins.yaml, or run `kiln lock` again",
                )
            places.append(Place(self.named[index], f"index {index}"))
        places += self.settings.extra
        if self.settings.default is not None:
            places.append(self.settings.default)
        return places

    def places(self) -> list[Place]:
        """All places that the user's settings name."""
        return [*self.settings.find_links, *self.indexes()]

    def find(
        self,
        name: str,
        file: str,
        sha256: str,
        index: str = DEFAULT,
        asked: list[Unavailable] | None = None,
    ) -> Iterator[str]:
        """URLs of a locked file, the nearest place first: find-links, then `indexes`.

        Lazy: a place is asked only when the ones before it did not do. `asked` collects an
        error for each place that has no such file, or one of another hash, or cannot be read.
        """
        asked = [] if asked is None else asked
        steps = [(place, self.find_links) for place in self.settings.find_links]
        steps += [(place, self.project) for place in self.indexes(index)]
        for place, read in steps:
            try:
                links = [link for link in read(place, name) if link.file == file]
            except Unavailable as error:
                asked.append(error)
                continue
            if not links:
                asked.append(_no_file(place, f"it has no {file}"))
            for link in links:
                if link.sha256 and link.sha256 != sha256:
                    asked.append(_other_file(place, link, sha256))
                else:
                    yield link.url

    def versions(
        self, place: Place, name: str, version: Version, *, find_links: bool = False
    ) -> list[Link]:
        """The files of one version of a project at a place. Raises Unavailable."""
        links = self.find_links(place, name) if find_links else self.project(place, name)
        return [
            link for link in links if parse_file(link.file) == (canonicalize_name(name), version)
        ]

    def project(self, place: Place, name: str) -> tuple[Link, ...]:
        """A project's files at a simple index; none where the index does not know it.

        Raises Unavailable where the index cannot be read.
        """
        page = f"{place.url.rstrip('/')}/{canonicalize_name(name)}/"
        if local_path(page) is not None:
            page += "index.html"
        return self._cached(page, "")

    def find_links(self, place: Place, name: str) -> tuple[Link, ...]:
        """A project's files in a find-links folder or page. Raises Unavailable."""
        links = self._cached(place.url, "find-links")
        wanted = canonicalize_name(name)
        return tuple(link for link in links if (parse_file(link.file) or ("",))[0] == wanted)

    def _cached(self, url: str, kind: str) -> tuple[Link, ...]:
        key = (url, kind)
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._pages:
                try:
                    self._pages[key] = self._read(url, kind)
                except KilnError as error:
                    self._pages[key] = error
        found = self._pages[key]
        if isinstance(found, KilnError):
            raise found
        return found

    def _read(self, url: str, kind: str) -> tuple[Link, ...]:
        path = local_path(url)
        if kind and path is not None and path.is_dir():
            return tuple(_folder(path))
        try:
            page = self.http.page(url, _ACCEPT)
        except Unavailable as error:
            if error.code == "fetch.not-found" and not kind:
                return ()
            raise
        if page.kind == _JSON:
            return tuple(_from_json(page.data, page.url))
        if page.kind in _HTML:
            return tuple(_from_html(page.data, page.url))
        raise _bad_page(url, f"its content type is {page.kind!r}")


def parse_file(file: str) -> tuple[str, Version] | None:
    """Normalised name and version of a wheel's or sdist's file name, or None."""
    try:
        if file.endswith(".whl"):
            return parse_wheel_filename(file)[:2]
        return parse_sdist_filename(file)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def _folder(path: Path) -> Iterator[Link]:
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise Unavailable(
            "fetch.not-found",
            "the find-links folder cannot be read",
            where=str(path),
            why=error.strerror or str(error),
        ) from error
    for name in names:
        file = path / name
        if parse_file(name) is not None and file.is_file():
            yield Link(name, file.absolute().as_uri(), size=file.stat().st_size)


# ---- pages ---------------------------------------------------------------------------------


def _link(href: str, base: str, **more: Any) -> Link | None:
    """The link, or None where its target may not be taken from such a page."""
    try:
        url, fragment = urldefrag(urljoin(base, href.strip()))
        # Blanks, controls and letters beyond ASCII are escaped, what is escaped stays.
        url = split_credentials(quote(url, safe="!#$%&'()*+,/:;=?@[]~"))[0]
        source, target = urlsplit(base).scheme, urlsplit(url).scheme
    except ValueError:
        return None
    allowed = {"file": ("file", "http", "https"), "http": ("http", "https"), "https": ("https",)}
    file = unquote(urlsplit(url).path.rpartition("/")[2])
    if target not in allowed[source] or not file or "/" in file or "\0" in file:
        return None
    algorithm, _, value = fragment.partition("&")[0].partition("=")
    if algorithm == "sha256" and is_sha256(value.lower()):
        more.setdefault("sha256", value.lower())
    return Link(file, url, **more)


class _Anchors(HTMLParser):
    """Collects <base href> and the attributes of each <a href>."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.base: str | None = None
        self.anchors: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in reversed(attrs)}
        if tag == "a" and "href" in attributes:
            self.anchors.append(attributes)
        elif tag == "base" and self.base is None:
            self.base = attributes.get("href")


def _from_html(data: bytes, url: str) -> Iterator[Link]:
    parser = _Anchors()
    try:
        parser.feed(data.decode("utf-8", "replace"))
        parser.close()
    except AssertionError as error:  # html.parser's answer to some malformed declarations
        raise _bad_page(url, f"it is no HTML: {error}") from error
    base = url
    if parser.base:
        # A page's base is followed as its links are: not down to http or local files.
        moved = _link(urljoin(parser.base, "x"), url)
        base = urljoin(moved.url, ".") if moved else url
    for attributes in parser.anchors:
        link = _link(
            attributes["href"],
            base,
            requires_python=attributes.get("data-requires-python", ""),
            yanked="data-yanked" in attributes,
        )
        if link is not None:
            yield link


class _File(msgspec.Struct):
    filename: str
    url: str
    hashes: dict[str, str] = {}
    size: int | None = None
    requires_python: str | None = msgspec.field(default=None, name="requires-python")
    yanked: bool | str = False


class _Project(msgspec.Struct):
    files: list[_File]


def _from_json(data: bytes, url: str) -> Iterator[Link]:
    try:
        project = msgspec.json.decode(data, type=_Project)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _bad_page(url, f"it is no PEP 691 JSON: {error}") from error
    for file in project.files:
        sha256 = file.hashes.get("sha256", "").lower()
        link = _link(
            file.url,
            url,
            sha256=sha256 if is_sha256(sha256) else "",
            size=-1 if file.size is None or file.size < 0 else file.size,
            requires_python=file.requires_python or "",
            yanked=file.yanked is not False,
        )
        if link is not None and link.file == file.filename:
            yield link


def _no_file(place: Place, why: str) -> Unavailable:
    return Unavailable("fetch.not-found", "the file is not there", where=redact(place.url), why=why)


def _other_file(place: Place, link: Link, sha256: str) -> Unavailable:
    return Unavailable(
        "fetch.hash-mismatch",
        "the file is not the one that was locked",
        where=redact(place.url),
        why=f"it offers {link.file} with sha256 {link.sha256}, expected {sha256}",
        fix="if its publisher replaced the file, `kiln lock` takes the new one",
    )


def _bad_page(url: str, why: str) -> Unavailable:
    return Unavailable(
        "fetch.bad-page",
        "the page is no simple index",
        where=redact(url),
        why=why,
        fix="check the index URL in your settings; it usually ends in /simple",
    )


def only(links: Iterable[Link], file: str) -> None:
    """Refuse a file name under which there are different bytes.

    Raises BadInput("resolve.two-files"): which one is meant, nobody but the user knows.
    """
    seen: dict[str, str] = {}
    for link in links:
        if link.file == file and link.sha256:
            seen.setdefault(link.sha256, link.url)
    if len(seen) > 1:
        raise BadInput(
            "resolve.two-files",
            f"{file} is offered with different content",
            why="\n".join(f"{redact(url)}: sha256 {sha}" for sha, url in seen.items()),
            fix="remove one of the places from your pip or uv settings, or bind the package "
            "to one index in pins.yaml",
        )
