"""Wheels that Kiln writes: the same files give the same bytes.

What a build back end leaves carries dates, an order and a compressor's mark. Here the
members are sorted, dated 1980-01-01, stored without compression (a layer compresses them
anyway, and no zlib version has a say) and RECORD is made anew, as the last one.
"""

from __future__ import annotations

import hashlib
import zipfile
from typing import IO

from kiln.source.record import format_record
from kiln.source.wheel import Wheel

_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can hold; kiln.source.tar.EPOCH
_UNIX = 3  # APPNOTE 4.4.2: external attributes hold a Unix mode
_FILE = 0o100000


def repack(wheel: Wheel, out: IO[bytes]) -> None:
    """Write `wheel` in canonical form. Its contents are verified on the way."""
    hashes: dict[str, tuple[str, int]] = {}
    record = f"{wheel.dist_info}/RECORD"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(wheel.names(), key=str.encode):
            if name == record:
                continue
            data = wheel.read(name)
            hashes[name] = hashlib.sha256(data).hexdigest(), len(data)
            _add(archive, name, data, wheel.archive.members[name].executable)
        _add(archive, record, format_record(hashes, [record]), executable=False)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, executable: bool) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.create_system = _UNIX
    info.external_attr = (_FILE | (0o755 if executable else 0o644)) << 16
    archive.writestr(info, data)
