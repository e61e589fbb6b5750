"""What pins.yaml, the recipes and the components may say.

These structs are the schema: `kiln schema` prints JSON Schema generated from them,
and kiln/pins/yaml.py reports every difference with its line.
"""

from __future__ import annotations

import msgspec


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of everything that a person writes: frozen, and unknown keys are errors."""


# ---- pins.yaml -------------------------------------------------------------------------


class Vllm(Model, frozen=True):
    """Which vLLM. version: what it must call itself. wheel: a requirement, "vllm==0.23.0".

    commit: full hash, where known. relabel: "name==version" written into the wheel's
    metadata by a recorded step.
    """

    version: str
    wheel: str = ""
    commit: str = ""
    relabel: str = ""


class Torch(Model, frozen=True):
    """Which torch, and the logical index that has it."""

    version: str
    index: str = "default"


class OciBase(Model, frozen=True):
    """An image to stand on, by digest; the tag is for people."""

    repository: str
    digest: str
    tag: str = ""


class Preset(Model, frozen=True):
    """One way to start the image, and the model that its gates use.

    args: after `vllm serve MODEL`. start_seconds: until a first completion must work.
    """

    model: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    start_seconds: int = 600


class Pin(Model, frozen=True):
    """A named entry of pins.yaml. patches: the series, in the order of application."""

    recipe: str
    vllm: Vllm
    torch: Torch
    python: str = ""
    cuda: str = ""
    base: OciBase | None = None
    components: dict[str, str] = {}
    patches: tuple[str, ...] = ()
    presets: dict[str, Preset] = {}


class Pins(Model, frozen=True):
    """pins.yaml as a whole."""

    default: str
    pins: dict[str, Pin]
    indexes: dict[str, str] = {}


# ---- images/<recipe>.yaml ----------------------------------------------------------------


class Debian(Model, frozen=True):
    """The Debian part of an image.

    release: suite name. security: also take the security suite. groups: layer name ->
    packages asked for; each layer holds what it needs that no layer before it has.
    scripts: package -> "handled: how" or "needless: why", for every maintainer script
    of the closure, since none of them runs.
    """

    release: str
    groups: dict[str, tuple[str, ...]]
    scripts: dict[str, str]
    security: bool = False


class Python(Model, frozen=True):
    """Where the image's Python looks for packages and where scripts go (absolute paths)."""

    interpreter: str
    site: str
    scripts: str


class Wheels(Model, frozen=True):
    """How the wheels of the image are chosen.

    requirements: beyond vLLM and torch. constraints: bounds that resolution keeps.
    exclude: package -> why it is left out although something asks for it. layers: layer
    name -> packages; what no layer names goes into the layer "wheels". winners: path
    claimed by two wheels -> the package whose file is taken.
    """

    requirements: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    exclude: dict[str, str] = {}
    layers: dict[str, tuple[str, ...]] = {}
    winners: dict[str, str] = {}


class Runtime(Model, frozen=True):
    """What the image's config says. user: "uid:gid". cache: the one writable path."""

    entrypoint: tuple[str, ...]
    env: dict[str, str]
    user: str
    cache: str
    workdir: str = "/"
    command: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()


class Recipe(Model, frozen=True):
    """images/<name>.yaml. available: False with `missing` for what is not built yet."""

    title: str
    architecture: str = "amd64"
    compression: str = "gzip"
    missing: str = ""
    debian: Debian | None = None
    python: Python | None = None
    wheels: Wheels = Wheels()
    runtime: Runtime | None = None
    extensions: dict[str, str] = {}


# ---- build/<component>/recipe.yaml -------------------------------------------------------


class BuildRoot(Model, frozen=True):
    """build/roots/<name>.yaml: a locked root to run foreign code in.

    debian: packages asked for. wheels: requirements, put into the root's Python.
    `torch` stands for the pin's own torch.
    """

    title: str
    release: str
    debian: tuple[str, ...]
    interpreter: str
    site: str
    wheels: tuple[str, ...] = ()
    exclude: dict[str, str] = {}


class Component(Model, frozen=True):
    """build/<name>/recipe.yaml: built from a locked sdist, inside a root, by `script`.

    The script runs in the sandbox as `sh <script>`, with /build/src (the unpacked sdist),
    /build/out (where it leaves one wheel). expect: paths that the wheel must hold.
    """

    title: str
    sdist: str
    root: str
    script: str
    expect: tuple[str, ...] = ()


class Asset(Model, frozen=True):
    """build/models/<name>/recipe.yaml: a gates' model, converted inside a root."""

    title: str
    wheel: str
    root: str
    script: str
    expect: tuple[str, ...] = ()
