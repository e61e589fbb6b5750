"""Compiling: the sandbox, its roots, and all that runs foreign code in them."""
