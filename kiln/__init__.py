"""Kiln: reproducible builds, pins and promotion for patched vLLM images.

The folders of this package are the stages of a build, in order: pins, lock,
graph (fetch, source, compile, layer, image), run, gate, report; `store` stands
beside them and `cli` above them. See docs/design.md.
"""

__version__ = "0.1.0"
