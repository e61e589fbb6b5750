"""The steps that make an image, and the versions of their code, for the lock."""

from __future__ import annotations

from kiln.compile.bytecode import BYTECODE
from kiln.compile.component import COMPONENT
from kiln.image.files import FILES
from kiln.image.oci import IMAGE
from kiln.layer.step import LAYER
from kiln.layer.system import SYSTEM
from kiln.source.deb import DEB
from kiln.source.patch import PATCH
from kiln.source.relabel import RELABEL

STEPS = (DEB, RELABEL, PATCH, COMPONENT, BYTECODE, SYSTEM, FILES, LAYER, IMAGE)


def versions() -> dict[str, int]:
    """Mnemonic -> version of the code."""
    return {step.mnemonic: step.version for step in STEPS}
