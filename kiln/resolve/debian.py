"""Resolve Debian packages: apt is the solver, in a private root.

apt reads a configuration, an empty package database and sources of our own, all in a
temporary folder, so that neither what is installed here nor the machine's pins,
recommends or foreign architectures can influence the answer. What it takes from the
machine is how to reach the archive: mirrors (kiln.fetch.debian), proxies and the like.
Nothing is installed, and nothing outside the folder is written.

Signatures are always checked, by apt's own gpgv, against a keyring named for each
source: a repository that is unsigned, or not by these keys, is an error.
"""

from __future__ import annotations

import difflib
import email.utils
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote

from kiln.canonical import sha256
from kiln.errors import BadInput, CannotHere, KilnError, Unavailable, raise_problems
from kiln.fetch.debian import Mirror, mirrors
from kiln.lock.model import Deb, Suite
from kiln.progress import Reporter

KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)

# What of the machine's own apt configuration says how to reach an archive.
_REACH = re.compile(
    r"Acquire::(https?|Retries|Force-?IPv[46]|Check-Valid-Until|Check-Date|Max-FutureTime)\b"
    r'.* ".*";'
)

# Everything that could weaken the check of signatures, and what the machine might prefer.
_CONFIG = """\
#clear APT::Architectures;
#clear Acquire::Languages;
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Install-Suggests "false";
APT::Get::AllowUnauthenticated "false";
APT::Sandbox::User "root";
APT::Solver "internal";
APT::Update::Error-Mode "any";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
Acquire::ForceHash "SHA256";
Acquire::GzipIndexes "false";
Acquire::Languages {{ "none"; }};
Dir::State "{root}/state";
Dir::State::status "{root}/status";
Dir::Cache "{root}/cache";
Dir::Log "{root}/log";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "{root}/none";
Dir::Etc::sourcelist "{root}/sources.list";
Dir::Etc::sourceparts "{root}/none";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "{root}/none";
Dir::Etc::trusted "/dev/null";
Dir::Etc::trustedparts "{root}/none";
"""

_URI = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) ")


def solve(
    groups: Mapping[str, Sequence[str]],
    release: str,
    security: bool,
    architecture: str,
    reporter: Reporter,
) -> tuple[list[Deb], dict[str, Suite]]:
    """The closure of `groups`, and the suites it came from; see `Apt.solve`."""
    with Apt(release, security, architecture, reporter) as apt:
        return apt.solve(groups), apt.suites


