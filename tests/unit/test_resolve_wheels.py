"""Resolving wheels by uv, on small indexes of the test's own: offline, no foreign code."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from packaging.tags import Tag

from kiln.canonical import digest
from kiln.errors import BadInput, KilnError, Unavailable
from kiln.fetch.http import Access, Http, Patience
from kiln.fetch.index import Index
from kiln.fetch.settings import Place, Settings
from kiln.lock.model import Wheel
from kiln.resolve import uv
from kiln.resolve.target import Target
from kiln.resolve.wheels import Wanted, _rank, resolve, resolve_sdist
from tests.helpers.server import Answer, Notes, Server

HTML = {"Content-Type": "text/html"}
JSON = {"Content-Type": "application/vnd.pypi.simple.v1+json"}


def wheel(name: str, version: str, requires: Sequence[str] = (), note: str = "") -> bytes:
    """A wheel's bytes; `note` makes them others."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {r}\n" for r in requires)
    files = {
        f"{name}.py": note,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = ""
    for path, text in files.items():
        value = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows += f"{path},sha256={value.decode()},{len(text)}\n"
    files[f"{info}/RECORD"] = f"{rows}{info}/RECORD,,\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return out.getvalue()


class Rig:
    """A server with simple indexes below /main and others, and a folder for find-links."""

    def __init__(self, server: Server, links: Path) -> None:
        self.server, self.links, self.notes = server, links, Notes()
        links.mkdir()
        self._pages: dict[tuple[str, str], list[dict[str, object]]] = {}
        self.extra: list[str] = []
        self.default: str | None = "main"

    def put(
        self, name: str, version: str, requires: Sequence[str] = (), *, index: str = "main",
        tag: str = "py3-none-any", note: str = "", sized: bool = True, hashed: bool = True,
        file: str = "", **more: object,
    ) -> str:  # fmt: skip
        """Publish a file; returns its sha256."""
        body = wheel(name, version, requires, note)
        file = file or f"{name}-{version}-{tag}.whl"
        self.server.on(f"/files/{index}/{file.replace('+', '%2B')}", Answer(body))
        entry: dict[str, object] = {
            "filename": file,
            "url": f"/files/{index}/{file.replace('+', '%2B')}",
            "hashes": {"sha256": digest(body).sha256} if hashed else {},
            **more,
        }
        if sized:
            entry["size"] = len(body)
        files = self._pages.setdefault((index, name), [])
        files.append(entry)
        document = {"meta": {"api-version": "1.1"}, "name": name, "files": files}
        self.server.on(f"/{index}/{name}/", Answer(json.dumps(document).encode(), headers=JSON))
        return digest(body).sha256

    def near(self, name: str, version: str, note: str = "near") -> str:
        """Put a wheel into the find-links folder; returns its sha256."""
        body = wheel(name, version, (), note)
        (self.links / f"{name}-{version}-py3-none-any.whl").write_bytes(body)
        return digest(body).sha256

    @property
    def index(self) -> Index:
        default = Place(self.server.url(f"/{self.default}"), "test") if self.default else None
        settings = Settings(
            default,
            tuple(Place(self.server.url(f"/{name}"), "test") for name in self.extra),
            (Place(self.links.as_uri(), "test"),),
            Access(connect=1, read=2),
        )
        http = Http(settings.access, Patience(attempts=2, delay=0.01))
        return Index(http, settings, {"special": self.server.url("/special")})

    def resolve(self, *requirements: str, **more: object) -> dict[str, Wheel]:
        wanted = Wanted(requirements, Target("3.11"), **more)  # type: ignore[arg-type]
        return {w.name: w for w in resolve(wanted, self.index, self.notes)}

    def fails(self, *requirements: str, **more: object) -> KilnError:
        with pytest.raises(KilnError) as caught:
            self.resolve(*requirements, **more)
        return caught.value


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with Server() as server:
        yield Rig(server, tmp_path / "links")


def test_a_closure(rig: Rig) -> None:
    top = rig.put("top", "1.0", ["below>=1", "left-out", 'never; sys_platform == "win32"'])
    rig.put("below", "1.0")
    below = rig.put("below", "2.0")
    found = rig.resolve("top==1.0", exclude=["Left_Out"])
    size = len(wheel("below", "2.0"))
    assert found["below"] == Wheel("below", "2.0", "below-2.0-py3-none-any.whl", size, below)
    assert found["top"].sha256 == top
    assert set(found) == {"top", "below"}
    # The index told sizes and hashes, so Kiln itself asked for nothing.
    assert not any(s.headers["User-Agent"].startswith("kiln") for s in rig.server.seen)


def test_constraints_bind(rig: Rig) -> None:
    for version in ("1.0", "2.0"):
        rig.put("a", version)
    assert rig.resolve("a", constraints=["a<2"])["a"].version == "1.0"


def test_nothing_of_the_machine_chooses(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for version in ("1.0", "2.0"):
        rig.put("a", version)
    (tmp_path / "c.txt").write_text("a<2\n")
    for name in ("UV_CONSTRAINT", "PIP_CONSTRAINT"):
        monkeypatch.setenv(name, str(tmp_path / "c.txt"))
    monkeypatch.setenv("UV_RESOLUTION", "lowest")
    monkeypatch.setenv("UV_EXCLUDE_NEWER", "2001-01-01")
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "uv.toml"))
    (tmp_path / "uv.toml").write_text('resolution = "lowest"\n')
    assert rig.resolve("a")["a"].version == "2.0"


