"""What must hold between the parts of pins.yaml, and between it and its project.

Single values were checked when the file was read (kiln/pins/forms.py); here stand the
rules that need two of them. Most come from incidents: a digest or a commit that belongs
to another version must be found here, before anything is built.
"""

from __future__ import annotations

from collections.abc import Iterator

from kiln.errors import BadInput, KilnError, Problems
from kiln.pins.model import DEFAULT_LAUNCH, LaunchSpec, OciBase, Pin, Preset, Recipe, Vllm
from kiln.pins.patch import read_document
from kiln.pins.problems import listed, near
from kiln.pins.project import Kind, Project, unknown

# Flags that the runner sets itself, or that keep its requests from being answered.
RUNNER_FLAGS = (
    "--host", "--port", "--uds", "--served-model-name", "--model", "--config", "--headless",
    "--api-key", "--root-path", "--help", "--version",
    "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs",
)  # fmt: skip
RUNNER_ENV = ("VLLM_API_KEY",)


def problems(project: Project) -> list[KilnError]:
    """All that is wrong with pins.yaml, in the order of the file."""
    pins, where = project.pins, project.where
    found: list[KilnError] = []
    if pins.default not in pins.pins:
        found.append(unknown("pin", pins.default, pins.pins, where("default")))
    if "default" in pins.indexes:
        found.append(
            BadInput(
                "pins.reserved-index",
                "the index `default` is whatever your own pip and uv settings name",
                where=where("indexes", "default", key=True),
                fix="give this index another name",
            )
        )
    recipes: dict[str, Recipe | None] = {}
    for name, pin in pins.pins.items():
        check = _PinCheck(project, name, pin)
        if pin.recipe not in recipes:
            recipes[pin.recipe] = check.load_recipe()
        if (recipe := recipes[pin.recipe]) is not None:
            check.against_recipe(recipe)
        check.alone()
        found += check.found
    found += _shared_digests(project)
    # A project without any launch proves nothing yet; its gates say so.
    if any(pin.launches for pin in pins.pins.values()):
        found += _unknown_launches(project)
    return found