class Apt:
    """apt in a private root, with the indexes of one Debian release.

    One object can solve several closures. Entering the `with` block gets the indexes.
    Raises CannotHere("resolve.no-apt", "resolve.no-keyring", "resolve.no-mirror"),
    Unavailable("resolve.mirror") and ("resolve.bad-signature").
    """

    def __init__(self, release: str, security: bool, architecture: str, reporter: Reporter) -> None:
        self._suite_names = [release] + ([f"{release}-security"] if security else [])
        self._architecture, self._reporter = architecture, reporter
        self._mirrors: dict[str, Mirror] = {}
        self.suites: dict[str, Suite] = {}

    def __enter__(self) -> Apt:
        if shutil.which("apt-get") is None:
            raise CannotHere(
                "resolve.no-apt",
                "this machine has no apt to resolve Debian packages with",
                why="Kiln lets apt solve; only `kiln lock` needs it, builds do not",
                fix="run `kiln lock` on a Debian or Ubuntu machine, or in such a container, "
                "or install the package apt here",
            )
        self._root = Path(tempfile.mkdtemp(prefix="kiln-apt-"))
        try:
            self._prepare()
            self._update()
        except BaseException:
            shutil.rmtree(self._root, ignore_errors=True)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    # ---- the private root ----------------------------------------------------------------

    def _prepare(self) -> None:
        for name in ("state/lists/partial", "cache/archives/partial", "log", "none"):
            (self._root / name).mkdir(parents=True)
        (self._root / "status").write_text("")
        dump = subprocess.run(
            ["apt-config", "dump"], capture_output=True, text=True, check=False, env=_plain_env()
        )
        taken = [line for line in dump.stdout.splitlines() if _REACH.fullmatch(line)]
        for line in taken:
            if line.startswith(("Acquire::Check-Valid-Until", "Acquire::Check-Date")):
                self._reporter.note(f"apt's settings of this machine are kept: {line}")
        config = _CONFIG.format(architecture=self._architecture, root=self._root)
        (self._root / "apt.conf").write_text("\n".join([*taken, config]))

    def _update(self) -> None:
        """Get the indexes from the first mirrors that give them."""
        found = []
        for suite in self._suite_names:
            if not (choices := mirrors(suite)):
                security = suite.endswith("-security")
                name = "KILN_DEBIAN_SECURITY_MIRROR" if security else "KILN_DEBIAN_MIRROR"
                raise CannotHere(
                    "resolve.no-mirror",
                    f"no mirror is known for the Debian suite {suite}",
                    where="/etc/apt",
                    why="apt's settings name no Debian archive that would have it",
                    fix=f"set {name} to the URI of an archive",
                )
            found.append(choices)
        problems: list[KilnError] = []
        for chosen in itertools.product(*found):
            self._mirrors = dict(zip(self._suite_names, chosen, strict=True))
            try:
                with self._reporter.task(f"apt: indexes of {', '.join(self._suite_names)}"):
                    self._update_from()
            except Unavailable as error:
                self._reporter.note(str(error))
                problems.append(error)
            else:
                return
        raise_problems(problems)

    def _update_from(self) -> None:
        lines = []
        for suite, mirror in self._mirrors.items():
            options = f"arch={self._architecture} signed-by={_keyring(mirror)}"
            lines.append(f"deb [{options}] {mirror.uri} {suite} main\n")
        (self._root / "sources.list").write_text("".join(lines))
        shutil.rmtree(self._root / "state/lists")
        (self._root / "state/lists/partial").mkdir(parents=True)
        done = self._run("apt-get", "-q", "update")
        words = _words(done)
        where = ", ".join(mirror.uri for mirror in self._mirrors.values())
        if re.search(r"signature|is not signed|NO_PUBKEY|GPG error|BADSIG|EXPKEYSIG", words):
            raise Unavailable(
                "resolve.bad-signature",
                "the archive's signature does not hold",
                where=where,
                why=words,
                fix="get the package debian-archive-keyring of a current release, or name the "
                "keyring of your mirror (Signed-By in apt's settings, or KILN_DEBIAN_KEYRING); "
                "if it held before, ask whoever runs the mirror",
            )
        if done.returncode != 0:
            raise Unavailable(
                "resolve.mirror",
                "the mirror does not give its indexes",
                where=where,
                why=words,
                fix="try `apt-get update` by hand, or set KILN_DEBIAN_MIRROR to another mirror",
            )
        # Older apts end well although an index failed, so what counts is what is there.
        self.suites = {suite: self._read_suite(suite) for suite in self._mirrors}

    def _read_suite(self, suite: str) -> Suite:
        uri = self._mirrors[suite].uri
        lists = self._root / "state/lists"
        # One mirror for each suite, so the end of apt's file names tells them apart.
        found = [*lists.glob(f"*_dists_{suite}_InRelease"), *lists.glob(f"*_dists_{suite}_Release")]
        if not found:
            raise Unavailable(
                "resolve.mirror",
                f"apt got no Release file of {suite}",
                where=uri,
                why=f"it left {', '.join(sorted(p.name for p in lists.iterdir())) or 'nothing'}",
                fix="try `apt-get update` by hand, or set KILN_DEBIAN_MIRROR to another mirror",
            )
        data = found[0].read_bytes()
        match = re.search(rb"^Date: (.+)$", data, re.MULTILINE)
        date = email.utils.parsedate_to_datetime(match[1].decode()) if match else None
        if date is None:
            raise Unavailable(
                "resolve.mirror", "the Release file has no date", where=f"{uri} {suite}"
            )
        return Suite(date.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ"), sha256(data))

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        env = {**_plain_env(), "APT_CONFIG": str(self._root / "apt.conf")}
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=env,
            stdin=subprocess.DEVNULL,
        )

    # ---- solving -------------------------------------------------------------------------

    def solve(self, groups: Mapping[str, Sequence[str]]) -> list[Deb]:
        """The closure, sorted by group and name.

        Group k gets what groups 1 to k need beyond what 1 to k-1 got: what was chosen for
        an earlier group stays chosen. Raises BadInput("resolve.no-package"), all names at
        once, ("resolve.unsolvable"), with apt's own words.
        """
        asked = sorted({name for names in groups.values() for name in names})
        self._check_names(asked)
        chosen: dict[str, str] = {}
        result: list[Deb] = []
        with self._reporter.task(f"apt: solve {', '.join(groups)}"):
            for group, names in groups.items():
                keep = [f"{name}={version}" for name, version in sorted(chosen.items())]
                fresh = [name for name in sorted(set(names)) if name not in chosen]
                if not fresh:
                    continue
                picked = {
                    name: item
                    for name, item in self._install(group, keep + fresh).items()
                    if name not in chosen
                }
                debs = self._describe(group, picked)
                chosen |= {deb.name: deb.version for deb in debs}
                result += debs
        return result

    def _check_names(self, asked: Sequence[str]) -> None:
        known = set(self._run("apt-cache", "pkgnames").stdout.split())
        problems: list[KilnError] = []
        for name in asked:
            if re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name) and name in known:
                continue
            close = difflib.get_close_matches(
                name, sorted(n for n in known if n[:2] == name[:2]), 4, 0.75
            )
            problems.append(
                BadInput(
                    "resolve.no-package",
                    f"{' and '.join(self._suite_names)} has no package {name!r}",
                    where=f"package {name}",
                    why=f"close names: {', '.join(close)}" if close else "no name is close",
                    fix="correct the name in the recipe",
                )
            )
        raise_problems(problems)

    def _install(self, group: str, wanted: Sequence[str]) -> dict[str, tuple[str, str, str]]:
        """name -> (version, architecture, URI) of all that apt would install."""
        # The names were checked, so none of them reads as an option.
        done = self._run("apt-get", "-q", "-y", "--print-uris", "install", *wanted)
        if done.returncode != 0:
            raise BadInput(
                "resolve.unsolvable",
                f"apt cannot install the packages of the group {group!r} together",
                where=f"group {group}",
                why=_words(done),
                fix="remove one of the packages that conflict, or ask for the one you want "
                "in an earlier group",
            )
        found = {}
        for match in _URI.finditer(done.stdout):
            name, version, rest = match["file"].split("_", 2)
            found[name] = (unquote(version), rest.removesuffix(".deb"), match["uri"])
        return found

    def _describe(self, group: str, picked: Mapping[str, tuple[str, str, str]]) -> list[Deb]:
        """What the signed index says of each package: path, size and sha256."""
        from debian.deb822 import Packages

        if not picked:
            return []
        wanted = [f"{name}={version}" for name, (version, _, _) in sorted(picked.items())]
        done = self._run("apt-cache", "show", *wanted)
        found: dict[str, Deb] = {}
        for stanza in Packages.iter_paragraphs(done.stdout.encode(), use_apt_pkg=False):
            name = stanza.get("Package", "")
            version, architecture, uri = picked.get(name, ("", "", ""))
            path = stanza.get("Filename", "").removeprefix("./")
            if (stanza.get("Version"), stanza.get("Architecture")) != (version, architecture):
                continue
            if not unquote(uri).endswith("/" + path):
                continue  # the same version in another suite, in another place of the pool
            found[name] = Deb(
                name=name,
                version=version,
                architecture=architecture,
                path=path,
                size=int(stanza["Size"]),
                sha256=stanza["SHA256"].lower(),
                group=group,
                suite=self._suite_of(uri, path),
            )
        if missing := sorted(picked.keys() - found.keys()):
            raise Unavailable(
                "resolve.mirror",
                f"apt would install what its index does not describe: {', '.join(missing)}",
                why=_words(done),
                fix="the mirror may have changed meanwhile: try again",
            )
        return [found[name] for name in sorted(found)]

    def _suite_of(self, uri: str, path: str) -> str:
        base = unquote(uri).removesuffix("/" + path)
        for suite, mirror in self._mirrors.items():
            if unquote(mirror.uri) == base or mirror.uri == base:
                return suite
        return self._suite_names[0]


def _plain_env() -> dict[str, str]:
    """The environment for apt: the user's (proxies are in it), in plain English."""
    return {**os.environ, "LC_ALL": "C", "LANGUAGE": "", "DEBIAN_FRONTEND": "noninteractive"}


def _keyring(mirror: Mirror) -> str:
    """The keyring to check a mirror against. Raises CannotHere("resolve.no-keyring")."""
    choices = [Path(mirror.keyring)] if mirror.keyring else list(KEYRINGS)
    for path in choices:
        if os.access(path, os.R_OK):
            return str(path)
    raise CannotHere(
        "resolve.no-keyring",
        "no keyring to check Debian's signatures against",
        where=mirror.uri,
        why=f"looked for {', '.join(map(str, choices))}",
        fix="install the package debian-archive-keyring, or set KILN_DEBIAN_KEYRING; "
        "unsigned archives are never taken",
    )


def _words(done: subprocess.CompletedProcess[str]) -> str:
    """What apt said, without its progress."""
    lines = (done.stderr + "\n" + done.stdout).splitlines()
    said = [line for line in lines if re.match(r"[EWN]: |Err:| |The following", line)]
    return "\n".join(said[:40]) or f"apt ended with status {done.returncode} and said nothing"
