"""Where this machine gets Debian packages from: its own apt settings, or the environment.

Locks hold no hosts. The mirrors are those of the machine's apt settings, in the
deb822 format (`*.sources`) and the one-line format (`*.list`) of sources.list(5);
the environment goes before them:

    KILN_DEBIAN_MIRROR           URIs of the main archive, separated by blanks
    KILN_DEBIAN_SECURITY_MIRROR  URIs of the security archive
    KILN_DEBIAN_KEYRING          keyring file for the mirrors of these two
    KILN_DEBIAN_SNAPSHOT         URI templates of archives that keep every day, with
                                 {date} (20250517T094534Z) and, if it likes, {archive}
                                 ("debian" or "debian-security")

The settings say where to look, never what to choose: suites, pins and components of
the machine are not taken, and neither is `trusted=yes`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from kiln.errors import BadInput, KilnError, raise_problems
from kiln.lock.model import Deb, Suite

APT_DIR = Path("/etc/apt")
OS_RELEASE = Path("/etc/os-release")
SCHEMES = ("http", "https", "file")

# Names that Debian's archive gives its suites besides the code names. A code name is
# recognised by being asked for, or by being the host's own (if the host is a Debian).
_GENERIC = frozenset(
    {"stable", "oldstable", "oldoldstable", "testing", "unstable", "sid", "experimental"}
)
_SECURITY = "-security"


@dataclass(frozen=True)
class Source:
    """One line or stanza of apt's settings. signed_by: a keyring file, or "" if unsaid."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""
    where: str = ""


@dataclass(frozen=True)
class Mirror:
    """An archive's base URI, without a trailing slash. keyring: "" = Debian's own."""

    uri: str
    keyring: str = ""


# ---- reading apt's settings ------------------------------------------------------------


def parse_list(text: str, where: str) -> list[Source]:
    """The one-line format: `deb [option=value ...] uri suite component ...`.

    Raises BadInput("fetch.bad-apt-source"), all lines' faults at once.
    """
    found: list[Source] = []
    problems: list[KilnError] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        match = re.fullmatch(r"(deb|deb-src)\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)(.*)", line)
        if match is None:
            problems.append(_bad_source(f"{where}:{number}", f"cannot read {line!r}"))
            continue
        kind, options, uri, suite, components = match.groups()
        if kind == "deb":
            pairs = dict(_option(option) for option in (options or "").split())
            found.append(
                Source(
                    (uri,),
                    (suite,),
                    tuple(components.split()),
                    _keyring(pairs.get("signed-by", "")),
                    f"{where}:{number}",
                )
            )
    raise_problems(problems)
    return found