class _PinCheck:
    """The checks of one pin; what they find gathers in `found`."""

    def __init__(self, project: Project, name: str, pin: Pin) -> None:
        self.project, self.name, self.pin = project, name, pin
        self.found: list[KilnError] = []

    def load_recipe(self) -> Recipe | None:
        """The pin's recipe, or None with its own problems noted."""
        recipe = self.pin.recipe
        if recipe not in (names := self.project.names("recipe")):
            self.found.append(unknown("recipe", recipe, names, self._where("recipe")))
            return None
        try:
            document = self.project.recipe_document(recipe)
        except Problems as several:
            self.found += several.errors
            return None
        except KilnError as error:
            self.found.append(error)
            return None
        self.found += _recipe_problems(recipe, document.value)
        return document.value

    def against_recipe(self, recipe: Recipe) -> None:
        """Pin and recipe must be made for each other."""
        vllm, base = self.pin.vllm, self.pin.base
        if recipe.overlay:
            if base is None:
                what = f"the recipe {self.pin.recipe} needs a base"
                self._bad("base-missing", what, "recipe", fix="add base: {repository, digest}")
            for key in ("wheel", "relabel"):
                if getattr(vllm, key):
                    what = f"`{key}` has no use: the base brings its own vLLM"
                    self._bad("unused-key", what, "vllm", key, fix="remove it")
            return
        if base is not None:
            what = f"the recipe {self.pin.recipe} stands on no base"
            self._bad("base-unused", what, "base", fix="remove it, or use an overlay recipe")
        if not vllm.wheel:
            fix = f"add wheel: vllm=={vllm.version}"
            self._bad("no-source", "nothing says where vLLM comes from", "vllm", fix=fix)
        if recipe.python is not None and self.pin.python:
            interpreter = recipe.python.interpreter.rsplit("/", 1)[-1]
            if interpreter != f"python{self.pin.python}":
                what = f"the recipe {self.pin.recipe} has {interpreter}, not {self.pin.python}"
                self._bad("python-mismatch", what, "python")

    def alone(self) -> None:
        """What needs no recipe."""
        self._versions(self.pin.vllm)
        if self.pin.base is not None:
            self._base_tag(self.pin.base)
        indexes = ["default", *self.project.pins.indexes]
        if self.pin.torch.index not in indexes:
            where = self._where("torch", "index")
            self.found.append(unknown("index", self.pin.torch.index, indexes, where))
        for component in self.pin.components:
            self._known("component", component, "components", component, key=True)
        seen: set[str] = set()
        for number, patch in enumerate(self.pin.patches):
            self._known("patch", patch, "patches", number)
            if patch in seen:
                what = f"{patch} stands in the series twice"
                self._bad("duplicate-patch", what, "patches", number, fix="remove one of them")
            seen.add(patch)
        for name, preset in self.pin.presets.items():
            self._known("model", preset.model, "presets", name, "model")
            self._start(preset, "presets", name)
        for name, launch in self.pin.launches.items():
            if launch.model:
                self._known("model", launch.model, "launches", name, "model")
            self._launch(name, launch)

    def _versions(self, vllm: Vllm) -> None:
        short = _short_commit(vllm.version)
        if vllm.commit and not vllm.commit.startswith(short):
            self._bad(
                "commit-mismatch",
                "version and commit are of two different commits",
                "vllm", "commit",
                why=f"the version ends in g{short}, the commit begins with "
                f"{vllm.commit[: len(short)]}",
            )  # fmt: skip
        if vllm.relabel and not vllm.wheel:
            self._bad("unused-key", "`relabel` has no use without a wheel", "vllm", "relabel")
        # Labels, launch files and notes are made from `version`; it must be the wheel's own.
        key = "relabel" if vllm.relabel else "wheel"
        named = vllm.relabel or vllm.wheel
        if named and named.split("==", 1)[1] != vllm.version:
            self._bad(
                "version-mismatch",
                f"`version` and `{key}` differ",
                "vllm", key,
                why=f"version is {vllm.version}, {key} is {named}",
            )  # fmt: skip

    def _base_tag(self, base: OciBase) -> None:
        commit = self.pin.vllm.commit
        named = [word for word in base.tag.split("-") if len(word) == 40 and _is_hex(word)]
        if named and commit and commit not in named:
            why = f"the tag says {named[0]}, vllm.commit is {commit}"
            what = "tag and commit are of two different commits"
            self._bad("commit-mismatch", what, "base", "tag", why=why)

    def _launch(self, name: str, launch: LaunchSpec) -> None:
        if name == DEFAULT_LAUNCH:
            self._bad(
                "reserved-launch",
                f"the launch `{name}` is each preset as it stands",
                "launches", name,
                key=True,
                fix="give this one another name, or change the preset",
            )  # fmt: skip
        elif not (launch.args or launch.env or launch.model):
            self._bad(
                "empty-launch",
                f"the launch {name} adds nothing to a preset",
                "launches", name,
                key=True,
                fix="give it args, env or a model, or remove it",
            )  # fmt: skip
        self._start(launch, "launches", name)

    def _start(self, spec: Preset | LaunchSpec, *at: str) -> None:
        """Arguments and environment that a gate's start can have."""
        for number, arg in enumerate(spec.args):
            flag = arg.split("=", 1)[0]
            if (taken := _runner_flag(flag)) is not None:
                self._bad(
                    "reserved-arg",
                    f"{flag} is the runner's to set",
                    *at, "args", number,
                    why=f"whoever starts the image decides {taken}; a gate would find no server",
                    fix="remove it",
                )  # fmt: skip
            elif flag.startswith("--") and " " in flag:
                self._bad(
                    "two-args-in-one",
                    f"{arg!r} is one word of the command line, with a blank in it",
                    *at, "args", number,
                    fix=f"write {'='.join(arg.split(None, 1))}",
                )  # fmt: skip
        for variable in RUNNER_ENV:
            if variable in spec.env:
                what = f"{variable} keeps the gates from being answered"
                self._bad("reserved-env", what, *at, "env", variable, fix="remove it")

    def _known(self, kind: Kind, name: str, *path: str | int, key: bool = False) -> None:
        if name not in (names := self.project.names(kind)):
            self.found.append(unknown(kind, name, names, self._where(*path, key=key)))

    def _bad(
        self,
        code: str,
        what: str,
        *path: str | int,
        key: bool = False,
        why: str = "",
        fix: str = "",
    ) -> None:
        where = self._where(*path, key=key)
        self.found.append(
            BadInput(f"pins.{code}", f"{self.name}: {what}", where=where, why=why, fix=fix)
        )

    def _where(self, *path: str | int, key: bool = False) -> str:
        return self.project.where("pins", self.name, *path, key=key)