def test_the_best_file_for_the_target(rig: Rig) -> None:
    for tag in (
        "py3-none-any", "cp311-cp311-manylinux_2_28_x86_64", "cp311-cp311-manylinux2014_x86_64",
        "cp312-cp312-manylinux_2_28_x86_64", "cp311-cp311-manylinux_2_39_x86_64",
        "cp311-cp311-macosx_11_0_arm64", "cp39-abi3-manylinux_2_35_x86_64",
    ):  # fmt: skip
        rig.put("a", "1.0", tag=tag, note=tag)
    assert rig.resolve("a")["a"].file == "a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"


def test_a_kept_wheel_stays_until_upgraded(rig: Rig) -> None:
    rig.put("a", "1.0")
    rig.put("b", "1.0")
    old = tuple(rig.resolve("a", "b").values())
    rig.put("a", "2.0")
    rig.put("b", "2.0")
    assert tuple(rig.resolve("a", "b", keep=old).values()) == old
    moved = rig.resolve("a", "b", keep=old, upgrade=["a"])
    assert (moved["a"].version, moved["b"].version) == ("2.0", "1.0")
    moved = rig.resolve("a", "b", keep=old, upgrade=True)
    assert (moved["a"].version, moved["b"].version) == ("2.0", "2.0")


def test_a_kept_file_stays_when_a_better_one_appears(rig: Rig) -> None:
    rig.put("a", "1.0")
    old = tuple(rig.resolve("a").values())
    rig.put("a", "1.0", tag="cp311-cp311-manylinux_2_28_x86_64", note="new")
    assert rig.resolve("a")["a"] != old[0]
    assert rig.resolve("a", keep=old)["a"] == old[0]


def test_a_kept_file_that_changed_is_chosen_anew_with_a_note(rig: Rig) -> None:
    sha = rig.put("a", "1.0")
    other = Wheel("a", "1.0", "a-1.0-py3-none-any.whl", 9, "0" * 64)
    assert rig.resolve("a", keep=[other])["a"].sha256 == sha
    assert any("not offered any more" in line for line in rig.notes.lines)


def test_a_package_bound_to_an_index_comes_from_there(rig: Rig) -> None:
    rig.put("a", "9.0")
    sha = rig.put("a", "1.0+cpu", index="special")
    found = rig.resolve("a", indexes={"A": "special"})["a"]
    assert (found.version, found.sha256, found.index) == ("1.0+cpu", sha, "special")
    assert found.file == "a-1.0+cpu-py3-none-any.whl"


def test_find_links_go_before_an_index_with_a_note(rig: Rig) -> None:
    sha = rig.near("a", "1.0+cpu")
    found = rig.resolve("a==1.0+cpu", indexes={"a": "special"})["a"]
    assert (found.sha256, found.index) == (sha, "special")
    assert found.size == (rig.links / found.file).stat().st_size
    assert any("find-links" in line and "special" in line for line in rig.notes.lines)
    assert not any(path.startswith("/special") for path in rig.server.paths())


