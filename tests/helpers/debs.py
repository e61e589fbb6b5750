"""Tiny Debian packages for tests: sound ones, and whatever else a test wants."""

from __future__ import annotations

import gzip
import io
import lzma
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

CONTROL = "Package: tiny\nVersion: 1.0-1\nArchitecture: amd64\nDescription: tiny\n"


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    """A tar member; fields: mode, linkname, uid, gid, ..."""
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def tar(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """A tar archive of members and their contents."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zstd(data: bytes) -> bytes:
    """Compressed by the program zstd."""
    return subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout


PACK: Mapping[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


def ar(members: Iterable[tuple[str, bytes]]) -> bytes:
    """An ar archive (deb(5))."""
    out = b"!<arch>\n"
    for name, data in members:
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n"
        out += header.encode() + data + b"\n" * (len(data) % 2)
    return out


def deb(
    path: Path,
    files: Mapping[str, str] | Iterable[tuple[tarfile.TarInfo, bytes]] = (),
    control: str = CONTROL,
    extra: Mapping[str, str] | None = None,
    suffix: str = ".xz",
) -> Path:
    """Write a package. files: path -> text, or tar members as they are; extra: more files
    of the control part ("postinst")."""
    if isinstance(files, Mapping):
        files = [(member(f"./{name}"), text.encode()) for name, text in files.items()]
    texts = {"control": control, **(extra or {})}
    inside = tar((member(f"./{name}"), text.encode()) for name, text in texts.items())
    pack = PACK[suffix]
    path.write_bytes(
        ar(
            [
                ("debian-binary", b"2.0\n"),
                (f"control.tar{suffix}", pack(inside)),
                (f"data.tar{suffix}", pack(tar(files))),
            ]
        )
    )
    return path
