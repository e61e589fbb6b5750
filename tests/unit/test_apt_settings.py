"""kiln.fetch.debian: the machine's mirrors, out of apt's settings and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.errors import BadInput, KilnError, Problems
from kiln.fetch.debian import Mirror, candidates, mirrors, parse_list, parse_sources, read_settings
from kiln.lock.model import Deb, Suite

SUITE = Suite("20260711T101637Z", "0" * 64)


def package(suite: str = "bookworm", path: str = "pool/main/t/tiny/tiny_1.0-1_amd64.deb") -> Deb:
    return Deb("tiny", "1.0-1", "amd64", path, 1, "0" * 64, "base", suite)


class Machine:
    """A machine with settings of its own; each file by its name below etc/apt."""

    def __init__(self, root: Path) -> None:
        self.apt, self.os_release = root / "apt", root / "os-release"
        (self.apt / "sources.list.d").mkdir(parents=True)

    def has(self, name: str, text: str) -> Machine:
        (self.apt / name).write_text(text)
        return self

    def runs(self, distribution: str, codename: str) -> Machine:
        self.os_release.write_text(f'ID={distribution}\nVERSION_CODENAME="{codename}"\n')
        return self

    def mirrors(self, suite: str, **environ: str) -> list[str]:
        found = mirrors(suite, environ, self.apt, self.os_release)
        return [mirror.uri for mirror in found]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_one_line_format() -> None:
    text = """
# deb http://off.example/debian bookworm main
deb http://a.example/debian bookworm main contrib  # as always
deb-src http://a.example/debian bookworm main
deb [arch=amd64,arm64 signed-by=/usr/share/keyrings/k.gpg] https://b.example/debian/ trixie main
deb [trusted=yes] http://c.example/debian bookworm main
deb http://flat.example/repo ./
"""
    found = parse_list(text, "l")
    assert [(s.uris, s.suites, s.components, s.signed_by, s.where) for s in found] == [
        (("http://a.example/debian",), ("bookworm",), ("main", "contrib"), "", "l:3"),
        (
            ("https://b.example/debian/",),
            ("trixie",),
            ("main",),
            "/usr/share/keyrings/k.gpg",
            "l:5",
        ),
        (("http://c.example/debian",), ("bookworm",), ("main",), "", "l:6"),
        (("http://flat.example/repo",), ("./",), (), "", "l:7"),
    ]


def test_deb822_format() -> None:
    text = """\
# the archive
Types: deb deb-src
URIs: http://a.example/debian
 http://b.example/debian
Suites: bookworm bookworm-updates
# a comment between fields
Components: main
Signed-By: /usr/share/keyrings/k.gpg

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm


types: deb-src
uris: http://src.example/debian
suites: bookworm

