"""RECORD: the list of a wheel's files with their hashes and sizes.

(Binary distribution format and "Recording installed projects" of packaging.python.org:
CSV rows `path,algorithm=urlsafe-base64-without-padding,size`.)
"""

from __future__ import annotations

import base64
import binascii
import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kiln.errors import BadInput
from kiln.source.entry import check_path

_ALGORITHMS = {"sha256": 32, "sha384": 48, "sha512": 64}  # bytes of a digest


@dataclass(frozen=True, slots=True)
class Row:
    """What RECORD says of a file. algorithm: "" where it gives no hash; size: bytes."""

    path: str
    algorithm: str
    digest: bytes
    size: int | None


def parse_record(data: bytes, where: str) -> tuple[dict[str, Row], list[BadInput]]:
    """The rows by path, and every problem of the text: "wheel.record-malformed",
    "wheel.record-path", "wheel.record-duplicate", "wheel.record-hash"."""
    rows: dict[str, Row] = {}
    problems: list[BadInput] = []
    try:
        table = list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        return {}, [problem("record-malformed", "RECORD is no CSV file", where, str(error))]
    for number, cells in enumerate(table, 1):
        if not cells:
            continue
        try:
            row = _parse_row(cells, f"{where}: RECORD row {number}")
        except BadInput as error:
            problems.append(error)
            continue
        if row.path in rows:
            problems.append(problem("record-duplicate", f"RECORD lists {row.path} twice", where))
        rows[row.path] = row
    return rows, problems


def _parse_row(cells: list[str], where: str) -> Row:
    if len(cells) != 3:
        raise problem("record-malformed", f"{len(cells)} columns are not three", where)
    path, digest, size = cells
    try:
        check_path(path, where)
    except BadInput as error:
        raise problem("record-path", error.what, where, error.why) from error
    if size and not (size.isascii() and size.isdigit()):
        raise problem("record-malformed", f"{path}: size {size!r} is no number", where)
    algorithm, _, text = digest.partition("=")
    if not digest:
        return Row(path, "", b"", int(size) if size else None)
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != _ALGORITHMS.get(algorithm):
        raise problem(
            "record-hash",
            f"{path}: {digest!r} is no hash that can be trusted",
            where,
            f"one of {', '.join(_ALGORITHMS)} is needed",
        )
    return Row(path, algorithm, raw, int(size) if size else None)


def format_record(files: Mapping[str, tuple[str, int]], unhashed: Iterable[str]) -> bytes:
    """RECORD's bytes: rows for path -> (sha256 hex, size), and `unhashed` paths (its own)
    with empty columns; sorted bytewise by path."""
    rows: list[tuple[str, str, str]] = []
    rows += [(path, f"sha256={_base64(sha)}", str(size)) for path, (sha, size) in files.items()]
    rows += [(path, "", "") for path in unhashed]
    rows.sort(key=lambda row: row[0].encode())
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def _base64(sha: str) -> str:
    return base64.urlsafe_b64encode(bytes.fromhex(sha)).rstrip(b"=").decode()


def problem(reason: str, what: str, where: str, why: str = "") -> BadInput:
    """A BadInput("wheel.<reason>") about a wheel."""
    return BadInput(
        f"wheel.{reason}",
        what,
        where=where,
        why=why,
        fix="do not use this wheel; report it to whoever publishes it",
    )
