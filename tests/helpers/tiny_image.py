"""A real image of a few megabytes: this machine's Python, and a server that acts as vLLM.

The files are those that the server's imports load, found by asking Python and ldd.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from kiln.canonical import Digest, dumps
from kiln.image.oci import CONFIG, LAYER_TYPES, MANIFEST
from kiln.source.entry import Entry, data_entry, merge
from kiln.source.tar import TarWriter
from kiln.store import Store

FAKE = Path(__file__).with_name("fake_vllm.py")
SERVER = "/opt/fake_vllm.py"
_LIB = f"usr/lib/python{sys.version_info.major}.{sys.version_info.minor}"


def _entry(path: str, source: Path) -> Entry:
    executable = os.access(source, os.X_OK)
    return data_entry(path, source.read_bytes(), 0o755 if executable else 0o644, str(source))


def _libraries(binaries: Sequence[Path]) -> set[Path]:
    shown = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True).stdout
    return {Path(found) for found in re.findall(r"(/\S+) \(0x", shown)}


@cache
def python_layer() -> bytes:
    """An uncompressed layer with /usr/bin/python3 and what the fake server imports."""
    ask = (
        "import runpy, sys; runpy.run_path(sys.argv[1], run_name='x')\n"
        "import encodings.idna, json, socket, urllib.request\n"
        "print(*(m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', None)),"
        " sep='\\n')"
    )
    python = Path(sys.executable).resolve()
    command = [str(python), "-I", "-S", "-c", ask, str(FAKE)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    modules = [Path(line) for line in shown.splitlines()]
    stdlib = Path(os.__file__).parent
    entries = [_entry("usr/bin/python3", python)]
    entries += [_entry(f"{_LIB}/{m.relative_to(stdlib)}", m) for m in modules]
    for library in _libraries([python, *(m for m in modules if m.suffix == ".so")]):
        folder = "usr/lib64" if library.name.startswith("ld-linux") else "usr/lib"
        entries.append(_entry(f"{folder}/{library.name}", library.resolve()))
    entries += [
        Entry("lib", "symlink", 0o777, target="usr/lib"),
        Entry("lib64", "symlink", 0o777, target="usr/lib64"),
        Entry("tmp", "dir", 0o1777),
        data_entry("etc/passwd", b"root:x:0:0::/root:/bin/sh\nvllm:x:1000:0::/var/cache/vllm:\n"),
        data_entry("etc/group", b"root:x:0:\nvllm:x:1000:\n"),
    ]
    return tar_bytes(entries)


def tar_bytes(entries: Sequence[Entry]) -> bytes:
    """A layer of these entries."""
    out = io.BytesIO()
    writer = TarWriter(out)
    for entry in merge([entries]):
        writer.add(entry)
    writer.close()
    return out.getvalue()


def raw_tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A tar of whatever members, hostile ones too."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> tuple[tarfile.TarInfo, bytes]:
    """One member for `raw_tar`."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info, data


def put_image(
    store: Store, tars: Sequence[bytes], runtime: Mapping[str, object], **changes: object
) -> Digest:
    """Put an image of these layers into the store; returns its manifest's digest.

    changes: members of the config that shall be wrong.
    """
    blobs = [store.blobs.put(gzip.compress(tar, 1, mtime=0)) for tar in tars]
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": runtime,
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars],
        },
        **changes,
    }
    config_digest = store.blobs.put(dumps(config))
    return store.blobs.put(manifest(config_digest, blobs))


def manifest(config: Digest, blobs: Sequence[Digest], **changes: object) -> bytes:
    """A manifest of gzip layers."""

    def descriptor(kind: str, digest: Digest) -> dict[str, object]:
        return {"mediaType": kind, "digest": str(digest), "size": digest.size}

    return dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, config),
            "layers": [descriptor(LAYER_TYPES["gzip"], blob) for blob in blobs],
            **changes,
        }
    )


RUNTIME = {
    "Entrypoint": ["/usr/bin/python3", "-S", SERVER],
    "Env": ["PATH=/usr/bin", "PYTHONHOME=/usr", "LD_LIBRARY_PATH=/usr/lib", "A=image"],
    "User": "1000:0",
    "WorkingDir": "/var/cache/vllm",
    "Volumes": {"/var/cache/vllm": {}},
    "Labels": {"kiln.pin": "tiny"},
}


def tiny_image(store: Store, user: str = "1000:0") -> Digest:
    """The image: Python below, the fake server above it."""
    server = tar_bytes([_entry(SERVER.removeprefix("/"), FAKE)])
    return put_image(store, [python_layer(), server], {**RUNTIME, "User": user})