def test_a_bound_package_has_to_be_asked_for(rig: Rig) -> None:
    rig.put("a", "1.0")
    assert rig.fails("a", indexes={"b": "special"}).code == "resolve.unused-index"
    assert rig.fails("a", indexes={"a": "unknown"}).code == "fetch.unknown-index"


def test_an_extra_index_adds_and_does_not_hide(rig: Rig) -> None:
    """A partial mirror changes neither the version nor the file that is chosen."""
    rig.put("a", "1.0")
    rig.put("a", "2.0", tag="cp311-cp311-manylinux_2_28_x86_64", note="best")
    rig.put("a", "2.0")
    rig.put("only", "1.0", index="mirror")
    alone = rig.resolve("a")["a"]
    rig.put("a", "1.0", index="mirror")
    rig.put("a", "2.0", index="mirror", sized=False)
    rig.extra = ["mirror"]
    found = rig.resolve("a", "only")
    assert found["a"] == alone
    assert found["only"].index == "default"


def test_one_file_name_with_two_contents_is_refused(rig: Rig) -> None:
    rig.put("a", "1.0")
    rig.near("a", "1.0", note="another")
    assert rig.fails("a").code == "resolve.two-files"


def test_sizes_and_hashes_that_the_index_does_not_tell(rig: Rig) -> None:
    sha = rig.put("a", "1.0", sized=False)
    assert rig.resolve("a")["a"].size == len(wheel("a", "1.0"))
    assert rig.server.seen[-1].method == "HEAD"
    sha = rig.put("b", "1.0", sized=False, hashed=False)
    assert rig.resolve("b")["b"].sha256 == sha


def test_no_index_and_find_links_alone(rig: Rig) -> None:
    rig.default = None
    sha = rig.near("a", "1.0")
    assert rig.resolve("a")["a"].sha256 == sha
    assert rig.server.seen == []


def test_no_solution_carries_uvs_words(rig: Rig) -> None:
    rig.put("a", "1.0", ["c>=2"])
    rig.put("c", "1.0")
    error = rig.fails("a")
    assert (error.code, error.exit_code) == ("resolve.no-solution", 2)
    assert "c>=2" in error.why
    assert rig.fails("nobody").code == "resolve.no-solution"


def test_an_sdist_alone_names_the_package_and_who_asked(rig: Rig) -> None:
    rig.put("a", "1.0", ["raw"])
    rig.put("raw", "1.0", file="raw-1.0.tar.gz")
    error = rig.fails("a")
    assert error.code == "resolve.no-wheel"
    assert "raw" in error.why
    assert "versions of a depend on raw" in error.why
    rig.put("b", "1.0", tag="cp312-cp312-manylinux_2_28_x86_64")
    assert rig.fails("b").code == "resolve.no-wheel"


def test_an_index_that_is_down(rig: Rig) -> None:
    rig.server.on("/main/a/", Answer(status=503))
    error = rig.fails("a")
    assert (error.code, error.exit_code) == ("resolve.unreachable", 3)


@pytest.mark.parametrize("status", [401, 403])
def test_an_index_that_refuses(rig: Rig, status: int) -> None:
    rig.server.on("/main/a/", Answer(status=status))
    assert rig.fails("a").code == "resolve.refused"


def test_bad_requirements_all_at_once(rig: Rig) -> None:
    error = rig.fails("a b", "x @ https://h.invalid/x.whl", "--index-url=https://h.invalid")
    errors = error.as_dict()["errors"]
    assert isinstance(errors, list)
    assert [e["code"] for e in errors] == ["resolve.bad-requirement"] * 3
    assert rig.fails("a", constraints=["-r /etc/passwd"]).code == "resolve.bad-requirement"


