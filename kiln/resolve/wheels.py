"""Resolve wheels: uv chooses the versions, this module the one file of each.

The file of a version is the best for the target among all that the user's places
offer, so a partial mirror on one machine does not choose another file than elsewhere.
A wheel that the lock had stays as long as its version does. The lock gets name,
version, file, size, sha256 and the logical index; never a URL.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from packaging.pylock import Package
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from kiln.canonical import Digest, is_sha256
from kiln.errors import BadInput, KilnError, Unavailable, raise_problems
from kiln.fetch.index import DEFAULT, Index, Link, only, parse_file
from kiln.fetch.url import redact
from kiln.lock.model import Wheel
from kiln.progress import Reporter, human
from kiln.resolve import uv
from kiln.resolve.target import Target

JOBS = 8


@dataclass(frozen=True)
class Wanted:
    """What a closure of wheels is resolved from.

    exclude: packages left out although something asks for them. indexes: package ->
    logical index, for packages that come from that index alone. keep: the wheels of the
    lock so far. upgrade: packages whose versions need not stay; True for all.
    """

    requirements: Sequence[str]
    target: Target
    constraints: Sequence[str] = ()
    exclude: Sequence[str] = ()
    indexes: Mapping[str, str] = field(default_factory=dict)
    keep: Sequence[Wheel] = ()
    upgrade: bool | Sequence[str] = False


def resolve(wanted: Wanted, index: Index, reporter: Reporter) -> tuple[Wheel, ...]:
    """The closure: one wheel for each package, sorted by name.

    Raises BadInput "resolve.bad-requirement", "resolve.no-solution", "resolve.no-wheel",
    "resolve.two-files", "resolve.unused-index", "fetch.unknown-index"; Unavailable
    "resolve.unreachable", "resolve.refused" and those of fetching.
    """
    requirements = _parsed("requirement", wanted.requirements)
    bound: dict[str, str] = {
        canonicalize_name(name): i for name, i in wanted.indexes.items() if i != DEFAULT
    }
    sources = _sources(requirements, bound, wanted.target, index, reporter)
    question = uv.Question(
        requirements=[str(requirement) for requirement in requirements],
        constraints=[str(c) for c in _parsed("constraint", wanted.constraints)],
        exclude=[canonicalize_name(name) for name in wanted.exclude],
        target=wanted.target,
        sources=sources,
        keep=wanted.keep,
        upgrade=wanted.upgrade,
    )
    try:
        packages = uv.ask(question, index.settings, reporter)
    except BadInput as error:
        _check_answers(error, index, bound)
        raise
    chooser = _Chooser(wanted.target, index, {w.name: w for w in wanted.keep}, bound, reporter)
    with ThreadPoolExecutor(JOBS, thread_name_prefix="resolve") as pool:
        results = list(pool.map(chooser.choose, packages))
    raise_problems([result for result in results if isinstance(result, KilnError)])
    return tuple(sorted(result for result in results if isinstance(result, Wheel)))


def resolve_sdist(name: str, version: str, index: Index, reporter: Reporter) -> Wheel:
    """The record of an sdist, by name and version, without unpacking or building it.

    Raises Unavailable("resolve.no-sdist") and those of fetching, BadInput("resolve.two-files").
    """
    wanted = Version(version)
    offers = [link for link in _offers(index, name, wanted) if not link.file.endswith(".whl")]
    if not offers:
        raise Unavailable(
            "resolve.no-sdist",
            f"no sdist of {name} {version} is to be had",
            why="\n".join(f"asked: {redact(place.url)}" for place in index.places()),
            fix="correct the version, or name a place that has it (extra-index-url, find-links)",
        )
    link = min(offers, key=lambda link: (link.yanked, not link.file.endswith(".tar.gz")))
    only(offers, link.file)
    digest = _digest(link, index, reporter)
    return Wheel(
        canonicalize_name(name), str(wanted), link.file, digest.size, digest.sha256, DEFAULT
    )


def resolve_wheel(
    requirement: str, target: Target, index: Index, keep: Sequence[Wheel], reporter: Reporter
) -> Wheel:
    """The record of one wheel, "name==version", without anything that it requires.

    Raises BadInput "resolve.bad-requirement", "resolve.no-wheel"; Unavailable.
    """
    (parsed,) = _parsed("requirement", [requirement])
    versions = [s.version for s in parsed.specifier if s.operator == "=="]
    if len(versions) != 1:
        raise BadInput(
            "resolve.bad-requirement",
            f"{requirement!r} names no single version",
            fix="write name==1.2.3",
        )
    chooser = _Chooser(target, index, {w.name: w for w in keep}, {}, reporter)
    found = chooser.choose(
        Package(name=canonicalize_name(parsed.name), version=Version(versions[0]))
    )
    if isinstance(found, KilnError):
        raise found
    return found


def _parsed(kind: str, texts: Sequence[str]) -> list[Requirement]:
    found, problems = list[Requirement](), list[KilnError]()
    for text in texts:
        try:
            requirement = Requirement(text)
            if requirement.url is not None:
                raise InvalidRequirement("a URL is no version; name an index instead")
            found.append(requirement)
        except InvalidRequirement as error:
            problems.append(
                BadInput(
                    "resolve.bad-requirement",
                    f"{text!r} is no {kind}",
                    why=str(error),
                    fix="write it as in PEP 508: name==1.2.3",
                )
            )
    raise_problems(problems)
    return found


def _sources(
    requirements: Sequence[Requirement],
    bound: Mapping[str, str],
    target: Target,
    index: Index,
    reporter: Reporter,
) -> dict[str, str]:
    """Package -> URL of the one index that it comes from.

    A version that is pinned and lies in find-links is taken from there, as pip does: the
    index may be out of reach.
    """
    sources: dict[str, str] = {}
    for name, logical in bound.items():
        asked_for = [r for r in requirements if canonicalize_name(r.name) == name]
        if not asked_for:
            raise BadInput(
                "resolve.unused-index",
                f"{name} is bound to the index {logical!r}, but not among the requirements",
                fix="add it to the requirements, or do not bind it",
            )
        url = index.indexes(logical)[0].url
        pins = [s.version for r in asked_for for s in r.specifier if s.operator == "=="]
        near = [
            (place, link)
            for place in index.settings.find_links
            for link in (index.find_links(place, name) if pins else ())
            if (parsed := parse_file(link.file)) is not None
            and str(parsed[1]) in pins
            and _rank(link.file, target) is not None
        ]
        if near:
            place, link = near[0]
            reporter.note(
                f"{name}: {link.file} from find-links {redact(place.url)} ({place.source}), "
                f"not from the index {logical}"
            )
        else:
            sources[name] = url
    return sources


def _check_answers(error: BadInput, index: Index, bound: Mapping[str, str]) -> None:
    """Tell a package that is nowhere from one that an index did not show.

    Where an index answers 401 or 403, uv goes on as if it had no such package.
    """
    for name in re.findall(r"\b([a-z0-9-]+) was not found in the package registry", error.why):
        for place in index.indexes(bound.get(name, DEFAULT)):
            try:
                index.project(place, name)
            except Unavailable as failure:
                raise Unavailable(
                    "resolve.refused",
                    f"an index does not answer for {name}",
                    where=failure.where,
                    why=f"{failure.why or failure.what}\n{error.why}",
                    fix=failure.fix,
                ) from error


def _rank(file: str, target: Target) -> tuple[int, tuple[int, str]] | None:
    """How well a wheel fits (less is better, then the higher build tag), None if it does not."""
    if not file.endswith(".whl") or parse_file(file) is None:
        return None
    _, _, build, tags = parse_wheel_filename(file)
    ranks = [target.ranks[tag] for tag in tags if tag in target.ranks]
    if not ranks:
        return None
    number, text = build or (-1, "")
    return min(ranks), (-number, text)


def _offers(index: Index, name: str, version: Version) -> Iterator[Link]:
    """All files of a version, from all places, the nearest first; yanked ones last.

    Raises Unavailable where one cannot be read: the choice must not hang on that.
    """
    yanked: list[Link] = []
    steps = [(place, True) for place in index.settings.find_links]
    steps += [(place, False) for place in index.indexes()]
    for place, find_links in steps:
        for link in index.versions(place, name, version, find_links=find_links):
            if link.yanked:
                yanked.append(link)
            else:
                yield link
    yield from yanked


def _digest(link: Link, index: Index, reporter: Reporter) -> Digest:
    """Size and sha256 as the place says them; what it does not say is asked or computed."""
    if not link.sha256:
        digest = index.http.digest(link.url)
        if not link.url.startswith("file:"):
            reporter.note(
                f"{link.file}: the index gives no sha256; hashed what came, {human(digest.size)}"
            )
        return digest
    size = link.size if link.size >= 0 else index.http.size(link.url)
    return Digest(link.sha256, size)


@dataclass(frozen=True)
class _Chooser:
    """Chooses the file of each package."""

    target: Target
    index: Index
    kept: Mapping[str, Wheel]
    bound: Mapping[str, str]
    reporter: Reporter

    def choose(self, package: Package) -> Wheel | KilnError:
        """The wheel, or what is wrong with this package."""
        try:
            return self._choose(package)
        except KilnError as error:
            return error

    def _choose(self, package: Package) -> Wheel:
        name, version = package.name, package.version
        assert version is not None  # only packages of folders and repositories have none
        logical = self.bound.get(name, DEFAULT)
        offers = list(_answered(package))
        if logical == DEFAULT and (not offers or any(link.size < 0 for link in offers)):
            # uv took it from a place that may have only some of the files of this version,
            # or was not asked.
            offers += _offers(self.index, name, version)
        fitting: dict[str, tuple[bool, object]] = {}
        for link in offers:
            rank = _rank(link.file, self.target)
            if rank is not None and self._runs(link):
                # What uv takes although it is yanked (a pinned version) comes first.
                fitting.setdefault(link.file, (link.yanked, rank))
        if not fitting:
            raise BadInput(
                "resolve.no-wheel",
                f"{name} {version} has no wheel for Python {self.target.python} "
                f"on {self.target.uv_platform}",
                why="\n".join(link.file for link in offers),
                fix="exclude it in the recipe, or build it as a component (build/)",
            )
        if (kept := self._kept(name, version, logical, offers, fitting)) is not None:
            return kept
        file = min(fitting, key=lambda file: (fitting[file], file))
        only(offers, file)
        same = [link for link in offers if link.file == file]
        sha256 = next((link.sha256 for link in same if link.sha256), "")
        size = max(link.size for link in same)
        digest = _digest(replace(same[0], sha256=sha256, size=size), self.index, self.reporter)
        return Wheel(name, str(version), file, digest.size, digest.sha256, logical)

    def _runs(self, link: Link) -> bool:
        try:
            return f"{self.target.python}.0" in SpecifierSet(link.requires_python)
        except InvalidSpecifier:
            return True  # old releases have such; uv chose the version

    def _kept(
        self,
        name: str,
        version: Version,
        logical: str,
        offers: Sequence[Link],
        fitting: Container[str],
    ) -> Wheel | None:
        """The wheel that the lock had, if it is of this version and still offered."""
        kept = self.kept.get(name)
        if kept is None or Version(kept.version) != version or kept.index != logical:
            return None
        known = {link.sha256 for link in offers if link.file == kept.file and link.sha256}
        if kept.file in fitting and (not known or kept.sha256 in known):
            return kept
        self.reporter.note(f"{name} {version}: {kept.file} of the lock is not offered any more")
        return None


def _answered(package: Package) -> Iterator[Link]:
    """The wheels of uv's answer."""
    for wheel in package.wheels or ():
        if wheel.url is not None:
            sha256 = wheel.hashes.get("sha256", "")
            yield Link(
                wheel.filename,
                wheel.url,
                sha256 if is_sha256(sha256) else "",
                -1 if wheel.size is None else wheel.size,
            )