def _option(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.lower(), value


def parse_sources(text: str, where: str) -> list[Source]:
    """The deb822 format: stanzas with Types, URIs, Suites, Components, Signed-By.

    Raises BadInput("fetch.bad-apt-source"), all stanzas' faults at once.
    """
    found: list[Source] = []
    problems: list[KilnError] = []
    for line, fields in _stanzas(text):
        at = f"{where}:{line}"
        if fields.get("enabled", "yes").lower() in ("no", "false", "without", "off", "disable"):
            continue
        missing = [f for f in ("types", "uris", "suites") if not fields.get(f)]
        if missing:
            problems.append(_bad_source(at, f"a stanza without {', '.join(missing)}"))
        elif "deb" in fields["types"].split():
            found.append(
                Source(
                    tuple(fields["uris"].split()),
                    tuple(fields["suites"].split()),
                    tuple(fields.get("components", "").split()),
                    _keyring(fields.get("signed-by", "")),
                    at,
                )
            )
    raise_problems(problems)
    return found


def _stanzas(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """First line number and fields (names in lower case) of each stanza."""
    start, fields, last = 0, dict[str, str](), ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield start, fields
            start, fields, last = 0, {}, ""
        elif line[0] in " \t":
            if last:
                fields[last] += "\n" + line.strip()
        else:
            name, _, value = line.partition(":")
            last = name.strip().lower()
            fields[last] = value.strip()
            start = start or number


def _keyring(signed_by: str) -> str:
    """A keyring's path; fingerprints and keys written into the setting are not taken."""
    words = signed_by.replace(",", " ").split()
    return words[0] if words and words[0].startswith("/") else ""


def _bad_source(where: str, what: str) -> BadInput:
    return BadInput(
        "fetch.bad-apt-source",
        f"apt's settings: {what}",
        where=where,
        fix="mend the file (sources.list(5)), or set KILN_DEBIAN_MIRROR",
    )


def read_settings(apt: Path = APT_DIR) -> list[Source]:
    """Every enabled binary source of the machine, in apt's order (none without apt)."""
    found: list[Source] = []
    problems: list[KilnError] = []
    parts = sorted((apt / "sources.list.d").glob("*"))
    for path in [apt / "sources.list", *parts]:
        # apt reads only names of these endings and characters.
        if not path.is_file() or not re.fullmatch(r"[A-Za-z0-9_.-]+\.(list|sources)", path.name):
            continue
        parse = parse_sources if path.suffix == ".sources" else parse_list
        try:
            found += parse(path.read_text("utf-8", "replace"), str(path))
        except KilnError as error:
            problems.append(error)
        except OSError as error:
            problems.append(_bad_source(str(path), error.strerror or "it cannot be read"))
    raise_problems(problems)
    return found


# ---- mirrors -----------------------------------------------------------------------------


def mirrors(
    suite: str,
    environ: Mapping[str, str] | None = None,
    apt: Path = APT_DIR,
    os_release: Path = OS_RELEASE,
) -> list[Mirror]:
    """The machine's mirrors of a suite ("bookworm", "bookworm-security"), in order.

    The environment goes before the settings. Of the settings, sources of this very suite
    come first, then those of the host's own Debian release: one archive has them all.
    Raises BadInput("fetch.bad-mirror") and ("fetch.bad-apt-source").
    """
    environ = os.environ if environ is None else environ
    security = suite.endswith(_SECURITY)
    name = "KILN_DEBIAN_SECURITY_MIRROR" if security else "KILN_DEBIAN_MIRROR"
    if configured := environ.get(name, "").split():
        keyring = environ.get("KILN_DEBIAN_KEYRING", "")
        for uri in configured:
            if urlsplit(uri).scheme not in SCHEMES:
                raise BadInput(
                    "fetch.bad-mirror",
                    f"{uri!r} is no mirror",
                    where=name,
                    why=f"a mirror is a URI that begins with {', '.join(SCHEMES)}",
                    fix="write for example https://mirror.example/debian",
                )
        return _unique(Mirror(uri.rstrip("/"), keyring) for uri in configured)
    sources = [s for s in read_settings(apt) if "main" in s.components]
    known = _GENERIC | ({host} if (host := _host_release(os_release)) else frozenset())
    alike = {name + _SECURITY for name in known} if security else known
    ranked = [
        *(s for s in sources if suite in s.suites),
        *(s for s in sources if alike.intersection(s.suites)),
    ]
    return _unique(
        Mirror(uri.rstrip("/"), source.signed_by)
        for source in ranked
        for uri in source.uris
        if urlsplit(uri).scheme in SCHEMES
    )


def _unique(found: Iterator[Mirror] | list[Mirror]) -> list[Mirror]:
    first: dict[str, Mirror] = {}
    for mirror in found:
        first.setdefault(mirror.uri, mirror)
    return list(first.values())


def _host_release(os_release: Path) -> str:
    """The host's code name if the host is a Debian; a derivative's archive is another."""
    try:
        text = os_release.read_text("utf-8", "replace")
    except OSError:
        return ""
    fields = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
    if fields.get("ID", "").strip("\"'") != "debian":
        return ""
    return fields.get("VERSION_CODENAME", "").strip("\"'")


def candidates(
    deb: Deb,
    suite: Suite,
    environ: Mapping[str, str] | None = None,
    apt: Path = APT_DIR,
    os_release: Path = OS_RELEASE,
) -> list[str]:
    """URLs to try for a locked package: the machine's mirrors, then archives of snapshots.

    A mirror keeps only what is current, so an old lock needs a snapshot of `suite.date`.
    Raises BadInput("fetch.bad-snapshot") for a template that is none.
    """
    environ = os.environ if environ is None else environ
    path = quote(deb.path, safe="/+~:")
    bases = [mirror.uri for mirror in mirrors(deb.suite, environ, apt, os_release)]
    archive = "debian-security" if deb.suite.endswith(_SECURITY) else "debian"
    for template in environ.get("KILN_DEBIAN_SNAPSHOT", "").split():
        # Not str.format: a template comes from outside and may name no attributes.
        base = template.replace("{date}", suite.date).replace("{archive}", archive)
        if "{date}" not in template or "{" in base or urlsplit(base).scheme not in SCHEMES:
            raise BadInput(
                "fetch.bad-snapshot",
                f"{template!r} is no template of an archive of snapshots",
                where="KILN_DEBIAN_SNAPSHOT",
                why="it has to be a URI with {date} in it, and may have {archive}",
                fix="write for example https://snapshot.example/archive/{archive}/{date}",
            )
        bases.append(base.rstrip("/"))
    return [f"{base}/{path}" for base in bases]
