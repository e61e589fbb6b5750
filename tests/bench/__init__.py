"""Kiln's budgets, measured in one run against Docker on the same machine (docs/speed.md)."""
