"""What Debian's maintainer scripts would have done, as a pure step.

No script of a package is ever run. Each one of the closure is declared in the recipe
(`debian.scripts`), and those that do something in a fresh root are written down here:
files copied to where they may be edited, folders, accounts, alternatives, the
certificate bundle, dpkg's database. What only a program of the closure can make
(ld.so.cache, hashes of certificates) is in kiln.layer.tools.

Everything belongs to uid 0 and gid 0, and there is no shadow file: passwords are
locked. The one folder that is meant to be written is the recipe's cache; it may be by
group 0, so that any uid that an orchestrator picks can use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kiln.canonical import JSON, Digest
from kiln.errors import BadInput, raise_problems
from kiln.graph.action import Context
from kiln.layer.dpkg import database
from kiln.pins.model import Runtime
from kiln.source.deb import Deb, alias_links
from kiln.source.entry import Entry, data_entry, merge
from kiln.source.tree import read_tree, write_tree

USER = "vllm"

# Copied by a postinst where the target is missing: source -> target.
DEFAULTS: Mapping[str, str] = {
    "usr/share/base-files/dot.bashrc": "root/.bashrc",
    "usr/share/base-files/dot.profile": "root/.profile",
    "usr/share/base-files/profile": "etc/profile",
    "usr/share/base-files/motd": "etc/motd",
    "usr/share/base-files/info.dir": "usr/share/info/dir",
    "usr/share/libc-bin/nsswitch.conf": "etc/nsswitch.conf",
    "usr/share/readline/inputrc": "etc/inputrc",
}

# Made by a postinst: path -> the package whose script does it.
FOLDERS: Mapping[str, str] = {
    **dict.fromkeys(("mnt", "srv", "opt", "etc/opt", "var/opt", "media", "var/mail"), "base-files"),
    **dict.fromkeys(
        (
            f"usr/local/{name}"
            for name in ("bin", "etc", "games", "include", "lib", "sbin", "share/man", "src")
        ),
        "base-files",
    ),
    "usr/local/share/ca-certificates": "ca-certificates",
}

# Links made by a postinst: path -> (target, the file whose presence asks for it).
LINKS: Mapping[str, tuple[str, str]] = {
    "etc/dpkg/origins/default": ("debian", "etc/dpkg/origins/debian"),
    "usr/local/man": ("share/man", "usr/share/base-files/profile"),
    "var/spool/mail": ("../mail", "usr/share/base-files/profile"),
    "etc/localtime": ("/usr/share/zoneinfo/Etc/UTC", "usr/share/zoneinfo/Etc/UTC"),
}

# update-alternatives: link -> (name, program), in the order of choice.
ALTERNATIVES: Sequence[tuple[str, str, str]] = (
    ("usr/bin/awk", "awk", "usr/bin/gawk"),
    ("usr/bin/awk", "awk", "usr/bin/mawk"),
    ("usr/bin/nawk", "nawk", "usr/bin/gawk"),
    ("usr/bin/nawk", "nawk", "usr/bin/mawk"),
    ("usr/bin/c++", "c++", "usr/bin/g++"),
    ("usr/bin/cc", "cc", "usr/bin/gcc"),
    ("usr/bin/c89", "c89", "usr/bin/c89-gcc"),
    ("usr/bin/c99", "c99", "usr/bin/c99-gcc"),
    ("usr/lib/cpp", "cpp", "usr/bin/cpp"),
    ("usr/bin/pager", "pager", "usr/bin/more"),
    ("usr/bin/which", "which", "usr/bin/which.debianutils"),
    ("usr/sbin/rmt", "rmt", "usr/sbin/rmt-tar"),
    ("usr/share/man/man7/builtins.7.gz", "builtins.7.gz", "usr/share/man/man7/bash-builtins.7.gz"),
)

# netbase's postinst.
HOSTS = """\
127.0.0.1\tlocalhost
::1\t\tlocalhost ip6-localhost ip6-loopback
ff02::1\t\tip6-allnodes
ff02::2\t\tip6-allrouters

"""
NETWORKS = """\
default\t\t0.0.0.0
loopback\t127.0.0.0
link-local\t169.254.0.0

"""


@dataclass(frozen=True)
class Account:
    """The user that the image runs as. home: an absolute path, the recipe's cache."""

    name: str
    uid: int
    gid: int
    home: str