def _recipe_problems(name: str, recipe: Recipe) -> Iterator[KilnError]:
    where = f"images/{name}.yaml"
    parts = {"debian": recipe.debian, "python": recipe.python, "runtime": recipe.runtime}
    given = [part for part, value in parts.items() if value is not None]
    # An image may do without Debian packages, but never without these two.
    lacking = [part for part in ("python", "runtime") if part not in given]
    if recipe.overlay and given:
        yield BadInput(
            "pins.unused-key",
            f"an overlay takes {', '.join(given)} from its base",
            where=where,
            fix="remove it here",
        )
    if not recipe.overlay and not recipe.missing and lacking:
        yield BadInput(
            "pins.recipe-incomplete",
            f"the recipe lacks {', '.join(lacking)}",
            where=where,
            fix="add it, or say under `missing` why this cannot be built yet",
        )


def _short_commit(version: str) -> str:
    """The commit in a version's local part ("+g2dfaae752"), or ""."""
    for part in version.partition("+")[2].split("."):
        if len(part) >= 8 and part[0] == "g" and _is_hex(part[1:]):
            return part[1:]
    return ""


def _is_hex(text: str) -> bool:
    return not text.strip("0123456789abcdef")


def _runner_flag(flag: str) -> str | None:
    """The runner's flag that this one is, or is short for (argparse takes prefixes)."""
    dashed = flag.strip().split(None, 1)[0].replace("_", "-")
    if not dashed.startswith("--") or len(dashed) < 4:
        return dashed if dashed == "-h" else None
    return next((known for known in RUNNER_FLAGS if known.startswith(dashed)), None)


def _shared_digests(project: Project) -> Iterator[KilnError]:
    """One image is one version: a digest copied from pin to pin is how fleets ran the old."""
    first: dict[str, tuple[str, Vllm]] = {}
    for name, pin in project.pins.pins.items():
        if pin.base is None:
            continue
        other, vllm = first.setdefault(pin.base.digest, (name, pin.vllm))
        if (vllm.version, vllm.commit) != (pin.vllm.version, pin.vllm.commit):
            yield BadInput(
                "pins.digest-of-two",
                f"{name} and {other} name one base image, but not one vLLM",
                where=project.where("pins", name, "base", "digest"),
                why=f"{other} is {vllm.version}, {name} is {pin.vllm.version}",
                fix="one of the digests is of another image; ask the registry for the right one",
            )


def _unknown_launches(project: Project) -> Iterator[KilnError]:
    """A proof names a launch of a pin that has its patch, or it would never be asked for.

    It need not be one of every such pin: a launch for GPUs has no place in a pin for the CPU.
    """
    launches: dict[str, set[str]] = {}
    for pin in project.pins.pins.values():
        for patch in pin.patches:
            launches.setdefault(patch, {DEFAULT_LAUNCH}).update(pin.launches)
    for patch, known in launches.items():
        if patch not in project.names("patch"):
            continue
        try:
            document = read_document(project, patch)
        except KilnError:
            continue  # what is wrong in it is told where its pin's series is read
        for number, proof in enumerate(document.value.proof):
            if proof.launch not in known:
                yield BadInput(
                    "pins.unknown-launch",
                    f"a proof of patch {patch} is for the launch {proof.launch!r}, which no pin "
                    "with this patch has",
                    where=document.where("proof", number, "launch"),
                    why=f"they have: {listed(known)}",
                    fix=near(proof.launch, known) or "add it under the pin's `launches`",
                )
