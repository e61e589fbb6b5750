"""kiln.layer.system, dpkg and tools: what maintainer scripts would have left."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.canonical import JSON, Digest
from kiln.compile.sandbox import Command
from kiln.errors import KilnError, Problems
from kiln.graph.action import Context
from kiln.graph.steps import DEB, SYSTEM
from kiln.layer import tools
from kiln.layer.system import Account, parameters, system
from kiln.lock.model import Deb as LockedDeb
from kiln.pins.model import Runtime
from kiln.progress import Silent
from kiln.resolve.scripts import check_scripts, needed_scripts
from kiln.source.deb import Deb
from kiln.source.entry import Entry, data_entry, merge
from kiln.source.tree import read_tree
from kiln.store import Store
from tests.helpers.debs import deb

ACCOUNT = Account("vllm", 1000, 0, "/var/cache/vllm")

PASSWD = "root:*:0:0:root:/root:/bin/bash\nnobody:*:65534:65534:nobody:/nonexistent:/bin/false\n"
GROUP = "root:*:0:\nnogroup:*:65534:\n"
BASE_PASSWD = {
    "usr/share/base-passwd/passwd.master": PASSWD,
    "usr/share/base-passwd/group.master": GROUP,
}


def control(name: str, **fields: str) -> str:
    known = {"Package": name, "Version": "1.0-1", "Architecture": "amd64", **fields}
    lines = [f"{field.replace('_', '-')}: {value}" for field, value in known.items()]
    return "\n".join([*lines, "Description: short", " long", ""])


class Closure:
    """Packages made for a test, as the step sees them."""

    def __init__(self, tmp_path: Path) -> None:
        self._folder = tmp_path
        self.debs: list[Deb] = []
        self.add("base-passwd", BASE_PASSWD)

    def add(
        self,
        name: str,
        files: dict[str, str],
        extra: dict[str, str] | None = None,
        **fields: str,
    ) -> Closure:
        path = deb(self._folder / f"{name}.deb", files, control(name, **fields), extra)
        self.debs.append(Deb(path))
        return self

    def trees(self) -> dict[str, list[Entry]]:
        return {package.name: package.entries() for package in self.debs}

    def system(self, account: Account = ACCOUNT) -> dict[str, Entry]:
        return {e.path: e for e in system(self.debs, self.trees(), account)}


def text(entry: Entry) -> str:
    return b"".join(entry.blocks()).decode()


@pytest.fixture
def closure(tmp_path: Path) -> Closure:
    return Closure(tmp_path)


def test_accounts_come_from_the_masters(closure: Closure) -> None:
    made = closure.system()
    assert text(made["etc/passwd"]) == PASSWD + "vllm:*:1000:0:vllm:/var/cache/vllm:/bin/sh\n"
    assert text(made["etc/group"]) == GROUP, "gid 0 is there already"
    assert "etc/shadow" not in made


def test_a_group_of_its_own_and_bash(closure: Closure) -> None:
    closure.add("bash", {"bin/bash": ""})
    made = closure.system(Account("vllm", 1000, 1234, "/home/v"))
    assert text(made["etc/passwd"]).endswith("vllm:*:1000:1234:vllm:/home/v:/bin/bash\n")
    assert text(made["etc/group"]) == GROUP + "vllm:*:1234:\n"


@pytest.mark.parametrize("account", [Account("nobody", 1000, 0, "/h"), Account("vllm", 0, 0, "/h")])
def test_an_account_of_debian_is_not_taken(closure: Closure, account: Account) -> None:
    with pytest.raises(KilnError) as caught:
        closure.system(account)
    assert caught.value.code == "layer.account-clash"


def test_without_base_passwd(closure: Closure) -> None:
    closure.debs.clear()
    with pytest.raises(KilnError) as caught:
        closure.system()
    assert caught.value.code == "layer.no-package"


def test_the_cache_is_writable_by_group_0_and_nothing_else_is(closure: Closure) -> None:
    closure.add("base-files", {"usr/share/base-files/profile": "p"})
    made = closure.system()
    writable = [path for path, e in made.items() if e.kind != "symlink" and e.mode & 0o022]
    assert writable == ["var/cache/vllm"]
    assert (made["var/cache/vllm"].kind, made["var/cache/vllm"].mode) == ("dir", 0o775)


def test_defaults_are_copied_but_never_over_a_package(closure: Closure) -> None:
    closure.add(
        "base-files", {"usr/share/base-files/profile": "P", "usr/share/base-files/motd": "M"}
    )
    closure.add("libc-bin", {"usr/share/libc-bin/nsswitch.conf": "N", "etc/motd": "own"})
    made = closure.system()
    assert text(made["etc/profile"]) == "P"
    assert text(made["etc/nsswitch.conf"]) == "N"
    assert "etc/motd" not in made


def test_folders_of_a_package_keep_their_modes(closure: Closure) -> None:
    closure.add("base-files", {"usr/share/base-files/dot.profile": ""})
    trees = closure.trees()
    trees["base-files"].append(Entry("root", "dir", 0o700))
    made = {e.path: e for e in system(closure.debs, trees, ACCOUNT)}
    assert made["root/.profile"].kind == "file"
    assert made["root"].mode == 0o700


def test_alternatives(closure: Closure) -> None:
    closure.add("g++", {"usr/bin/g++": ""}).add("mawk", {"usr/bin/mawk": ""})
    made = closure.system()
    links = {path: e.target for path, e in made.items() if e.kind == "symlink"}
    assert links["usr/bin/c++"] == "/etc/alternatives/c++"
    assert links["etc/alternatives/c++"] == "/usr/bin/g++"
    assert links["etc/alternatives/awk"] == "/usr/bin/mawk"
    assert "usr/bin/cc" not in links, "there is no gcc"


def test_gawk_wins_over_mawk_and_a_shipped_link_over_both(closure: Closure) -> None:
    closure.add("mawk", {"usr/bin/mawk": ""}).add("gawk", {"usr/bin/gawk": ""})
    assert closure.system()["etc/alternatives/awk"].target == "/usr/bin/gawk"
    closure.add("awk", {"usr/bin/awk": "own"})
    assert "etc/alternatives/awk" not in closure.system()


def test_python3_is_the_newest_unless_shipped(closure: Closure) -> None:
    closure.add("python3.9", {"usr/bin/python3.9": ""})
    closure.add("python3.11", {"usr/bin/python3.11": ""})
    made = closure.system()
    assert made["usr/bin/python3"].target == "python3.11"
    assert made["usr/local/lib/python3.11/dist-packages"].kind == "dir"
    closure.add("python3-minimal", {"usr/bin/python3": ""})
    assert "usr/bin/python3" not in closure.system()


def test_shells_have_both_forms(closure: Closure) -> None:
    closure.add("debianutils", {"usr/share/debianutils/shells": "# shells\n/bin/sh\n"})
    closure.add("dash", {"usr/share/debianutils/shells.d/dash": "/bin/dash\n"})
    expected = "# shells\n/bin/sh\n/usr/bin/sh\n/bin/dash\n/usr/bin/dash\n"
    assert text(closure.system()["etc/shells"]) == expected


def test_the_bundle_is_in_bytewise_order_and_ends_its_lines(closure: Closure) -> None:
    folder = "usr/share/ca-certificates/mozilla"
    closure.add(
        "ca-certificates",
        {f"{folder}/b.crt": "b\n", f"{folder}/B (x),y.crt": "B", f"{folder}/no": ""},
    )
    made = closure.system()
    assert text(made["etc/ssl/certs/ca-certificates.crt"]) == "B\nb\n"
    assert text(made["etc/ca-certificates.conf"]) == "mozilla/B (x),y.crt\nmozilla/b.crt\n"
    assert made["etc/ssl/certs/B_=x=_y.pem"].target == f"/{folder}/B (x),y.crt"


def test_dpkgs_database(closure: Closure) -> None:
    files = {"bin/t": "", "etc/t.conf": "x"}
    extra = {"conffiles": "/etc/t.conf\n", "md5sums": "0123  bin/t\n"}
    closure.add("tiny", files, extra, Multi_Arch="same")
    made = closure.system()
    info = "var/lib/dpkg/info/tiny:amd64"
    assert text(made[f"{info}.list"]) == "/.\n/etc/t.conf\n/usr/bin/t\n"
    assert text(made[f"{info}.md5sums"]) == "0123  usr/bin/t\n"
    assert text(made[f"{info}.conffiles"]) == "/etc/t.conf\n"
    assert text(made["var/lib/dpkg/status"]).split("\n\n")[1] == (
        "Package: tiny\nStatus: install ok installed\nVersion: 1.0-1\nArchitecture: amd64\n"
        "Multi-Arch: same\nConffiles:\n /etc/t.conf 9dd4e461268c8034f5c8564e155c67a6\n"
        "Description: short\n long"
    )
    assert text(made["var/lib/dpkg/info/format"]) == "1\n"


def test_parameters() -> None:
    runtime = Runtime(entrypoint=(), env={}, user="1000:0", cache="/var/cache/vllm")
    assert parameters(runtime) == {"uid": 1000, "gid": 0, "cache": "/var/cache/vllm"}


def test_unsound_parameters_are_told_at_once() -> None:
    with pytest.raises(Problems) as caught:
        parameters(Runtime(entrypoint=(), env={}, user="vllm", cache="/var/../x"))
    assert [e.code for e in caught.value.errors] == ["layer.bad-user", "layer.bad-cache"]


def test_the_step_does_not_depend_on_the_order_of_inputs(store: Store, closure: Closure) -> None:
    closure.add("dash", {"bin/dash": "x"})
    inputs: dict[str, Digest] = {}
    for package in closure.debs:
        blob = store.blobs.put_file(package.path)
        made = DEB.run(Context(store, {"deb": blob}, {}, Silent(), store.blobs.tmp))
        inputs |= {f"deb:{package.name}": blob, f"tree:{package.name}": made["out"]}
    params: dict[str, JSON] = {"uid": 1000, "gid": 0, "cache": "/var/cache/vllm"}
    digests = {
        SYSTEM.run(Context(store, dict(order), params, Silent(), store.blobs.tmp))["out"]
        for order in (inputs.items(), reversed(inputs.items()))
    }
    (digest,) = digests
    paths = [entry.path for entry in read_tree(store.blobs.path(digest.sha256))]
    assert "etc/passwd" in paths


# ---- tools ---------------------------------------------------------------------------------


class FakeTools:
    """An executor that looks at the root and does what the two programs would do."""

    def __init__(self) -> None:
        self.roots: list[set[str]] = []

    def run(self, command: Command, log: Path) -> int:
        root = command.root
        self.roots.append({str(p.relative_to(root)) for p in root.rglob("*")})
        out = command.binds[0].source
        log.write_text("said")
        if command.argv[0] == "/usr/sbin/ldconfig":
            (out / "ld.so.cache").write_bytes(b"cache")
            return 0
        (out / "certs/0123abcd.0").symlink_to("a.pem")
        return 0 if (out / "certs/a.pem").read_text() == "cert" else 1


def closure_files(*without: str) -> dict[str, Entry]:
    entries = [
        data_entry("usr/sbin/ldconfig", b""),
        data_entry("usr/bin/openssl", b""),
        data_entry("usr/lib/x86_64-linux-gnu/libc.so.6", b""),
        data_entry("usr/lib/x86_64-linux-gnu/libc.a", b""),
        data_entry("etc/ld.so.conf", b""),
        data_entry("etc/ld.so.conf.d/x.conf", b""),
        data_entry("usr/share/ca-certificates/a.crt", b"cert"),
        Entry("etc/ssl/certs/a.pem", "symlink", 0o777, target="/usr/share/ca-certificates/a.crt"),
        Entry("lib", "symlink", 0o777, target="usr/lib"),
    ]
    return {e.path: e for e in merge([entries]) if e.path not in without}


def test_tools_see_what_they_need(store: Store, tmp_path: Path) -> None:
    fake = FakeTools()
    (tmp_path / "act").mkdir()
    made = {e.path: e for e in tools.make(closure_files(), fake, store, tmp_path / "act")}
    assert text(made["etc/ld.so.cache"]) == "cache"
    assert made["etc/ssl/certs/0123abcd.0"].target == "a.pem"
    assert "usr/lib/x86_64-linux-gnu/libc.so.6" in fake.roots[0]
    assert "usr/lib/x86_64-linux-gnu/libc.a" not in fake.roots[0]
    assert "lib" in fake.roots[0]


def test_no_openssl_means_no_links_by_hash(store: Store, tmp_path: Path) -> None:
    made = tools.make(closure_files("usr/bin/openssl"), FakeTools(), store, tmp_path)
    assert [e.path for e in made] == ["etc/ld.so.cache"]


def test_no_ldconfig(store: Store, tmp_path: Path) -> None:
    with pytest.raises(KilnError) as caught:
        tools.make(closure_files("usr/sbin/ldconfig"), FakeTools(), store, tmp_path)
    assert caught.value.code == "layer.no-package"


def test_a_tool_that_fails(store: Store, tmp_path: Path) -> None:
    files = closure_files()
    files["usr/share/ca-certificates/a.crt"] = data_entry("usr/share/ca-certificates/a.crt", b"no")
    with pytest.raises(KilnError) as caught:
        tools.make(files, FakeTools(), store, tmp_path)
    assert caught.value.code == "compile.failed"


# ---- maintainer scripts --------------------------------------------------------------------


def locked(tmp_path: Path, name: str, extra: dict[str, str]) -> tuple[LockedDeb, Path]:
    path = deb(tmp_path / f"{name}.deb", {}, control(name), extra)
    return LockedDeb(name, "1.0-1", "amd64", "pool/x", 1, "0" * 64, "base", "bookworm"), path


def test_scripts_that_matter_are_found(tmp_path: Path) -> None:
    debs = [
        locked(tmp_path, "b", {"postinst": "do b", "prerm": "x"}),
        locked(tmp_path, "a", {"preinst": "do a"}),
        locked(tmp_path, "c", {"prerm": "x", "postrm": "y", "config": "z"}),
    ]
    assert needed_scripts(debs) == {"a": {"preinst": "do a"}, "b": {"postinst": "do b"}}


def test_every_script_has_to_be_declared_and_no_other(tmp_path: Path) -> None:
    debs = [
        locked(tmp_path, "a", {"postinst": "#!/bin/sh\nset -e\n\nrm -rf /\n"}),
        locked(tmp_path, "b", {"preinst": "mkdir /b\n"}),
        locked(tmp_path, "c", {"postinst": "x"}),
    ]
    with pytest.raises(Problems) as caught:
        check_scripts(debs, {"c": "needless: x", "gone": "handled: y"}, "images/t.yaml")
    undeclared, stale = caught.value.errors
    assert (undeclared.code, stale.code) == ("lock.undeclared-script", "lock.stale-script")
    assert "a postinst: rm -rf /" in undeclared.why
    assert "b preinst: mkdir /b" in undeclared.why
    assert "gone" in stale.what
    assert undeclared.where == "images/t.yaml"
    check_scripts(debs, dict.fromkeys("abc", "needless: x"), "images/t.yaml")
