"""From the commits of a work tree to the patch files of the project.

Each commit becomes the file of its patch for this version (kiln/authoring/form.py), and
patch.yaml learns of it. What would not change is not written. Nothing is deleted: a
commit that is gone, or stands elsewhere, is reported, with what pins.yaml would have to
say; a file that somebody else has changed since is never written over unasked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kiln.authoring import mail, plan
from kiln.authoring.commits import Commit, check_series, read_commits
from kiln.authoring.edits import patches_line, read_text, set_patches
from kiln.authoring.files import write_all
from kiln.authoring.form import Forms, Item, left_out_parts
from kiln.authoring.lay import plain_message
from kiln.authoring.meta import Place, find_place, target
from kiln.authoring.scaffold import TODO
from kiln.authoring.work import Work, branch_name, locked, read_work, unfinished
from kiln.canonical import sha256
from kiln.errors import BadInput, KilnError, Problems, raise_problems
from kiln.pins.load import load_project
from kiln.pins.project import Project


@dataclass(frozen=True)
class Saved:
    """What a save did. written: files of the project, from its root. same: patches whose
    files were right already. notes: what a person should know. order: what the pin's
    `patches` should say, where it says something else; () where it is right."""

    work: Work
    written: tuple[str, ...]
    same: tuple[str, ...]
    notes: tuple[str, ...]
    order: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether something is left to a person."""
        return bool(self.order)

    def text(self) -> str:
        """For people."""
        lines = [f"wrote {file}" for file in self.written]
        if not self.written:
            lines.append(f"{len(self.same)} patches, all as they were")
        lines += self.notes
        if self.order:
            lines.append(
                f"pins.yaml: pin {self.work.state.pin} should say (or run `kiln patch save "
                f"--write-pin`):\n    {patches_line(self.order)}"
            )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """For --json."""
        return {
            "folder": str(self.work.folder),
            "pin": self.work.state.pin,
            "version": self.work.state.version,
            "written": list(self.written),
            "same": list(self.same),
            "notes": list(self.notes),
            "order": list(self.order),
        }


def save(
    work: Work, *, overwrite: bool = False, write_pin: bool = False, ending: str = ""
) -> Saved:
    """Let the patch files follow the commits.

    overwrite: write over files that were changed elsewhere since. write_pin: let pins.yaml
    follow too. ending: what git is about to end ("rebase"), as its hook says.

    Raises BadInput "authoring.unfinished", "authoring.file-changed", "authoring.empty-commit",
    "authoring.other-version" and what `check_series`, `Forms.make` and `target` raise.
    """
    with work.locked():
        return save_locked(
            read_work(work.folder), overwrite=overwrite, write_pin=write_pin, ending=ending
        )


def save_from_hook(work: Work, event: str) -> str:
    """What git's hooks run; returns what is to be told, "" if that is nothing.

    event: "commit", "amend" or "rebase". Only the work tree's own branch is followed: on
    another one a person tries things out. A fixup waits for its rebase, and is no error.
    """
    doing = work.unfinished()
    if event == "amend" or (doing and event != doing):
        return ""  # the commit's own hook has done it, or the rebase's end will
    branch = branch_name(work.name)
    on = work.git.attempt("symbolic-ref", "--quiet", "--short", "HEAD").stdout.decode().strip()
    if on != branch:
        return f"kiln: not saved: this is not branch {branch}; `kiln patch save` saves it\n"
    try:
        saved = save(work, ending=event)
    except BadInput as error:
        if error.code != "authoring.fixup":
            raise
        return f"kiln: {error}\n"
    return f"{saved.text()}\n" if saved.written or saved.notes or saved.waits else ""


