"""Pristine sources and series as commits, written with git's own import format.

Author, dates and messages are fixed, so the same series gives the same commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kiln.authoring import mail
from kiln.authoring.git import AUTHOR, Git
from kiln.canonical import sha256
from kiln.drift.source import Source
from kiln.errors import BadInput, KilnError, raise_problems
from kiln.pins.patch import Patch, PatchFile, read_document, read_each
from kiln.pins.project import Project
from kiln.source.apply import PatchFit, apply_series, fit_patch, no_modes
from kiln.source.diff import FILE
from kiln.source.fit import File, Files
from kiln.source.retire import retired

PACKAGE = "vllm/"
_BINARY = (".so", ".pyc", ".a", ".o", ".bin", ".jpg", ".png", ".pdf", ".zip", ".gz")
_MAX_TEXT = 8 << 20  # bytes; the largest text of vLLM has under one million
_REF = "refs/kiln/import"
# What patches say of each other and of their proofs: to be mended while one works on them.
_RULES = (
    "patch.requires",
    "patch.conflicts",
    "patch.provides",
    "patch.unknown-name",
    "patch.contradiction",
    "patch.proof",
    "patch.retire-when",
)


@dataclass(frozen=True)
class Blob:
    """A file's bytes (of a link: its target) and git's mode."""

    data: bytes
    mode: int = FILE


@dataclass(frozen=True)
class Step:
    """One patch of a series. files: path -> what it makes of it (None: deleted). sha256: of
    the patch's file."""

    id: str
    message: bytes
    files: Mapping[str, Blob | None]
    sha256: str


@dataclass(frozen=True)
class Series:
    """What a pin's patches do to a source. left_out: id -> why it has no part in it. rules:
    what a build will refuse before it applies anything (a missing `requires` or proof)."""

    steps: tuple[Step, ...]
    left_out: Mapping[str, str]
    rules: tuple[KilnError, ...] = ()


# ---- what a series does


def read_steps(
    project: Project, ids: Sequence[str], source: Source, listed: Sequence[str] = ()
) -> Series:
    """Apply the patches in order, as a build does, and keep what each makes of its files.

    listed: the whole series, where `ids` are only some of it. A patch without a file for
    this version is left out. Raises what `read_each` and `apply_series` raise.
    """
    found, errors = read_each(project, listed or ids, source.version)
    files: list[PatchFile] = []
    left_out: dict[str, str] = {}
    unwritten = {error.where for error in errors if error.code == "patch.no-file"}
    for name in ids:
        file = found.get(name)
        if isinstance(file, PatchFile):
            files.append(file)
        elif isinstance(file, BadInput):
            why = why_retired(read_document(project, name).value, source)
            left_out[name] = why or f"it has no file for vLLM {source.version}"
        elif f"patches/{name}/patch.yaml" in unwritten:
            left_out[name] = "its file is not written yet"
    raise_problems([error for error in errors if error.code not in (*_RULES, "patch.no-file")])
    contents = each_step(source, files)
    steps = [
        Step(
            file.id,
            mail.message_of(mail.split(file.data)[0]) or plain_message(project, file.id),
            step,
            sha256(file.data),
        )
        for file, step in zip(files, contents, strict=True)
    ]
    return Series(tuple(steps), left_out, tuple(e for e in errors if e.code in _RULES))


def plain_message(project: Project, patch: str) -> bytes:
    """The message for a patch whose file has none."""
    return f"{patch}: {read_document(project, patch).value.title}".encode()


def why_retired(patch: Patch, source: Source) -> str:
    """Why the patch has no place in this source, by its `retire_when`; "" if it has one."""
    for found in retired(patch, reader(source)):
        by = f"superseded by {found.rule.superseded_by}" if found.rule.superseded_by else ""
        return f"retired: {by or 'upstream has it'} ({found.rule.file}:{found.line})"
    return ""


