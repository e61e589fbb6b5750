"""dpkg's database as it would be if dpkg had installed the closure (dpkg(1), FILES).

Scanners and `dpkg -l` read it, and so does apt in an image that builds on ours. Paths in
the lists are where files really are (usr/bin/bash, not bin/bash): Kiln installs to the
end of merged /usr's links, and scanners compare with what they find in the layers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kiln.source.deb import ALIASES, Deb, canonical
from kiln.source.entry import Entry, data_entry

INFO = "var/lib/dpkg/info"


def database(debs: Sequence[Deb], trees: Mapping[str, Sequence[Entry]]) -> Iterator[Entry]:
    """The files below var/lib/dpkg for these packages; trees: what each one installs."""
    stanzas = []
    for deb in sorted(debs, key=lambda deb: deb.name):
        tree = [entry for entry in trees[deb.name] if entry.path not in ALIASES]
        stem = f"{INFO}/{_stem(deb)}"
        paths = ["/.", *(f"/{entry.path}" for entry in tree)]
        yield _text(f"{stem}.list", paths)
        if deb.md5sums:
            yield _text(f"{stem}.md5sums", _merged(deb))
        if deb.conffiles:
            yield _text(f"{stem}.conffiles", deb.conffiles)
        stanzas.append(_stanza(deb, {entry.path: entry for entry in tree}))
    yield data_entry("var/lib/dpkg/status", "".join(stanzas).encode())
    yield _text(f"{INFO}/format", ["1"])
    for name in ("available", "diversions", "statoverride"):
        yield data_entry(f"var/lib/dpkg/{name}", b"")
    for name in ("alternatives", "parts", "triggers", "updates"):
        yield Entry(f"var/lib/dpkg/{name}", "dir", 0o755, origin="kiln")


def _text(path: str, lines: Iterable[str]) -> Entry:
    return data_entry(path, "".join(f"{line}\n" for line in lines).encode())


def _stem(deb: Deb) -> str:
    """The name of its files: with the architecture where several may be installed."""
    if deb.control.get("Multi-Arch") == "same":
        return f"{deb.name}:{deb.control['Architecture']}"
    return deb.name


def _merged(deb: Deb) -> Iterator[str]:
    """md5sums, "<hash>  <path>", with the paths at the end of merged /usr's links."""
    for line in deb.md5sums.splitlines():
        digest, _, path = line.partition("  ")
        yield f"{digest}  {canonical(path, deb.origin)}"


def _stanza(deb: Deb, files: Mapping[str, Entry]) -> str:
    """The package's paragraph of the status file; Conffiles go before the description."""
    lines = [f"Package: {deb.name}", "Status: install ok installed"]
    for name, value in deb.control.items():
        if name == "Description":
            lines += _conffiles(deb, files)
        if name not in ("Package", "Status", "Conffiles"):
            lines.append(f"{name}: {value}")
    if "Description" not in deb.control:
        lines += _conffiles(deb, files)
    return "\n".join(lines) + "\n\n"


def _conffiles(deb: Deb, files: Mapping[str, Entry]) -> list[str]:
    found = []
    for path in deb.conffiles:
        entry = files.get(canonical(path[1:], deb.origin))
        if entry is not None and entry.kind == "file":
            md5 = hashlib.md5(usedforsecurity=False)
            for block in entry.blocks():
                md5.update(block)
            found.append(f" {path} {md5.hexdigest()}")
    return ["Conffiles:", *found] if found else []
