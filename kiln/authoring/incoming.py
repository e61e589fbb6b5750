"""Patches from elsewhere: mails of `git format-patch`, mboxes, the .diff of a pull request.

What comes in is hostile until it was read strictly (kiln/source/diff.py). It must fit where
it says. If it does not, and the work tree knows the very files that it was made against
(by their ids in its `index` lines), git merges it, and a conflict is git's own. Else the
answer is what a build would say; with `shift`, hunks whose lines stand at one other place
only are put there, and each is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kiln.authoring import mail
from kiln.authoring.commits import read_commits
from kiln.authoring.edit import check_clean
from kiln.authoring.files import write_all
from kiln.authoring.form import Forms, left_out_parts
from kiln.authoring.git import failed
from kiln.authoring.lay import Blob, results
from kiln.authoring.mbox import Mail, joined, unreadable
from kiln.authoring.meta import find_place
from kiln.authoring.pick import LETTERS
from kiln.authoring.save import Saved, save_locked
from kiln.authoring.scaffold import About, check_id, scaffold
from kiln.authoring.work import Work, read_work
from kiln.errors import BadInput, KilnError, Problems, raise_problems
from kiln.pins.load import load_project
from kiln.pins.patch import PatchFile
from kiln.pins.project import Project
from kiln.source.apply import PatchFit, fit_patch, no_modes, parse_series_patch
from kiln.source.diff import FILE, Parsed, split_lines
from kiln.source.fit import Files
from kiln.source.hunks import Placed
from kiln.source.leave_out import check_left_out

_INDEX = re.compile(rb"index ([0-9a-f]{7,64})\.\.[0-9a-f]{7,64}(?: [0-7]{6})?\s*")


@dataclass(frozen=True)
class Imported:
    """What an import did. patch: the last one that was taken. conflict: path -> what is the
    matter, where a person has to go on. rest: how many mails are not looked at yet."""

    work: Work
    patch: str
    files: tuple[str, ...]
    notes: tuple[str, ...]
    conflict: Mapping[str, str]
    rest: int
    saved: Saved | None

    @property
    def waits(self) -> bool:
        """Whether something is left to a person."""
        return bool(self.conflict) or (self.saved is not None and self.saved.waits)

    def text(self) -> str:
        """For people."""
        lines = [f"wrote {file}" for file in self.files] + list(self.notes)
        if self.conflict:
            lines += [f"{self.patch}: CONFLICT in {self.work.folder}"]
            lines += [f"  {path}: {why}" for path, why in self.conflict.items()]
            lines += ["  solve it, `git add` the files, `git cherry-pick --continue`"]
            lines += [f"  {self.rest} more mails are still to be imported"] if self.rest else []
        if self.saved is not None:
            lines.append(self.saved.text())
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """For --json."""
        return {
            "folder": str(self.work.folder),
            "patch": self.patch,
            "files": list(self.files),
            "notes": list(self.notes),
            "conflict": dict(self.conflict),
            "rest": self.rest,
            "saved": self.saved.as_dict() if self.saved is not None else None,
        }


def take_all(
    work: Work,
    ids: Sequence[str],
    mails: Sequence[Mail],
    about: About,
    *,
    shift: bool = False,
    write_pin: bool = False,
) -> list[Imported]:
    """A patch for each mail, or one of all of them; up to the first conflict.

    about: what a person says of them; what is left open is as the mail says.

    Raises BadInput("authoring.several-mails") where there are neither one id nor one a mail;
    what `take` raises.
    """
    if len(ids) == 1:
        mails = [joined(mails)]
    if len(ids) != len(mails):
        raise BadInput(
            "authoring.several-mails",
            f"there are {len(mails)} patches in it, and {len(ids)} names",
            fix="give --id once, to make one patch of all, or once for each",
        )
    done: list[Imported] = []
    for number, (patch, came) in enumerate(zip(ids, mails, strict=True), 1):
        own = replace(about, title=about.title or came.title, origin=about.origin or came.origin)
        rest = len(mails) - number
        done.append(take(work, patch, came, own, shift=shift, write_pin=write_pin, rest=rest))
        if done[-1].conflict:
            break
    return done


def take(
    work: Work,
    patch: str,
    came: Mail,
    about: About,
    *,
    shift: bool = False,
    write_pin: bool = False,
    rest: int = 0,
) -> Imported:
    """Make a patch of what came, as the last commit of the work tree.

    Raises BadInput "authoring.bad-id", "authoring.outside", "authoring.patch-exists",
    "authoring.no-origin", "authoring.uncommitted", "authoring.unfinished"; the codes of
    `kiln.source.diff.parse` and of `kiln.source.apply` for what does not fit.
    """
    check_id(patch)
    with work.locked():
        work = read_work(work.folder)
        check_clean(work)
        project = load_project(work.project)
        parsed, rules = _read(project, work, patch, came, about)
        files, head = _now(work, patch)
        fit = fit_patch(rules, files, parsed)
        notes = [f"{patch}: left out: {part.path}" for part in parsed.left_out]
        message = mail.with_id(_message(patch, came, about), patch)
        changes = results(fit)
        theirs = ""
        if fit.errors:
            theirs = _three_way(work, head, rules, parsed, fit, files, message)
            if not theirs:
                if not shift:
                    raise_problems(fit.errors)
                changes, moved = _shifted(fit, files)
                notes += [f"{patch}: {line}" for line in moved]
        conflict: Mapping[str, str] = {}
        if theirs:
            notes.append(f"{patch}: merged with the files that it was made against: read it")
            conflict = _pick(work, theirs)
        else:
            _commit(work, head, changes, message)
        if parsed.left_out:
            work.keep_parts(patch, left_out_parts(rules))
        made = _scaffold(project, work, patch, about)
        if conflict:
            return Imported(work, patch, made, tuple(notes), conflict, rest, None)
        saved = save_locked(work, write_pin=write_pin)
    return Imported(work, patch, made, tuple(notes), {}, rest, saved)


def _read(
    project: Project, work: Work, patch: str, came: Mail, about: About
) -> tuple[Parsed, PatchFile]:
    known = patch in project.names("patch")
    leave_out = tuple(about.leave_out)
    if known:
        place = find_place(project, patch, work.state.version)
        leave_out = leave_out or place.patch.leave_out
        if place.data() is not None or leave_out != place.patch.leave_out:
            what = "has a file for this version" if place.data() else "has another leave_out"
            raise BadInput(
                "authoring.patch-exists",
                f"patch {patch} {what}",
                where=place.shown,
                fix="choose another --id; or change its commit in the work tree",
            )
    elif not about.origin:
        raise BadInput(
            "authoring.no-origin",
            "nothing in it tells where it is from",
            where=patch,
            fix="say it: --origin 'vllm-project/vllm pull request 12345, by ...'",
        )
    rules = PatchFile(patch, came.data, leave_out=leave_out)
    try:
        parsed = parse_series_patch(rules)
    except KilnError as error:
        raise _outside(error) or error from None
    problems = check_left_out(parsed.left_out, leave_out, work.names(), patch)
    raise_problems(list(problems))
    if not parsed.files:
        raise unreadable("not-a-patch", patch, "nothing is left of it: all of it is left out")
    return parsed, rules


def _outside(error: KilnError) -> BadInput | None:
    """One answer for all the parts that touch files of no wheel."""
    errors = error.errors if isinstance(error, Problems) else (error,)
    outside = [each for each in errors if each.code == "patch.outside"]
    if not outside or len(outside) < len(errors):
        return None
    paths = [each.what.split("'")[1] for each in outside if "'" in each.what]
    tops = dict.fromkeys(f"{p.split('/')[0]}/**" if "/" in p else p for p in paths)
    return BadInput(
        "authoring.outside",
        f"{len(outside)} parts of it touch files that no wheel has",
        why="\n".join(f"{each.where}: {each.what}" for each in outside),
        fix="leave them out: " + " ".join(f"--leave-out '{top}'" for top in tops),
    )


def _now(work: Work, patch: str) -> tuple[Files, str]:
    """The files as the series leaves them, and its last commit."""
    head = work.git.commit("HEAD")
    commits = read_commits(work.git, work.state.base, head)
    if any(patch in commit.ids for commit in commits):
        raise BadInput(
            "authoring.patch-exists",
            f"patch {patch} has a commit already",
            where=str(work.folder),
            fix="choose another --id; or change that commit",
        )
    forms = Forms(work.git, work.state.base, work.names())
    files = Files(forms.read, forms.names, no_modes)
    for commit in commits:
        if commit.changes:
            fit = fit_patch(PatchFile(commit.id, forms.in_series(commit)), files)
            raise_problems(fit.errors)
            files = fit.after
    return files, head


def _message(patch: str, came: Mail, about: About) -> bytes:
    subject, _, body = came.message.partition(b"\n\n")
    title = about.title or subject.decode(errors="replace") or "TODO"
    return f"{patch}: {title}".encode() + (b"\n\n" + body if body.strip() else b"")


def _scaffold(project: Project, work: Work, patch: str, about: About) -> tuple[str, ...]:
    if patch in project.names("patch"):
        return ()
    files = scaffold(project, patch, work.state.version, about)
    write_all(files)
    return tuple(path.relative_to(project.root).as_posix() for path in files)


def _commit(work: Work, head: str, files: Mapping[str, Blob | None], message: bytes) -> None:
    commit = work.git.commit_tree(_tree(work, head, files), [head], message)
    work.git.run("reset", "--quiet", "--hard", commit)


def _tree(work: Work, base: str, files: Mapping[str, Blob | None]) -> str:
    git = work.git
    rows = {
        path: (FILE, "") if blob is None else (blob.mode, git.write_blob(blob.data))
        for path, blob in files.items()
    }
    return git.tree_with(base, rows)


def _three_way(
    work: Work,
    head: str,
    rules: PatchFile,
    parsed: Parsed,
    fit: PatchFit,
    files: Files,
    message: bytes,
) -> str:
    """A commit whose parent holds the files that the patch was made against, to be picked;
    "" if they are not known, or it does not fit them either."""
    lines = split_lines(rules.data)
    misfits = {file.diff.source for file in fit.files if file.misfits}
    bases: dict[str, bytes] = {}
    for diff in parsed.files:
        if diff.source not in misfits or diff.source in bases:
            continue
        found = [m for line in lines[diff.line : diff.line + 6] if (m := _INDEX.fullmatch(line))]
        name = f"{found[0][1].decode()}^{{blob}}" if found else ""
        data = work.git.blobs([name]).get(name) if name else None
        if data is None:
            return ""
        bases[diff.source] = data

    def read(path: str) -> bytes | None:
        if path in bases:
            return bases[path]
        file = files.get(path)
        return None if file is None else file.text.data

    known = fit_patch(rules, Files(read, files.names | bases.keys(), no_modes), parsed)
    if known.errors:
        return ""
    below = _tree(work, head, {path: Blob(data) for path, data in bases.items()})
    parent = work.git.commit_tree(below, [head], b"what the patch was made against\n")
    return work.git.commit_tree(_tree(work, parent, results(known)), [parent], message)


def _pick(work: Work, commit: str) -> Mapping[str, str]:
    """Pick it; returns the conflicts, path -> what is the matter."""
    git = work.git
    done = git.attempt("cherry-pick", commit)
    if done.returncode == 0:
        return {}
    if conflict := git.unmerged():
        return {path: LETTERS.get(kind, kind) for path, kind in conflict.items()}
    if work.unfinished() == "cherry-pick" and not git.changed():
        git.run("cherry-pick", "--skip")
        raise BadInput(
            "authoring.nothing-new",
            "nothing is left of it: these sources have all that it changes",
            where=str(work.folder),
            fix="it needs no patch here",
        )
    raise failed(work.folder, ("cherry-pick",), done)


def _shifted(fit: PatchFit, files: Files) -> tuple[dict[str, Blob | None], list[str]]:
    """The files with each hunk where its lines stand, and which were not where it says.

    Raises what keeps a hunk from it: only one other place, and none before an earlier hunk.
    """
    errors: list[KilnError] = []
    changes = results(fit)
    moved: list[str] = []
    for file in fit.files:
        if not file.misfits:
            continue
        stuck = [m for m in file.misfits if m.code != "patch.offset" or len(m.places) != 1]
        before = files.get(file.diff.source)
        plain = not (file.diff.old or file.diff.deleted or file.diff.mail)
        if stuck or before is None or not plain:
            errors += [misfit.error for misfit in stuck or file.misfits]
            continue
        shifted = [Placed(m.hunk, m.places[0], True, True) for m in file.misfits if m.hunk]
        placed = sorted([*file.hunks, *shifted], key=lambda place: place.at)
        in_order = [place.hunk for place in placed] == list(file.diff.hunks)
        ends = [place.at + len(place.hunk.before) for place in placed]
        if not in_order or any(end > b.at for end, b in zip(ends, placed[1:], strict=False)):
            errors += [misfit.error for misfit in file.misfits]
            continue
        moved += [
            f"{file.diff.path}: the hunk for line {p.hunk.start + 1} stands at line {p.at + 1}"
            for p in shifted
        ]
        changes[file.diff.path] = Blob(before.text.apply(placed).data, before.mode or FILE)
    raise_problems(errors)
    return changes, moved