def reader(source: Source) -> Callable[[str], bytes | None]:
    """The source as `apply_series` reads it."""
    names = source.names()
    return lambda path: source.read(path) if path in names else None


def each_step(source: Source, series: Sequence[PatchFile]) -> list[dict[str, Blob | None]]:
    """For each patch, the files that it touches as they are after it.

    Raises what `apply_series` raises: it has the word on the series.
    """
    apply_series(reader(source), source.names(), series)
    files = Files(reader(source), source.names(), no_modes)
    steps: list[dict[str, Blob | None]] = []
    for patch in series:
        fit = fit_patch(patch, files)
        steps.append(results(fit))
        files = fit.after
    return steps


def results(fit: PatchFit) -> dict[str, Blob | None]:
    """What a patch makes of the files that it touches."""
    touched = {path for file in fit.files for path in file.results}
    return {path: blob(fit.after.get(path)) for path in sorted(touched)}


def blob(file: File | None) -> Blob | None:
    """A file as git keeps it."""
    return None if file is None else Blob(file.text.data, file.mode or FILE)


# ---- commits


def import_pristine(git: Git, source: Source, above: str = "") -> str:
    """The text files of the source as a commit, on top of `above`; returns its id."""
    message = f"vLLM {source.version}, pristine\n\nfrom {source.label}\n".encode()
    head = _head(message, above) + b"deleteall\n"
    return _import(git, [[head, *(_change(path, blob) for path, blob in _texts(source))]])[0]


def import_steps(git: Git, base: str, steps: Sequence[Step]) -> list[str]:
    """The steps as commits on top of `base`; returns their ids."""
    blocks = []
    for number, step in enumerate(steps):
        head = _head(mail.with_id(step.message, step.id), base if number == 0 else "")
        blocks.append([head, *(_change(path, blob) for path, blob in step.files.items())])
    return _import(git, blocks)


def _texts(source: Source) -> Iterator[tuple[str, Blob]]:
    for path in sorted(source.names()):
        if not path.startswith(PACKAGE) or path.endswith(_BINARY):
            continue
        parts = path.split("/")
        if any(part.lower() in ("", ".", "..", ".git") for part in parts) or not path.isprintable():
            raise BadInput(
                "authoring.odd-path",
                f"the source has a file {path!r}, which no work tree can hold",
                where=source.label,
                fix="this is not vLLM as it was published",
            )
        data = source.read(path)
        if len(data) <= _MAX_TEXT and b"\0" not in data:
            yield path, Blob(data)


def _head(message: bytes, above: str) -> bytes:
    """A commit for fast-import, from its authors on; `_import` puts its name before it."""
    head = b"author %s\ncommitter %s\ndata %d\n%s\n" % (AUTHOR, AUTHOR, len(message), message)
    return head + (b"from %s\n" % above.encode() if above else b"")


def _change(path: str, blob: Blob | None) -> bytes:
    name = b'"' + path.encode().replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
    if blob is None:
        return b"D %s\n" % name
    return b"M %o inline %s\ndata %d\n%s\n" % (blob.mode, name, len(blob.data), blob.data)


def _import(git: Git, blocks: Iterable[Sequence[bytes]]) -> list[str]:
    """Commits in a row; returns their ids."""
    marks = git.dir / "kiln" / "marks"
    parts = [b"feature done\n"]
    count = 0
    for count, (head, *changes) in enumerate(blocks, 1):
        parts += [b"commit %s\nmark :%d\n" % (_REF.encode(), count), head, *changes]
    if not count:
        return []
    parts.append(b"done\n")
    git.run("update-ref", "-d", _REF)  # else a first commit would stand on the last import
    options = ("--quiet", "--force", f"--export-marks={marks}")
    git.run("-c", "core.compression=1", "fast-import", *options, stdin=b"".join(parts))
    ids = dict(line.split() for line in marks.read_text().splitlines())
    marks.unlink()
    return [ids[f":{number}"] for number in range(1, count + 1)]
