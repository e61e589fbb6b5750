"""What only the closure's own programs can make: ld.so.cache and certificate hashes.

Both run in the sandbox, in a root that holds just them, the libraries and the
certificates. ldconfig's cache depends on its version and on the libraries; the names of
the links in /etc/ssl/certs (openssl-rehash(1)) are hashes of subjects by OpenSSL's own
rules. Neither is worth a second implementation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kiln.canonical import Digest
from kiln.compile.sandbox import Bind, Command, Executor, check, find_sandbox
from kiln.errors import BadInput
from kiln.graph.action import Context
from kiln.source.entry import Entry, merge
from kiln.source.tree import read_tree, unpack, write_tree
from kiln.store import Store

LDCONFIG = "usr/sbin/ldconfig"
OPENSSL = "usr/bin/openssl"
CERTIFICATES = "etc/ssl/certs/"

_LIBRARY = re.compile(r".*\.so(\.[^/]*)?|etc/ld\.so\.conf(\.d/.*)?")
_HASH = re.compile(r"[0-9a-f]{8}\.\d+")
_MOUNTS = ("build", "dev", "proc", "tmp")


def make(
    files: Mapping[str, Entry], executor: Executor, store: Store, scratch: Path
) -> list[Entry]:
    """etc/ld.so.cache and the links etc/ssl/certs/HASH.N for a closure's files.

    scratch: an empty folder. Raises BadInput("layer.no-package") without ldconfig,
    JudgedBad("compile.failed") with what the tool said.
    """
    if LDCONFIG not in files:
        raise BadInput(
            "layer.no-package",
            f"the closure has no /{LDCONFIG}",
            fix="add libc-bin to the first group of the recipe",
        )
    root, out = scratch / "root", scratch / "out"
    wanted = [files[path] for path in files if path in (LDCONFIG, OPENSSL) or _needed(path, files)]
    mounts = [Entry(name, "dir", 0o755, origin="kiln") for name in _MOUNTS]
    links = [e for e in files.values() if e.kind == "symlink" and "/" not in e.path]
    unpack(merge([wanted, mounts, links]), root)
    out.mkdir()

    def run_tool(*argv: str) -> None:
        command = Command(argv, root, binds=(Bind(out, "/build", writable=True),))
        check(executor, command, scratch / "log", f"the closure's own {argv[0]}", store)

    # -X: the packages ship their links; -i: no cache of inodes and times.
    run_tool(f"/{LDCONFIG}", "-X", "-i", "-f", "/etc/ld.so.conf", "-C", "/build/ld.so.cache")
    cache = out / "ld.so.cache"
    made = [_file("etc/ld.so.cache", cache)]
    certificates = _certificates(files)
    if certificates and OPENSSL in files:
        unpack(certificates, out)
        run_tool(f"/{OPENSSL}", "rehash", "/build/certs")
        made += _hash_links(out / "certs")
    return made


def _needed(path: str, files: Mapping[str, Entry]) -> bool:
    return files[path].kind != "dir" and _LIBRARY.fullmatch(path) is not None


def _file(path: str, source: Path) -> Entry:
    return Entry(path, "file", 0o644, source.stat().st_size, opener=lambda: source.open("rb"))


def _certificates(files: Mapping[str, Entry]) -> list[Entry]:
    """Each certificate under the name of its link in /etc/ssl/certs, with its content."""
    found = []
    for path, entry in files.items():
        if entry.kind == "symlink" and path.startswith(CERTIFICATES) and path.endswith(".pem"):
            source = files.get(entry.target.lstrip("/"))
            if source is not None and source.kind == "file":
                name = f"certs/{path.removeprefix(CERTIFICATES)}"
                found.append(Entry(name, "file", 0o644, source.size, opener=source.opener))
    return found


def _hash_links(folder: Path) -> Iterator[Entry]:
    for path in folder.iterdir():
        if path.is_symlink() and _HASH.fullmatch(path.name):
            target = str(path.readlink())
            yield Entry(
                f"{CERTIFICATES}{path.name}", "symlink", 0o777, target=target, origin="kiln"
            )


def run(context: Context) -> dict[str, Digest]:
    """Inputs "tree:NAME" for each package of the closure, and "system" (SYSTEM's tree).

    Output "out": a tree with etc/ld.so.cache and the links by hash in etc/ssl/certs.
    """
    trees: Sequence[list[Entry]] = [
        read_tree(context.path(name), name) for name in sorted(context.inputs)
    ]
    files = {entry.path: entry for entry in merge(trees)}
    if OPENSSL not in files:
        context.reporter.note("the closure has no openssl: certificates get no links by hash")
    entries = make(files, find_sandbox(context.store), context.store, context.tmp)
    return {"out": write_tree(context.store.blobs, entries)}