def parameters(runtime: Runtime) -> dict[str, JSON]:
    """The step's parameters for a recipe: user "1000:0" and cache "/var/cache/vllm".

    Raises BadInput("layer.bad-user") and ("layer.bad-cache").
    """
    problems: list[BadInput] = []
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", runtime.user)
    if match is None:
        problems.append(
            BadInput(
                "layer.bad-user",
                f"runtime.user is {runtime.user!r}",
                why="a name would mean something else in each image",
                fix='write numbers, "uid:gid", for example "1000:0"',
            )
        )
    if not re.fullmatch(r"(/[A-Za-z0-9_][A-Za-z0-9._-]*)+", runtime.cache):
        problems.append(
            BadInput(
                "layer.bad-cache",
                f"runtime.cache is {runtime.cache!r}",
                fix="write a plain absolute path, for example /var/cache/vllm",
            )
        )
    raise_problems(problems)
    assert match is not None
    return {"uid": int(match[1]), "gid": int(match[2]), "cache": runtime.cache}


def system(
    debs: Sequence[Deb], trees: Mapping[str, Sequence[Entry]], account: Account
) -> list[Entry]:
    """What the scripts would have left; trees: package name -> what it installs.

    Nothing that a package ships is replaced. Raises BadInput("layer.no-package") where a
    package that it builds on is not in the closure, ("layer.account-clash").
    """
    shipped = {entry.path: entry for tree in trees.values() for entry in tree}
    sources = [
        alias_links(shipped),
        _defaults(shipped),
        _folders(shipped, trees),
        _alternatives(shipped),
        _accounts(shipped, account),
        _shells(shipped),
        _certificates(shipped),
        _small(shipped),
    ]
    made = [entry for entry in merge(sources) if entry.path not in shipped]
    home = Entry(account.home.strip("/"), "dir", 0o775, origin="runtime.cache")
    made = merge([made, database(debs, trees), [home]])
    return merge([made, _parents(made, shipped)])


def _parents(made: Iterable[Entry], shipped: Mapping[str, Entry]) -> list[Entry]:
    """The packages' own folders around what was made, or they would get mode 0755."""
    paths: set[str] = set()
    for entry in made:
        parts = entry.path.split("/")
        paths |= {"/".join(parts[:depth]) for depth in range(1, len(parts))}
    return [shipped[path] for path in paths if path in shipped]


def _read(entry: Entry) -> str:
    return b"".join(entry.blocks()).decode()


def _link(path: str, target: str) -> Entry:
    return Entry(path, "symlink", 0o777, target=target, origin="kiln")


def _defaults(shipped: Mapping[str, Entry]) -> Iterator[Entry]:
    for source, target in DEFAULTS.items():
        if source in shipped:
            yield data_entry(target, b"".join(shipped[source].blocks()))


def _folders(shipped: Mapping[str, Entry], packages: Iterable[str]) -> Iterator[Entry]:
    for path, package in FOLDERS.items():
        if package in packages:
            yield Entry(path, "dir", 0o755, origin="kiln")
    for path in shipped:
        # A Python's own place for packages that are not Debian's.
        if match := re.fullmatch(r"usr/bin/python(3\.\d+)", path):
            folder = f"usr/local/lib/python{match[1]}/dist-packages"
            yield Entry(folder, "dir", 0o755, origin="kiln")


def _alternatives(shipped: Mapping[str, Entry]) -> Iterator[Entry]:
    chosen: set[str] = set()
    for link, name, program in ALTERNATIVES:
        if program in shipped and link not in shipped and name not in chosen:
            chosen.add(name)
            yield _link(link, f"/etc/alternatives/{name}")
            yield _link(f"etc/alternatives/{name}", f"/{program}")
    pythons = [m for p in shipped if (m := re.fullmatch(r"usr/bin/python3\.(\d+)", p))]
    if pythons:
        newest = max(pythons, key=lambda match: int(match[1]))
        yield _link("usr/bin/python3", f"python3.{newest[1]}")