Types: deb
URIs: http://c.example/debian
Suites: sid
Components: main
Trusted: yes
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
"""
    found = parse_sources(text, "s")
    assert [(s.uris, s.suites, s.signed_by, s.where) for s in found] == [
        (
            ("http://a.example/debian", "http://b.example/debian"),
            ("bookworm", "bookworm-updates"),
            "/usr/share/keyrings/k.gpg",
            "s:2",
        ),
        (("http://c.example/debian",), ("sid",), "", "s:20"),
    ]


def test_faults_of_all_files_are_told_at_once(machine: Machine) -> None:
    machine.has("sources.list", "deb http://a.example\nrpm x y z\n")
    machine.has("sources.list.d/x.sources", "Types: deb\nSuites: x\n")
    with pytest.raises(Problems) as caught:
        read_settings(machine.apt)
    first, second = caught.value.errors
    assert isinstance(first, Problems)
    assert [e.where.rpartition("/")[2] for e in first.errors] == [
        "sources.list:1",
        "sources.list:2",
    ]
    assert second.code == "fetch.bad-apt-source"
    assert "uris" in second.what


def test_names_that_apt_does_not_read_are_not_read(machine: Machine) -> None:
    for name in ("a.list.disabled", "b.sources~", "c d.list", "e"):
        machine.has(f"sources.list.d/{name}", "no settings at all")
    assert read_settings(machine.apt) == []


def test_no_apt_means_no_mirrors(tmp_path: Path) -> None:
    assert mirrors("bookworm", {}, tmp_path / "none", tmp_path / "none") == []


def test_the_suites_own_source_comes_before_the_hosts_release(machine: Machine) -> None:
    machine.runs("debian", "trixie")
    machine.has(
        "sources.list",
        "deb http://host.example/debian trixie main\n"
        "deb http://other.example/debian nodistro main\n"
        "deb http://own.example/debian/ bookworm main\n"
        "deb http://stable.example/debian stable main\n"
        "deb http://part.example/debian bookworm contrib\n",
    )
    assert machine.mirrors("bookworm") == [
        "http://own.example/debian",
        "http://host.example/debian",
        "http://stable.example/debian",
    ]


def test_security_is_an_archive_of_its_own(machine: Machine) -> None:
    machine.runs("debian", "trixie")
    machine.has(
        "sources.list",
        "deb http://a.example/debian trixie main\n"
        "deb http://s.example/debian-security trixie-security main\n",
    )
    assert machine.mirrors("bookworm-security") == ["http://s.example/debian-security"]
    assert machine.mirrors("bookworm") == ["http://a.example/debian"]


def test_a_derivatives_archive_is_not_debians(machine: Machine) -> None:
    machine.runs("ubuntu", "noble")
    machine.has("sources.list", "deb http://u.example/ubuntu noble main universe\n")
    assert machine.mirrors("bookworm") == []


def test_only_schemes_that_kiln_can_fetch(machine: Machine) -> None:
    machine.has(
        "sources.list",
        "deb cdrom:[Debian]/ bookworm main\n"
        "deb mirror+file:/etc/mirrors bookworm main\n"
        "deb file:///srv/debian bookworm main\n",
    )
    assert machine.mirrors("bookworm") == ["file:///srv/debian"]


def test_the_environment_goes_before_the_settings(machine: Machine) -> None:
    machine.has("sources.list", "deb http://a.example/debian bookworm main\n")
    found = machine.mirrors("bookworm", KILN_DEBIAN_MIRROR="http://x.example/d/ https://y.example")
    assert found == ["http://x.example/d", "https://y.example"]
    assert machine.mirrors("bookworm-security", KILN_DEBIAN_MIRROR="http://x.example") == []


def test_keyrings(machine: Machine) -> None:
    machine.has("sources.list", "deb [signed-by=/k.gpg] http://a.example/debian bookworm main\n")
    assert mirrors("bookworm", {}, machine.apt, machine.os_release) == [
        Mirror("http://a.example/debian", "/k.gpg")
    ]
    environ = {"KILN_DEBIAN_MIRROR": "http://x.example", "KILN_DEBIAN_KEYRING": "/own.gpg"}
    assert mirrors("bookworm", environ, machine.apt, machine.os_release) == [
        Mirror("http://x.example", "/own.gpg")
    ]


@pytest.mark.parametrize("uri", ["x.example/debian", "ftp://x.example", "[trusted=yes]"])
def test_a_mirror_of_the_environment_is_checked(machine: Machine, uri: str) -> None:
    with pytest.raises(BadInput) as caught:
        machine.mirrors("bookworm", KILN_DEBIAN_MIRROR=uri)
    assert (caught.value.code, caught.value.where) == ("fetch.bad-mirror", "KILN_DEBIAN_MIRROR")


def test_candidates_are_mirrors_then_snapshots(machine: Machine) -> None:
    machine.has("sources.list", "deb http://a.example/debian bookworm main\n")
    environ = {
        "KILN_DEBIAN_SNAPSHOT": "http://snap.example/{archive}/{date}/ file:///srv/days/{date}"
    }
    path = "pool/main/g/g++ x/g++_1~rc1+b2_amd64.deb"
    assert candidates(package(path=path), SUITE, environ, machine.apt, machine.os_release) == [
        "http://a.example/debian/pool/main/g/g++%20x/g++_1~rc1+b2_amd64.deb",
        "http://snap.example/debian/20260711T101637Z/pool/main/g/g++%20x/g++_1~rc1+b2_amd64.deb",
        "file:///srv/days/20260711T101637Z/pool/main/g/g++%20x/g++_1~rc1+b2_amd64.deb",
    ]
    (security, _) = candidates(
        package("bookworm-security"), SUITE, environ, machine.apt, machine.os_release
    )
    assert security.startswith("http://snap.example/debian-security/20260711T101637Z/pool/")


@pytest.mark.parametrize(
    "template",
    ["http://snap.example/debian", "snap.example/{date}", "http://snap.example/{date}/{host}"],
)
def test_a_snapshot_template_is_checked(machine: Machine, template: str) -> None:
    environ = {"KILN_DEBIAN_SNAPSHOT": template}
    with pytest.raises(KilnError) as caught:
        candidates(package(), SUITE, environ, machine.apt, machine.os_release)
    assert caught.value.code == "fetch.bad-snapshot"


def test_a_mirror_named_twice_keeps_its_first_place() -> None:
    environ = {"KILN_DEBIAN_MIRROR": "http://a.example/d http://b.example/d http://a.example/d/"}
    found = [mirror.uri for mirror in mirrors("bookworm", environ)]
    assert found == ["http://a.example/d", "http://b.example/d"]
