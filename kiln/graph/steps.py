"""Every step there is: its mnemonic, the version of its code, and where that code is.

Raise a version whenever the same inputs would give other bytes: it is part of every key
of the step, and of each lock. The code is imported when a step runs, so that a build in
which nothing changed does not pay for it.
"""

from __future__ import annotations

from kiln.graph.action import Step

DEB = Step("deb", 1, "kiln.source.deb:run")
RELABEL = Step("relabel", 1, "kiln.source.relabel:run")
PATCH = Step("patch", 1, "kiln.source.patch:run")
COMPONENT = Step("component", 1, "kiln.compile.component:run")
BYTECODE = Step("bytecode", 1, "kiln.compile.bytecode:run")
SYSTEM = Step("debian-system", 1, "kiln.layer.system:run")
TOOLS = Step("debian-tools", 1, "kiln.layer.tools:run")
FILES = Step("files", 1, "kiln.image.files:run")
LAYER = Step("layer", 1, "kiln.layer.step:run")
IMAGE = Step("image", 1, "kiln.image.oci:run")
# Not of an image: what a series does to a wheel, and the gates' models.
SERIES = Step("series", 1, "kiln.image.series:run")
MODEL = Step("model", 1, "kiln.compile.asset:run")

OF_IMAGES = (DEB, RELABEL, PATCH, COMPONENT, BYTECODE, SYSTEM, TOOLS, FILES, LAYER, IMAGE)


def versions() -> dict[str, int]:
    """Mnemonic -> version, of the steps that make images; for the lock."""
    return {step.mnemonic: step.version for step in OF_IMAGES}
