"""kiln.resolve.debian with the machine's own apt: a local archive, and the real one.

The local archive is made and signed here, so that what happens with a signature that
does not hold is seen, not believed.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln.errors import KilnError, Problems, Unavailable
from kiln.fetch.debian import candidates
from kiln.lock.model import Deb, Suite
from kiln.progress import Silent
from kiln.resolve.debian import Apt, solve

pytestmark = pytest.mark.apt

PACKAGES = {
    # name: (version, more fields)
    "one": ("1.0-1", "Depends: two (>= 1)\nRecommends: three\n"),
    "two": ("2:1.5+b1-1", ""),
    "three": ("3.0", "Depends: two, four | five\n"),
    "four": ("4.0", ""),
    "five": ("5.0", "Conflicts: four\n"),
    "essential": ("6.0", "Essential: yes\nPriority: required\n"),
    "broken": ("7.0", "Depends: not-there\n"),
}


def file_name(name: str, version: str) -> str:
    return f"pool/main/{name[0]}/{name}/{name}_{version.rpartition(':')[2]}_amd64.deb"


class Archive:
    """A Debian archive of one suite in a folder, with a key of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self.home = root / "debian", root / "gpg"
        self.dist = self.root / "dists/bookworm"
        self.binary = self.dist / "main/binary-amd64"
        self.binary.mkdir(parents=True)
        self.home.mkdir(mode=0o700)
        self.keyring = root / "keyring.gpg"
        key = ("--quick-gen-key", "Test <t@mirror.example>", "ed25519", "sign", "never")
        self.gpg("--passphrase", "", *key)
        self.gpg("--output", str(self.keyring), "--export")
        self.packages("".join(self.stanza(name) for name in PACKAGES))
        self.sign()

    def gpg(self, *arguments: str) -> None:
        command = ["gpg", "--homedir", str(self.home), "--batch", "--yes", "--quiet"]
        subprocess.run([*command, *arguments], check=True, capture_output=True)

    def stanza(self, name: str) -> str:
        version, more = PACKAGES[name]
        content = f"package {name}".encode()
        return (
            f"Package: {name}\nVersion: {version}\nArchitecture: amd64\n"
            f"Maintainer: t\nFilename: {file_name(name, version)}\nSize: {len(content)}\n"
            f"SHA256: {hashlib.sha256(content).hexdigest()}\n{more}Description: d\n\n"
        )

    def packages(self, text: str) -> None:
        (self.binary / "Packages").write_text(text)
        (self.binary / "Packages.gz").write_bytes(gzip.compress(text.encode(), mtime=0))

    def release(self) -> Path:
        """Write a Release file that fits the indexes."""
        lines = ["Origin: Test", "Suite: stable", "Codename: bookworm", "Components: main"]
        lines += ["Architectures: amd64", "Date: Sat, 11 Jul 2026 10:16:37 UTC", "SHA256:"]
        for path in sorted(self.binary.iterdir()):
            data = path.read_bytes()
            name = path.relative_to(self.dist)
            lines.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}")
        plain = self.dist / "plain"
        plain.write_text("\n".join(lines) + "\n")
        return plain

    def sign(self) -> None:
        self.gpg("--output", str(self.dist / "InRelease"), "--clearsign", str(self.release()))


@pytest.fixture(scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archive]:
    if shutil.which("gpg") is None:
        pytest.fail("gpg signs the archive of this test: install the package gnupg")
    # A short path: gpg-agent's socket lies in the key's folder.
    root = tmp_path_factory.mktemp("a")
    archive = Archive(root)
    yield archive
    subprocess.run(["gpgconf", "--homedir", str(archive.home), "--kill", "all"], check=False)