def save_locked(
    work: Work, *, overwrite: bool = False, write_pin: bool = False, ending: str = ""
) -> Saved:
    """As `save`, for whoever holds the work tree's lock."""
    doing = work.unfinished()
    if doing and doing != ending:
        raise unfinished(work, doing)
    head = work.git.commit("HEAD")
    commits = read_commits(work.git, work.state.base, head)
    with locked(work.project / "patches"):
        project = load_project(work.project)
        check_series(commits, project.names("patch"), str(work.folder), work.tag)
        check_version(work, project)
        writes, same, notes, files = _files(work, project, commits, overwrite)
        order = _order(work, project, commits)
        if order and write_pin:
            pins = project.root / "pins.yaml"
            text = set_patches(read_text(pins), project.pins, work.state.pin, order, "pins.yaml")
            writes[pins] = text.encode()
            order = ()
        write_all(writes)
    if (head, files) != (work.state.head, work.state.files):
        work = work.with_state(head=head, files=files)
    written = tuple(path.relative_to(project.root).as_posix() for path in writes)
    return Saved(work, written, tuple(same), (*notes, *_left(work, commits)), order)


def check_version(work: Work, project: Project) -> None:
    """Raise BadInput("authoring.other-version") if the pin has another version by now."""
    pin = project.pins.pins.get(work.state.pin)
    if pin is None or pin.vllm.version == work.state.version:
        return
    raise BadInput(
        "authoring.other-version",
        f"the work tree is of vLLM {work.state.version}, and {work.state.pin} is "
        f"{pin.vllm.version} by now",
        where=project.where("pins", work.state.pin, "vllm", "version"),
        fix=f"save it before the pin moves; to move the series: `kiln patch refresh PIN --to "
        f"{work.state.pin} --dir NEW`, from a pin of the old version",
    )


# ---- the files


def _files(
    work: Work, project: Project, commits: Sequence[Commit], overwrite: bool
) -> tuple[dict[Path, bytes], list[str], list[str], dict[str, str]]:
    """What is to be written, which patches stay, notes, and the files' hashes afterwards."""
    places = [find_place(project, commit.patch, work.state.version) for commit in commits]
    full = [(c, p) for c, p in zip(commits, places, strict=True) if c.changes]
    notes = [*_empty(commits, places), *(note for place in places for note in _todo(place))]
    if commits and commits[-1].id == work.state.head and _as_saved(work, full):
        return {}, [place.id for _, place in full], notes, work.state.files
    items = [_item(work, commit, place) for commit, place in full]
    formed = Forms(work.git, work.state.base, work.names()).make(items)
    writes: dict[Path, bytes] = {}
    yamls: dict[Path, bytes] = {}
    same: list[str] = []
    files = {p.id: work.state.files.get(p.id, "") for p in places if p.id in work.state.files}
    errors: list[KilnError] = []
    for (commit, place), item, form in zip(full, items, formed, strict=True):
        old = place.data()
        data = _whole(project, commit, place, old, form.diff)
        files[place.id] = sha256(data)
        if old == data:
            same.append(place.id)
            continue
        if not overwrite and (error := _changed_elsewhere(work, place, old)):
            errors.append(error)
            continue
        try:
            where = target(place, work.state.version)
        except Problems as problems:
            errors += problems.errors
            continue
        except BadInput as error:
            errors.append(error)
            continue
        writes[where.file] = data
        notes += where.notes
        if where.yaml is not None:
            yamls[place.folder / "patch.yaml"] = where.yaml.encode()
        if not form.alone and not form.kept:
            notes.append(f"{place.id}: overlaps a patch before it, and needs it")
        if item.left_out and not form.kept:
            notes.append(f"{place.id}: the parts that no wheel has go along as they were")
    raise_problems(errors)
    # patch.yaml last: it never names a file that is not there.
    return writes | yamls, same, notes, files


def _as_saved(work: Work, full: Sequence[tuple[Commit, Place]]) -> bool:
    """Whether the files are those that were saved for these very commits."""
    known = work.state.files
    return all(sha256(place.data() or b"") == known.get(place.id) for _, place in full)