def test_credentials_go_to_uv_and_are_not_shown(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(credentials={f"http://{rig.server.host}": ("me", "s3cret")})
    settings = Settings(Place(rig.server.url("/main"), "test"), access=access)
    rig.put("a", "1.0")
    seen: list[Sequence[str]] = []
    real = uv._run

    def watched(command: Sequence[str], environment: dict[str, str], directory: Path) -> None:
        seen.append(command)
        real(command, environment, directory)

    monkeypatch.setattr(uv, "_run", watched)
    (found,) = resolve(Wanted(["a"], Target("3.11")), Index(Http(access), settings), rig.notes)
    assert found.name == "a"
    assert any("Authorization" in s.headers for s in rig.server.seen)
    assert not any("s3cret" in word for command in seen for word in command)
    rig.server.on("/main/b/", Answer(status=403))
    with pytest.raises(KilnError) as caught:
        resolve(Wanted(["b"], Target("3.11")), Index(Http(access), settings), rig.notes)
    assert "s3cret" not in str(caught.value)


def test_sdists_by_name_and_version(rig: Rig) -> None:
    rig.put("raw", "1.0", file="raw-1.0.zip", note="zip")
    sha = rig.put("raw", "1.0", file="raw-1.0.tar.gz")
    rig.put("raw", "1.0")
    rig.put("raw", "1.0.1", file="raw-1.0.1.tar.gz")
    found = resolve_sdist("Raw", "1.0", rig.index, rig.notes)
    assert found == Wheel("raw", "1.0", "raw-1.0.tar.gz", len(wheel("raw", "1.0")), sha)
    assert all(not path.startswith("/files") for path in rig.server.paths())


def test_a_yanked_sdist_is_the_last_choice(rig: Rig) -> None:
    rig.put("raw", "1.0", file="raw-1.0.tar.gz", yanked=True)
    rig.put("raw", "1.0", file="raw-1.0.zip", note="zip")
    assert resolve_sdist("raw", "1.0", rig.index, rig.notes).file == "raw-1.0.zip"


def test_an_sdist_without_a_hash_is_hashed_with_a_note(rig: Rig) -> None:
    sha = rig.put("raw", "1.0", file="raw-1.0.tar.gz", hashed=False, sized=False)
    assert resolve_sdist("raw", "1.0", rig.index, rig.notes).sha256 == sha
    assert any("gives no sha256" in line for line in rig.notes.lines)


def test_no_sdist(rig: Rig) -> None:
    rig.put("raw", "1.0")
    with pytest.raises(Unavailable) as caught:
        resolve_sdist("raw", "2.0", rig.index, rig.notes)
    assert caught.value.code == "resolve.no-sdist"
    assert rig.server.url("/main") in caught.value.why


def test_target_tags() -> None:
    target = Target("3.11")
    ranks = [
        target.ranks[Tag(*text.split("-"))]
        for text in (
            "cp311-cp311-manylinux_2_36_x86_64", "cp311-cp311-manylinux_2_17_x86_64",
            "cp311-cp311-manylinux2014_x86_64", "cp311-cp311-manylinux1_x86_64",
            "cp311-cp311-linux_x86_64", "cp311-abi3-manylinux_2_36_x86_64",
            "cp311-none-manylinux_2_36_x86_64", "cp38-abi3-manylinux_2_28_x86_64",
            "py3-none-manylinux_2_28_x86_64", "py3-none-any",
        )
    ]  # fmt: skip
    assert ranks == sorted(ranks)
    assert Tag("cp311", "cp311", "manylinux_2_37_x86_64") not in target.ranks
    assert Tag("cp312", "abi3", "manylinux_2_28_x86_64") not in target.ranks
    assert Tag("cp311", "cp311", "manylinux_2_17_aarch64") in Target("3.11", 36, "arm64").ranks


@pytest.mark.parametrize("python", ["3", "2.7", "3.x", "", "3.11.2"])
def test_targets_that_are_none(python: str) -> None:
    with pytest.raises(BadInput) as caught:
        Target(python)
    assert caught.value.code == "resolve.bad-target"


def test_the_higher_build_tag_wins() -> None:
    target = Target("3.11")
    files = ["a-1.0-py3-none-any.whl", "a-1.0-2-py3-none-any.whl", "a-1.0-10-py3-none-any.whl"]
    ranks = {file: _rank(file, target) for file in files}
    assert min(files, key=lambda f: ranks[f] or ()) == files[2]
    assert _rank("a-1.0-cp312-cp312-win_amd64.whl", target) is None
    assert _rank("a-1.0.tar.gz", target) is None