def _accounts(shipped: Mapping[str, Entry], account: Account) -> Iterator[Entry]:
    masters = [f"usr/share/base-passwd/{name}.master" for name in ("passwd", "group")]
    if not all(master in shipped for master in masters):
        raise BadInput(
            "layer.no-package",
            "the closure has no package base-passwd",
            why="its tables are what /etc/passwd and /etc/group are made from",
            fix="add base-passwd to the first group of the recipe",
        )
    passwd, group = (_read(shipped[master]) for master in masters)
    for line in passwd.splitlines():
        name, _, uid = line.split(":")[:3]
        if account.name == name or account.uid == int(uid):
            raise BadInput(
                "layer.account-clash",
                f"the account {account.name} ({account.uid}) is Debian's own {name} ({uid})",
                where="runtime.user",
                fix="take a uid from 1000 to 59999",
            )
    shell = "/bin/bash" if "usr/bin/bash" in shipped else "/bin/sh"
    name, ids = account.name, f"{account.uid}:{account.gid}"
    passwd += f"{name}:*:{ids}:{name}:{account.home}:{shell}\n"
    if not any(line.split(":")[2] == str(account.gid) for line in group.splitlines()):
        group += f"{name}:*:{account.gid}:\n"
    yield data_entry("etc/passwd", passwd.encode())
    yield data_entry("etc/group", group.encode())


def _shells(shipped: Mapping[str, Entry]) -> Iterator[Entry]:
    """/etc/shells, as debianutils' update-shells(8) makes it of the packages' lists."""
    template = "usr/share/debianutils/shells"
    if template not in shipped:
        return
    lists = sorted(path for path in shipped if path.startswith(f"{template}.d/"))
    lines = _read(shipped[template]).splitlines()
    for path in lists:
        if shipped[path].kind == "file":
            lines += [line for line in _read(shipped[path]).splitlines() if line.startswith("/")]
    both = [form for line in lines for form in _merged_forms(line)]
    yield data_entry("etc/shells", "".join(f"{line}\n" for line in dict.fromkeys(both)).encode())


def _merged_forms(line: str) -> list[str]:
    return [line, f"/usr{line}"] if line.startswith("/bin/") else [line]


def _certificates(shipped: Mapping[str, Entry]) -> Iterator[Entry]:
    """update-ca-certificates(8): every certificate of the packages, in bytewise order."""
    folder = "usr/share/ca-certificates/"
    paths = sorted(
        (p for p in shipped if p.startswith(folder) and p.endswith(".crt")), key=str.encode
    )
    if not paths:
        return
    bundle = []
    for path in paths:
        text = b"".join(shipped[path].blocks())
        bundle.append(text if text.endswith(b"\n") else text + b"\n")
        name = path.rpartition("/")[2].removesuffix(".crt")
        name = name.translate(str.maketrans(" ,()", "__=="))
        yield _link(f"etc/ssl/certs/{name}.pem", f"/{path}")
    yield data_entry("etc/ssl/certs/ca-certificates.crt", b"".join(bundle))
    names = "".join(f"{path.removeprefix(folder)}\n" for path in paths)
    yield data_entry("etc/ca-certificates.conf", names.encode())


def _small(shipped: Mapping[str, Entry]) -> Iterator[Entry]:
    for path, (target, cause) in LINKS.items():
        if cause in shipped:
            yield _link(path, target)
    if "usr/share/zoneinfo/Etc/UTC" in shipped:
        yield data_entry("etc/timezone", b"Etc/UTC\n")
    if "etc/protocols" in shipped:  # netbase
        yield data_entry("etc/hosts", HOSTS.encode())
        yield data_entry("etc/networks", NETWORKS.encode())


# ---- the step --------------------------------------------------------------------------------


def read_packages(context: Context) -> tuple[list[Deb], dict[str, list[Entry]]]:
    """The packages among a step's inputs: "deb:NAME" files and "tree:NAME" trees."""
    debs = [Deb(context.path(name)) for name in sorted(context.inputs) if name.startswith("deb:")]
    trees = {
        name.removeprefix("tree:"): read_tree(context.path(name), name.removeprefix("tree:"))
        for name in sorted(context.inputs)
        if name.startswith("tree:")
    }
    return debs, trees


def run(context: Context) -> dict[str, Digest]:
    """Inputs "deb:NAME" (the package) and "tree:NAME" (its DEB tree) for each package of the
    closure; params: `parameters(recipe.runtime)`. Output {"out": tree}."""
    debs, trees = read_packages(context)
    uid, gid, cache = (context.params[name] for name in ("uid", "gid", "cache"))
    assert isinstance(uid, int)
    assert isinstance(gid, int)
    assert isinstance(cache, str)
    entries = system(debs, trees, Account(USER, uid, gid, cache))
    return {"out": write_tree(context.store.blobs, entries)}
