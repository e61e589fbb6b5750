"""Forms of single values: what a version, a digest or a name looks like.

Each form is a type for the models (kiln/pins/model.py). It carries a pattern, which
also stands in the JSON schema for editors, a sentence that says what is wanted, and
where it helps a function that explains a value that does not fit. Patterns are kept
to what Python and ECMA 262 (JSON schema) read alike, and are compiled when used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta


def _no_explanation(_: str) -> str:
    return ""


@dataclass(frozen=True)
class Form:
    """What a text must look like. wanted: for people. explain: a refused text -> a hint, or ""."""

    pattern: str
    wanted: str
    explain: Callable[[str], str] = _no_explanation

    def fits(self, text: str) -> bool:
        """Whether the whole text has this form."""
        return re.fullmatch(self.pattern, text) is not None


def _form(pattern: str, wanted: str, explain: Callable[[str], str] = _no_explanation) -> Meta:
    return _meta(Form(pattern, wanted, explain))


def _meta(form: Form) -> Meta:
    schema: dict[str, object] = {"pattern": form.pattern}
    return Meta(description=form.wanted, extra_json_schema=schema, extra={"form": form})


# ---- explanations ----------------------------------------------------------------------


def _is_hex(text: str, length: int) -> bool:
    return re.fullmatch(f"[0-9a-fA-F]{{{length}}}", text) is not None


def _explain_digest(text: str) -> str:
    bare = text.removeprefix("sha256:")
    if _is_hex(bare, 40):
        return "40 hex digits are a git commit, not the digest of an image"
    if bare == text and _is_hex(bare, 64):
        return f"write sha256:{text}"
    if _is_hex(bare, 64):
        return "write the hex digits in lower case"
    if "@" in text or ":" in bare:
        return "only the digest stands here; repository and tag have keys of their own"
    return ""


def _explain_commit(text: str) -> str:
    bare = text.removeprefix("sha256:")
    if _is_hex(bare, 64):
        return "64 hex digits are the digest of an image, not a git commit"
    if re.fullmatch("[0-9a-f]{5,39}", text):
        return "a short hash can become ambiguous; Kiln derives the short one from the full one"
    if _is_hex(text, 40):
        return "write the hex digits in lower case"
    return ""


def _explain_version(text: str) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        normal = str(Version(text))
    except InvalidVersion:
        return "this is no version by PEP 440"
    return f"write the normal form: {normal}" if normal != text else "it is too long"


def _explain_exact(text: str) -> str:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(text)
    except InvalidRequirement as error:
        return f"this is no requirement by PEP 508: {str(error).splitlines()[0]}"
    if wanted.url or wanted.extras or wanted.marker:
        return "URLs, extras and markers have no place here"
    clauses = list(wanted.specifier)
    if len(clauses) != 1 or clauses[0].operator != "==" or "*" in clauses[0].version:
        return "a pin names one version, with =="
    return f"write it plainly: {wanted.name}=={_normal(clauses[0].version)}"


def _normal(version: str) -> str:
    from packaging.version import Version

    return str(Version(version))


def _explain_repository(text: str) -> str:
    if text.startswith(("http://", "https://")):
        return "leave out the scheme"
    if "@" in text:
        return "leave out the digest; it has a key of its own"
    if ":" in text.rsplit("/", 1)[-1]:
        return "leave out the tag; it has a key of its own, and is for people only"
    if text != text.lower():
        return "repository names are in lower case"
    first = text.split("/", 1)[0]
    if "." not in first and ":" not in first and first != "localhost":
        return f"name the registry too: docker.io/{text}"
    return ""


def _explain_url(text: str) -> str:
    if re.match(r"https?://[^/]*@", text):
        return "keep user names and passwords out of the pins file; use netrc or uv's settings"
    return ""


# ---- patterns --------------------------------------------------------------------------

_NUMBER = "(0|[1-9][0-9]*)"
_LOCAL = "(0|[1-9][0-9]*|[0-9]*[a-z][a-z0-9]*)"
# PEP 440, appendix B (the normal form), with the local part in its normal form too.
_VERSION = (
    rf"([1-9][0-9]*!)?{_NUMBER}(\.{_NUMBER})*((a|b|rc){_NUMBER})?"
    rf"(\.post{_NUMBER})?(\.dev{_NUMBER})?(\+{_LOCAL}(\.{_LOCAL})*)?"
)
_PROJECT = "[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_SHORT = "(?=.{1,200}$)"
# github.com/distribution/reference: a host (with a dot, a port, or localhost), then a path.
_HOST = r"(localhost|[a-z0-9-]+(\.[a-z0-9-]+)+|[a-z0-9-]+(?=:))(:[0-9]{1,5})?"
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"

# ---- the forms -------------------------------------------------------------------------

# By itself too: for names that come from elsewhere than a file.
NAME = Form(
    "^[a-z0-9][a-z0-9._-]{0,63}$",
    "a name: lower-case letters, digits, '.', '_' and '-', up to 64 of them",
)
Name = Annotated[str, _meta(NAME)]
Text = Annotated[str, _form(r"^[^\u0000-\u001f]*[^\u0000-\u0020]$", "one line of text, not empty")]
Version = Annotated[
    str,
    _form(
        f"^{_SHORT}{_VERSION}$",
        "a version in the normal form of PEP 440, as 0.23.1rc1.dev748+g2dfaae752",
        _explain_version,
    ),
]
Exact = Annotated[
    str,
    _form(
        f"^{_SHORT}{_PROJECT}=={_VERSION}$",
        "a project and one version of it, as vllm==0.23.0",
        _explain_exact,
    ),
]
# Neither options ("--index-url") nor URLs nor markers fit: they would choose sources.
Requirement = Annotated[
    str,
    _form(
        r"^[A-Za-z0-9][A-Za-z0-9._\[\], <>=!~*+-]{0,199}$",
        "a project, with bounds where needed, as protobuf>=6; no URL, option or marker",
    ),
]
Project = Annotated[str, _form(f"^{_SHORT}{_PROJECT}$", "the name of a Python project")]
Commit = Annotated[
    str, _form("^[0-9a-f]{40}$", "a full git commit: 40 hex digits", _explain_commit)
]
ImageDigest = Annotated[
    str,
    _form("^sha256:[0-9a-f]{64}$", "a digest: sha256: and 64 hex digits", _explain_digest),
]
Repository = Annotated[
    str,
    _form(
        f"^{_SHORT}{_HOST}(/{_PART})+$",
        "registry and repository without tag or digest, as docker.io/vllm/vllm-openai",
        _explain_repository,
    ),
]
Tag = Annotated[str, _form("^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$", "a tag of an image")]
IndexUrl = Annotated[
    str,
    _form(
        r"^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$",
        "the address of a simple index (PEP 503), without user, query or fragment",
        _explain_url,
    ),
]
PythonSeries = Annotated[str, _form(r"^3\.[0-9]{1,2}$", "a Python series, as 3.11")]
CudaSeries = Annotated[str, _form(r"^[0-9]{2}\.[0-9]$", "a CUDA series, as 13.0")]
AbsolutePath = Annotated[
    str,
    _form(
        r"^/$|^(/(?!\.{1,2}(/|$))[^/\u0000-\u001f]+)+$",
        "an absolute path without '.', '..' or a slash at its end",
    ),
]
FileName = Annotated[
    str, _form("^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$", "the name of a file in the same folder")
]
User = Annotated[str, _form("^[0-9]{1,10}:[0-9]{1,10}$", "uid:gid in digits, as 1000:0")]
Port = Annotated[str, _form("^[0-9]{1,5}/(tcp|udp)$", "port/protocol, as 8000/tcp")]
EnvName = Annotated[str, _form("^[A-Za-z_][A-Za-z0-9_]*$", "the name of an environment variable")]
DebianPackage = Annotated[
    str, _form("^[a-z0-9][a-z0-9+.-]+$", "the name of a Debian package (policy 5.6.1)")
]
ScriptVerdict = Annotated[
    str,
    _form(
        r"^(handled|needless): [^\u0000-\u001f]*[^\u0000-\u0020]$",
        '"handled: how" or "needless: why"',
    ),
]
