"""What pins.yaml, the recipes and the components may say.

These structs are the schema: `kiln schema` prints JSON Schema generated from them,
and kiln/pins/convert.py reports every difference with its line. What a single text must
look like (a version, a digest, a name) is said in kiln/pins/forms.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kiln.pins.forms import (
    AbsolutePath,
    Commit,
    CudaSeries,
    DebianPackage,
    EnvName,
    Exact,
    FileName,
    ImageDigest,
    IndexUrl,
    Name,
    Port,
    Project,
    PythonSeries,
    Repository,
    Requirement,
    ScriptVerdict,
    Tag,
    Text,
    User,
    Version,
)


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of everything that a person writes: frozen, and unknown keys are errors."""


# ---- pins.yaml -------------------------------------------------------------------------


class Vllm(Model, frozen=True):
    """Which vLLM. version: what it must call itself. wheel: a requirement, "vllm==0.23.0".

    commit: full hash, where known. relabel: "name==version" written into the wheel's
    metadata by a recorded step.
    """

    version: Version
    wheel: Exact = ""
    commit: Commit = ""
    relabel: Exact = ""


class Torch(Model, frozen=True):
    """Which torch, and the logical index that has it."""

    version: Version
    index: Name = "default"


class OciBase(Model, frozen=True):
    """An image to stand on, by digest; the tag is for people."""

    repository: Repository
    digest: ImageDigest
    tag: Tag = ""


class Preset(Model, frozen=True):
    """One way to start the image, and the model that its gates use.

    args: after `vllm serve MODEL`, one word of the command line each. start_seconds:
    until a first completion must work.
    """

    model: Name
    args: tuple[Text, ...] = ()
    env: dict[EnvName, str] = {}
    start_seconds: Annotated[int, Meta(ge=1, le=86400)] = 600


DEFAULT_LAUNCH = "default"  # the preset as it stands


class LaunchSpec(Model, frozen=True):
    """Another way to start a preset, in which patches are proven: what it adds to the
    preset's args and env. model: another gates' model than the preset's, for what that one
    cannot do."""

    args: tuple[Text, ...] = ()
    env: dict[EnvName, str] = {}
    model: Name | None = None


class Pin(Model, frozen=True):
    """A named entry of pins.yaml.

    base: for an overlay recipe, and only there. components: what is built from source,
    with its version. patches: the series, in the order of application. launches: further
    ways to start each preset; "default" is the preset as it stands.
    """

    recipe: Name
    vllm: Vllm
    torch: Torch
    python: PythonSeries = ""
    cuda: CudaSeries = ""
    base: OciBase | None = None
    components: dict[Name, Version] = {}
    patches: tuple[Name, ...] = ()
    presets: dict[Name, Preset] = {}
    launches: dict[Name, LaunchSpec] = {}

    @property
    def models(self) -> list[str]:
        """The gates' models of its presets and launches, sorted."""
        launched = {launch.model for launch in self.launches.values() if launch.model}
        return sorted({preset.model for preset in self.presets.values()} | launched)


class Pins(Model, frozen=True):
    """pins.yaml as a whole. default: the pin meant where none is named. indexes: logical
    name -> address; locks use the name."""

    default: Name
    pins: Annotated[dict[Name, Pin], Meta(min_length=1)]
    indexes: dict[Name, IndexUrl] = {}


# ---- images/<recipe>.yaml ----------------------------------------------------------------


class Debian(Model, frozen=True):
    """The Debian part of an image.

    release: suite name. security: also take the security suite. groups: layer name ->
    packages asked for; each layer holds what it needs that no layer before it has.
    scripts: package -> "handled: how" or "needless: why", for every maintainer script
    of the closure, since none of them runs.
    """

    release: Name
    groups: dict[Name, tuple[DebianPackage, ...]]
    scripts: dict[DebianPackage, ScriptVerdict]
    security: bool = False


class Python(Model, frozen=True):
    """Where the image's Python looks for packages and where scripts go (absolute paths)."""

    interpreter: AbsolutePath
    site: AbsolutePath
    scripts: AbsolutePath


class Wheels(Model, frozen=True):
    """How the wheels of the image are chosen.

    requirements: beyond vLLM and torch. constraints: bounds that resolution keeps.
    exclude: package -> why it is left out although something asks for it. layers: layer
    name -> packages; what no layer names goes into the layer "wheels". winners: path
    claimed by two wheels -> the package whose file is taken.
    """

    requirements: tuple[Requirement, ...] = ()
    constraints: tuple[Requirement, ...] = ()
    exclude: dict[Project, Text] = {}
    layers: dict[Name, tuple[Project, ...]] = {}
    winners: dict[Text, Project] = {}


class Runtime(Model, frozen=True):
    """What the image's config says. user: "uid:gid". cache: the one writable path."""

    entrypoint: Annotated[tuple[Text, ...], Meta(min_length=1)]
    env: dict[EnvName, str]
    user: User
    cache: AbsolutePath
    workdir: AbsolutePath = "/"
    command: tuple[Text, ...] = ()
    ports: tuple[Port, ...] = ()


class Recipe(Model, frozen=True):
    """images/<name>.yaml.

    missing: why this version of Kiln cannot build it, "" where it can. overlay: the image
    is layers on top of the pin's OCI base, so debian, python and runtime stay out.
    """

    title: Text
    architecture: Literal["amd64", "arm64"] = "amd64"
    compression: Literal["gzip"] = "gzip"
    missing: str = ""
    overlay: bool = False
    debian: Debian | None = None
    python: Python | None = None
    wheels: Wheels = Wheels()
    runtime: Runtime | None = None
    extensions: dict[Text, Text] = {}


# ---- build/<component>/recipe.yaml -------------------------------------------------------


class BuildRoot(Model, frozen=True):
    """build/roots/<name>.yaml: a locked root to run foreign code in.

    debian: packages asked for. wheels: requirements, put into the root's Python.
    `torch` stands for the pin's own torch.
    """

    title: Text
    release: Name
    debian: tuple[DebianPackage, ...]
    interpreter: AbsolutePath
    site: AbsolutePath
    wheels: tuple[Requirement, ...] = ()
    exclude: dict[Project, Text] = {}


class Component(Model, frozen=True):
    """build/<name>/recipe.yaml: built from a locked sdist, inside a root, by `script`.

    The script runs in the sandbox as `sh <script>`, with /build/src (the unpacked sdist),
    /build/out (where it leaves one wheel). expect: paths that the wheel must hold.
    requires: requirements that join the image's wheels, for what it needs at run time.
    """

    title: Text
    sdist: Text
    root: Name
    script: FileName
    expect: tuple[Text, ...] = ()
    requires: tuple[Text, ...] = ()


class Asset(Model, frozen=True):
    """build/models/<name>/recipe.yaml: a gates' model, converted inside a root."""

    title: Text
    wheel: Text
    root: Name
    script: FileName
    expect: tuple[Text, ...] = ()
