"""Names of repositories, tags and digests, as a person writes them: all checked strictly.

    registry.example/team/kiln:v1      a registry, over https; over http on loopback
    http://registry.lan:5000/kiln      over http because the user says so
    oci:PATH[:TAG]                     an OCI layout folder

The grammar is that of the distribution spec; the host has to be named, for nothing is
said about where an image goes when it is left out.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from kiln.canonical import is_sha256
from kiln.errors import BadInput
from kiln.pins.forms import Form
from kiln.pins.forms import Repository as RepositoryForm
from kiln.pins.forms import Tag as TagForm

_LAYOUT = "oci:"
# The one registry whose API answers at another host than its name, and whose short
# names have a part that nobody writes.
_HUB, _HUB_NAMES = "registry-1.docker.io", frozenset({"docker.io", "index.docker.io"})


def _form(kind: object) -> Form:
    form = get_args(kind)[1].extra["form"]
    assert isinstance(form, Form)
    return form


_REPOSITORY, _TAG = _form(RepositoryForm), _form(TagForm)


@dataclass(frozen=True)
class Repository:
    """One repository of a registry. host: with its port, as written; path: without slash."""

    scheme: str
    host: str
    path: str

    def __str__(self) -> str:
        usual = "http" if is_loopback(self.host) else "https"
        prefix = "" if self.scheme == usual else f"{self.scheme}://"
        return f"{prefix}{self.host}/{self.path}"

    @property
    def base(self) -> str:
        """The address of the registry's API, without a slash at its end."""
        return f"{self.scheme}://{_HUB if self.host in _HUB_NAMES else self.host}"

    @property
    def name(self) -> str:
        """The repository's name in that API."""
        hub = self.host in _HUB_NAMES and "/" not in self.path
        return f"library/{self.path}" if hub else self.path


@dataclass(frozen=True)
class Folder:
    """An OCI layout on disk."""

    path: Path

    def __str__(self) -> str:
        return f"{_LAYOUT}{self.path}"


@dataclass(frozen=True)
class Name:
    """A place, and what is meant in it. tag, digest: "" where not given."""

    place: Repository | Folder
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        at = f"@{self.digest}" if self.digest else ""
        return f"{self.place}{f':{self.tag}' if self.tag else ''}{at}"

    @property
    def reference(self) -> str:
        """The digest, or else the tag."""
        return self.digest or self.tag


def parse_name(text: str) -> Name:
    """REPOSITORY[:TAG][@DIGEST] or oci:PATH[:TAG][@DIGEST].

    Raises BadInput "registry.bad-name", "registry.bad-tag", "registry.bad-digest".
    """
    rest, at, digest = text.partition("@")
    if at:
        check_digest(digest)
    if rest.startswith(_LAYOUT):
        return _layout(rest.removeprefix(_LAYOUT), text, digest)
    scheme, split, bare = rest.partition("://")
    if not split:
        scheme, bare = "", rest
    head, colon, tag = bare.rpartition(":")
    if not colon or "/" in tag:
        head, tag = bare, ""
    elif not tag:
        raise _bad_name(text, "there is no tag after its colon")
    if tag:
        check_tag(tag)
    if scheme not in ("", "http", "https"):
        raise _bad_name(text, f"the scheme {scheme!r} is not known")
    if not _REPOSITORY.fits(head):
        raise _bad_name(text, _REPOSITORY.explain(head) or f"wanted: {_REPOSITORY.wanted}")
    host, _, path = head.partition("/")
    port = host.partition(":")[2]
    if port and not 0 < int(port) < 1 << 16:
        raise _bad_name(text, f"there is no port {port}")
    return Name(
        Repository(scheme or ("http" if is_loopback(host) else "https"), host, path), tag, digest
    )


def _layout(rest: str, text: str, digest: str) -> Name:
    path, colon, tag = rest.rpartition(":")
    # A colon may be part of the path: what cannot be a tag is none.
    if not colon or not _TAG.fits(tag):
        path, tag = rest, ""
    if not path or "\0" in path:
        raise _bad_name(text, "there is no folder after `oci:`")
    return Name(Folder(Path(path).expanduser().absolute()), tag, digest)


def check_tag(tag: str) -> str:
    """The tag itself. Raises BadInput("registry.bad-tag")."""
    if not _TAG.fits(tag):
        raise BadInput(
            "registry.bad-tag",
            f"{tag[:200]!r} is no tag",
            fix="a tag has letters, digits, '_', '.' and '-', begins with none of the last two, "
            "and is at most 128 characters long",
        )
    return tag


def check_path(path: str) -> str:
    """A repository's name without host and tag, itself. Raises BadInput("registry.bad-name")."""
    if not _REPOSITORY.fits(f"localhost/{path}"):
        raise _bad_name(path, "wanted: the name of a repository without host, tag and digest")
    return path


def check_digest(digest: str) -> str:
    """The hex digits of a digest. Raises BadInput("registry.bad-digest")."""
    kind, _, found = digest.partition(":")
    if kind != "sha256" or not is_sha256(found):
        raise BadInput(
            "registry.bad-digest",
            f"{digest[:200]!r} is no digest",
            fix="a digest is sha256: and 64 hex digits in lower case",
        )
    return found


def check_reference(reference: str) -> str:
    """A digest or a tag, itself. Raises as `check_digest` and `check_tag` do."""
    if ":" in reference:
        check_digest(reference)
        return reference
    return check_tag(reference)


def is_loopback(host: str) -> bool:
    """Whether host[:port] is this machine by its very name, whatever DNS says."""
    bare = host.rpartition(":")[0] if re.search(r":[0-9]+$", host) else host
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare.strip("[]")).is_loopback
    except ValueError:
        return False


def _bad_name(text: str, why: str) -> BadInput:
    return BadInput(
        "registry.bad-name",
        f"{_without_login(text)!r} names no repository",
        why=why,
        fix="write HOST/NAME:TAG, as registry.example/team/kiln:v1, or oci:FOLDER:TAG",
    )


def _without_login(text: str) -> str:
    """The text as far as it may be shown: what stands before an @ may be a password."""
    return re.sub(r"//[^/]*@", "//***@", text[:300])
