"""Authoring: patches made, edited and moved as commits of a git work tree."""
