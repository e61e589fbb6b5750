"""Drift: what becomes of a series of patches on another source, without building."""