@pytest.fixture
def archive(_whole: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """A copy of the archive, as the one mirror that Kiln knows."""
    copy = object.__new__(Archive)
    copy.home = _whole.home
    copy.root, copy.keyring = tmp_path / "mirror/debian", tmp_path / "mirror/keyring.gpg"
    shutil.copytree(_whole.root, copy.root)
    shutil.copy(_whole.keyring, copy.keyring)
    copy.dist = copy.root / "dists/bookworm"
    copy.binary = copy.dist / "main/binary-amd64"
    monkeypatch.setenv("KILN_DEBIAN_MIRROR", f"file://{copy.root}")
    monkeypatch.setenv("KILN_DEBIAN_KEYRING", str(copy.keyring))
    return copy


def solve_local(**groups: list[str]) -> tuple[list[Deb], dict[str, Suite]]:
    return solve(groups, "bookworm", False, "amd64", Silent())


def refusal(**groups: list[str]) -> KilnError:
    with pytest.raises(KilnError) as caught:
        solve_local(**groups)
    return caught.value


def test_groups_hold_what_is_new(archive: Archive) -> None:
    debs, suites = solve_local(first=["two"], second=["one", "two"], third=["three"])
    assert [(d.group, d.name, d.version) for d in debs] == [
        ("first", "two", "2:1.5+b1-1"),
        ("second", "one", "1.0-1"),
        ("third", "four", "4.0"),
        ("third", "three", "3.0"),
    ]
    two = debs[0]
    assert (two.path, two.size, two.suite) == (
        "pool/main/t/two/two_1.5+b1-1_amd64.deb",
        len("package two"),
        "bookworm",
    )
    assert two.sha256 == hashlib.sha256(b"package two").hexdigest()
    release = (archive.dist / "InRelease").read_bytes()
    assert suites == {"bookworm": Suite("20260711T101637Z", hashlib.sha256(release).hexdigest())}
    assert candidates(two, suites["bookworm"]) == [f"file://{archive.root}/{two.path}"]


@pytest.mark.usefixtures("archive")
def test_the_answer_does_not_depend_on_the_order_of_names() -> None:
    assert solve_local(g=["one", "three"]) == solve_local(g=["three", "one", "three"])


@pytest.mark.usefixtures("archive")
def test_what_was_chosen_stays_chosen() -> None:
    debs, _ = solve_local(first=["four"], second=["three"])
    assert {d.name: d.group for d in debs} == {"four": "first", "two": "second", "three": "second"}
    error = refusal(first=["four"], second=["five"])
    assert (error.code, error.where) == ("resolve.unsolvable", "group second")
    assert "four" in error.why


@pytest.mark.usefixtures("archive")
def test_unknown_names_are_told_at_once_with_close_ones() -> None:
    error = refusal(first=["thre", "one"], second=["five;rm", "zzz"])
    assert isinstance(error, Problems)
    assert [e.code for e in error.errors] == ["resolve.no-package"] * 3
    assert "three" in next(e for e in error.errors if "'thre'" in e.what).why


@pytest.mark.usefixtures("archive")
def test_an_unmet_dependency_in_apts_own_words() -> None:
    error = refusal(g=["broken"])
    assert error.code == "resolve.unsolvable"
    assert "not-there" in error.why


def test_one_object_solves_several_closures(archive: Archive) -> None:
    with Apt("bookworm", False, "amd64", Silent()) as apt:
        assert [d.name for d in apt.solve({"a": ["two"]})] == ["two"]
        shutil.rmtree(archive.root)
        assert [d.name for d in apt.solve({"b": ["one"]})] == ["one", "two"]


def test_an_unsigned_archive_is_refused(archive: Archive) -> None:
    (archive.dist / "InRelease").unlink()
    shutil.copy(archive.release(), archive.dist / "Release")
    assert refusal(g=["two"]).code == "resolve.bad-signature"


def test_a_changed_release_file_is_refused(archive: Archive) -> None:
    path = archive.dist / "InRelease"
    path.write_text(path.read_text().replace("Origin: Test", "Origin: Evil"))
    assert refusal(g=["two"]).code == "resolve.bad-signature"


def test_a_changed_index_is_refused(archive: Archive) -> None:
    archive.packages("".join(archive.stanza(name) for name in ("two", "four")))
    error = refusal(g=["two"])
    assert isinstance(error, Unavailable)


def test_a_release_file_signed_by_another_key_is_refused(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.gpg"
    other.write_bytes(b"")
    monkeypatch.setenv("KILN_DEBIAN_KEYRING", str(other))
    assert refusal(g=["two"]).code == "resolve.bad-signature"


@pytest.mark.usefixtures("archive")
def test_no_keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_DEBIAN_KEYRING", str(tmp_path / "none.gpg"))
    assert refusal(g=["two"]).code == "resolve.no-keyring"


def test_the_machine_cannot_switch_the_check_off(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apt.conf").write_text(
        'Acquire::AllowInsecureRepositories "true";\nAPT::Get::AllowUnauthenticated "true";\n'
        'Acquire::AllowWeakRepositories "true";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    (archive.dist / "InRelease").unlink()
    shutil.copy(archive.release(), archive.dist / "Release")
    assert refusal(g=["two"]).code == "resolve.bad-signature"


def test_the_next_mirror_is_tried(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = f"file://{archive.root.parent}/gone"
    monkeypatch.setenv("KILN_DEBIAN_MIRROR", f"{gone} file://{archive.root}")
    debs, _ = solve_local(g=["two"])
    assert [d.name for d in debs] == ["two"]
    monkeypatch.setenv("KILN_DEBIAN_MIRROR", gone)
    error = refusal(g=["two"])
    assert (error.code, error.exit_code) == ("resolve.mirror", 3)


def test_no_apt(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(archive.root))
    assert (error := refusal(g=["two"])).code == "resolve.no-apt"
    assert error.exit_code == 4


@pytest.mark.root
def test_an_ordinary_user_gets_the_same_answer(archive: Archive) -> None:
    expected, _ = solve_local(g=["one"])
    # Readable for the other user, who also needs a temporary folder.
    for folder in [archive.root, *archive.root.parents]:
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            debs, _ = solve_local(g=["one"])
            os.write(write, repr(debs).encode())
        except BaseException as error:
            os.write(write, repr(error).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert said == repr(expected)


# ---- the real archive ----------------------------------------------------------------------


@pytest.mark.net
def test_a_real_group() -> None:
    groups = {"base": ["base-files", "dash"], "more": ["ca-certificates"]}
    debs, suites = solve(groups, "bookworm", True, "amd64", Silent())
    found = {deb.name: deb for deb in debs}
    assert found["libc6"].group == "base"
    assert found["openssl"].group == "more"
    assert set(suites) == {"bookworm", "bookworm-security"}
    assert {deb.suite for deb in debs} <= set(suites)
    # Essential packages come only as dependencies, and recommended ones not at all.
    assert not {"perl-base", "util-linux", "init-system-helpers"} & set(found)
    assert (debs, suites) == solve(groups, "bookworm", True, "amd64", Silent())