def _item(work: Work, commit: Commit, place: Place) -> Item:
    data = place.data()
    if data is None:
        return Item(commit, place.rules, b"", work.parts(place.id))
    old = replace(place.rules, data=data)
    try:
        left_out = left_out_parts(old)
    except KilnError:  # the file is no good; the commit makes another
        return Item(commit, place.rules)
    return Item(commit, place.rules, mail.split(data)[1], left_out)


def _whole(project: Project, commit: Commit, place: Place, old: bytes | None, diff: bytes) -> bytes:
    """The patch file: its head is the old one where that says what the commit says."""
    head = mail.split(old)[0] if old else b""
    said = mail.message_of(head) or plain_message(project, place.id)
    if old and said == commit.message:
        return head + diff
    return mail.compose(commit.message, diff, f"commit {commit.shown}")


def _changed_elsewhere(work: Work, place: Place, old: bytes | None) -> KilnError | None:
    known = work.state.files.get(place.id, "")
    if old is None or sha256(old) == known:
        return None
    assert place.file is not None
    return BadInput(
        "authoring.file-changed",
        f"the file of patch {place.id} was changed outside of the work tree",
        where=f"patches/{place.id}/{place.file.name}",
        why="it is not what the work tree was made with, or has saved last",
        fix=f"to take that file: `kiln patch edit {work.name} --again` (the commits stay in the "
        "reflog); to write over it: `kiln patch save --overwrite`",
    )


def _empty(commits: Sequence[Commit], places: Sequence[Place]) -> list[str]:
    notes: list[str] = []
    errors: list[KilnError] = []
    for commit, place in zip(commits, places, strict=True):
        if commit.changes:
            continue
        if place.data() is None:
            notes.append(f"{place.id}: its commit changes nothing yet, so it has no file yet")
            continue
        errors.append(
            BadInput(
                "authoring.empty-commit",
                f"commit {commit.shown} changes nothing, but patch {place.id} has a file",
                where=place.shown,
                fix="take the commit out (`git rebase -i`, drop) and the patch out of the pin, or "
                "let the commit do its work again",
            )
        )
    raise_problems(errors)
    return notes


def _todo(place: Place) -> list[str]:
    open_ = [
        name for name in ("title", "why", "origin") if getattr(place.patch, name).startswith(TODO)
    ]
    return [f"{place.shown}: {', '.join(open_)} still to be written"] if open_ else []


def _left(work: Work, commits: Sequence[Commit]) -> list[str]:
    """What of the work tree is in no file."""
    notes = []
    if changed := work.git.changed():
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        notes.append(f"not committed, so not saved: {', '.join(changed[:3])}{more}")
    mine = {commit.patch for commit in commits}
    if waiting := [name for name in plan.waiting(work) if name not in mine]:
        notes.append(
            f"still to be moved: {', '.join(waiting)}; go on with `kiln patch refresh --continue`"
        )
    return notes


# ---- the pin


def _order(work: Work, project: Project, commits: Sequence[Commit]) -> tuple[str, ...]:
    """The series that the pin should name; () if it does, or if this is no pin's work tree."""
    pin = project.pins.pins.get(work.state.pin)
    if pin is None:
        return ()
    mine = [commit.patch for commit in commits]
    waiting, gone = plan.waiting(work), set(plan.gone(work))
    gone |= {
        name
        for name in pin.patches
        if name not in mine
        and name not in waiting
        and find_place(project, name, work.state.version).data() is not None
    }
    wanted = merge_order(pin.patches, mine, gone)
    return () if wanted == pin.patches else wanted


def merge_order(
    listed: Sequence[str], commits: Sequence[str], gone: set[str] | Mapping[str, object]
) -> tuple[str, ...]:
    """The commits' order; a patch that has none (and is not gone) stays behind the one that
    it stood behind."""
    wanted = list(commits)
    for at, name in enumerate(listed):
        if name in commits or name in gone:
            continue
        before = next((other for other in reversed(listed[:at]) if other in wanted), None)
        wanted.insert(wanted.index(before) + 1 if before else 0, name)
    return tuple(wanted)
