"""Wheels made by hand, good and bad, for tests."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiln.source.wheel import Install

INSTALL = Install(
    site="usr/local/lib/python3.11/dist-packages",
    scripts="usr/local/bin",
    data="usr/local",
    interpreter="/usr/bin/python3.11",
)


def row(path: str, data: bytes, algorithm: str = "sha256") -> list[str]:
    """A row of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=")
    return [path, f"{algorithm}={digest.decode()}", str(len(data))]


@dataclass
class Made:
    """A wheel to be written: everything can be bent before `write`."""

    name: str = "demo"
    version: str = "1.0"
    files: dict[str, bytes] = field(default_factory=lambda: {"demo/__init__.py": b"x = 1\n"})
    modes: dict[str, int] = field(default_factory=dict)
    method: int = zipfile.ZIP_DEFLATED
    date: tuple[int, int, int, int, int, int] = (2020, 2, 2, 2, 2, 2)
    filename: str = ""
    dist_info: str = ""
    metadata: bytes | None = None
    wheel: bytes = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows: Sequence[Sequence[str]] | None = None  # the whole of RECORD
    more_rows: Sequence[Sequence[str]] = ()
    without: frozenset[str] = frozenset()
    more: Sequence[tuple[str, bytes]] = ()  # members behind the others, unlisted, any name

    def members(self) -> dict[str, bytes]:
        """All members but RECORD."""
        folder = self.dist_info or f"{self.name}-{self.version}.dist-info"
        metadata = self.metadata
        if metadata is None:
            metadata = (
                f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n".encode()
            )
        made = {**self.files, f"{folder}/METADATA": metadata, f"{folder}/WHEEL": self.wheel}
        return {path: data for path, data in made.items() if path not in self.without}

    def record(self) -> bytes:
        """RECORD of the members, or the rows that were asked for."""
        own = f"{self.dist_info or f'{self.name}-{self.version}.dist-info'}/RECORD"
        rows = self.rows
        if rows is None:
            rows = [*(row(path, data) for path, data in self.members().items()), [own, "", ""]]
        out = io.StringIO(newline="")
        csv.writer(out, lineterminator="\n").writerows([*rows, *self.more_rows])
        return out.getvalue().encode()

    def write(self, folder: Path) -> Path:
        """Write the wheel; returns its path, whose name is the filename."""
        name = self.filename or f"{self.name}-{self.version}-py3-none-any.whl"
        own = f"{self.dist_info or f'{self.name}-{self.version}.dist-info'}/RECORD"
        members = list(self.members().items())
        if own not in self.without:
            members.append((own, self.record()))
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / name, "w", self.method) as archive:
            for path, data in [*members, *self.more]:
                info = zipfile.ZipInfo(path, self.date)
                info.external_attr = self.modes.get(path, 0o100644) << 16
                info.compress_type = self.method
                archive.writestr(info, data)
        return folder / name
