"""uv as the resolver of wheels: what it is asked, in an environment of our making.

`uv pip compile --no-build` never runs foreign code. It reads no configuration of the
machine (--no-config) and no UV_ or PIP_ variable but those passed here; where to look
comes from the user's settings (kiln/fetch/settings.py), what to choose from the caller
alone. Its answer is a pylock.toml (PEP 751). URLs with credentials go to it by the
environment, never on the command line, which other users of the machine can read.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.pylock import Package, Pylock, PylockValidationError

from kiln.errors import BadInput, CannotHere, KilnError, Unavailable
from kiln.fetch.settings import Settings
from kiln.fetch.url import split_credentials
from kiln.lock.model import Wheel
from kiln.progress import Reporter
from kiln.resolve.target import Target

TIMEOUT = 900  # seconds for one resolution

# What of the environment says how to reach the network, and where uv may keep its cache.
_PASSED = (
    "HOME", "NETRC", "XDG_CACHE_HOME", "UV_CACHE_DIR", "UV_HTTP_RETRIES",
    "SSL_CERT_DIR", "SSL_CLIENT_CERT",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "http_proxy", "https_proxy", "all_proxy", "no_proxy",
)  # fmt: skip


@dataclass(frozen=True)
class Question:
    """What is to be resolved.

    sources: package -> URL of the one index that it may come from. keep: wheels whose
    versions stay where they can. upgrade: packages whose versions need not; True for all.
    """

    requirements: Sequence[str]
    constraints: Sequence[str]
    exclude: Sequence[str]
    target: Target
    sources: Mapping[str, str]
    keep: Sequence[Wheel]
    upgrade: bool | Sequence[str]


def ask(question: Question, settings: Settings, reporter: Reporter) -> Sequence[Package]:
    """uv's answer: each package with the wheels of one version.

    Raises BadInput "resolve.no-solution", "resolve.no-wheel", "resolve.failed";
    Unavailable "resolve.unreachable"; CannotHere "resolve.no-uv".
    """
    with tempfile.TemporaryDirectory(prefix="kiln-uv-") as name:
        directory = Path(name)
        command = _write(question, directory)
        if settings.default is None:  # uv reads no variable for this
            command.append("--no-index")
        count = len(question.requirements)
        with reporter.task(f"resolve {count} requirements"):
            _run(command, _environment(settings), directory)
        return _read(directory / "pylock.toml")


def _write(question: Question, directory: Path) -> list[str]:
    """Put uv's input files into the folder; returns its command line."""
    (directory / "pyproject.toml").write_text(_pyproject(question), "utf-8")
    (directory / "constraints.txt").write_text(_lines(question.constraints), "utf-8")
    (directory / "excludes.txt").write_text(_lines(question.exclude), "utf-8")
    # An output that is there already is what uv prefers to keep.
    if question.keep and question.upgrade is not True:
        (directory / "pylock.toml").write_text(_kept(question.keep), "utf-8")
    command = [
        *("pip", "compile", "pyproject.toml", "--format", "pylock.toml"),
        *("--output-file", "pylock.toml", "--constraints", "constraints.txt"),
        *("--excludes", "excludes.txt", "--python", sys.executable),
        *("--python-version", question.target.python),
        *("--python-platform", question.target.uv_platform),
        *("--no-build", "--generate-hashes", "--no-config", "--no-header", "--quiet"),
        # As pip does: an extra index adds candidates, and does not hide newer ones. Else
        # a partial mirror on one machine would choose other versions than elsewhere.
        *("--index-strategy", "unsafe-best-match", "--keyring-provider", "disabled"),
    ]
    if not isinstance(question.upgrade, bool):
        for package in question.upgrade:
            command += ["--upgrade-package", package]
    return command


def _lines(items: Sequence[str]) -> str:
    return "".join(f"{item}\n" for item in items)


def _quoted(value: str) -> str:
    """A TOML string: JSON's is one where nothing beyond ASCII is escaped."""
    return json.dumps(value, ensure_ascii=False)


def _pyproject(question: Question) -> str:
    lines = ["[project]", 'name = "kiln-closure"', 'version = "0"']
    lines.append(f"requires-python = {_quoted(f'=={question.target.python}.*')}")
    lines.append(f"dependencies = [{', '.join(map(_quoted, question.requirements))}]")
    names = {url: f"index-{i}" for i, url in enumerate(sorted(set(question.sources.values())))}
    for url, name in names.items():
        lines += ["[[tool.uv.index]]", f"name = {_quoted(name)}", f"url = {_quoted(url)}"]
        lines.append("explicit = true")
    if question.sources:
        lines.append("[tool.uv.sources]")
    for package, url in sorted(question.sources.items()):
        lines.append(f"{_quoted(package)} = {{ index = {_quoted(names[url])} }}")
    return _lines(lines)


def _kept(wheels: Sequence[Wheel]) -> str:
    lines = ['lock-version = "1.0"', 'created-by = "kiln"']
    for wheel in wheels:
        lines += ["[[packages]]", f"name = {_quoted(wheel.name)}"]
        lines.append(f"version = {_quoted(wheel.version)}")
    return _lines(lines)


def _environment(settings: Settings) -> dict[str, str]:
    environment = {name: os.environ[name] for name in _PASSED if os.environ.get(name)}
    environment |= {"NO_COLOR": "1", "UV_PYTHON_DOWNLOADS": "never"}
    environment["UV_HTTP_TIMEOUT"] = str(int(settings.access.read))
    if settings.default is not None:
        environment["UV_DEFAULT_INDEX"] = settings.with_credentials(settings.default.url)
    if settings.extra:
        places = (settings.with_credentials(place.url) for place in settings.extra)
        environment["UV_INDEX"] = " ".join(places)
    if settings.find_links:
        places = (settings.with_credentials(place.url) for place in settings.find_links)
        environment["UV_FIND_LINKS"] = ",".join(places)
    if ca := settings.access.ca:
        environment["SSL_CERT_DIR" if Path(ca).is_dir() else "SSL_CERT_FILE"] = ca
    if proxy := settings.access.proxy:
        environment |= {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy}
    return environment


def _run(command: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
    from uv import find_uv_bin

    try:
        done = subprocess.run(
            [find_uv_bin(), *command],
            env=dict(environment),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
        )
    except FileNotFoundError as error:
        raise CannotHere(
            "resolve.no-uv",
            "uv is not there",
            why=str(error),
            fix="install Kiln's `uv` anew",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            "resolve.unreachable", f"uv had no answer after {TIMEOUT} s", fix="try again"
        ) from error
    if done.returncode != 0:
        raise _failure(_redacted(done.stderr.strip()))


def _redacted(text: str) -> str:
    """uv hides passwords itself; this holds where it forgets to."""
    return re.sub(r"\b[a-z+]+://[^\s/@]+@[^\s]*", lambda m: split_credentials(m[0])[0], text)


def _failure(text: str) -> KilnError:
    """What uv's explanation is, as an error: it is the best that there is."""
    why = text.removeprefix("error: ")
    if "No solution found" in text:
        if re.search(r"no usable wheels|no wheels with a matching", text):
            return BadInput(
                "resolve.no-wheel",
                "a package has no wheel that fits, and sdists are not built here",
                why=why,
                fix="exclude it in the recipe, build it as a component (build/), or choose "
                "another version of what asks for it",
            )
        return BadInput(
            "resolve.no-solution",
            "no set of versions fits the requirements",
            why=why,
            fix="change the requirements or constraints of the pin or its recipe",
        )
    if re.search(r"Failed to fetch|error sending request|Request failed|timed out", text):
        return Unavailable(
            "resolve.unreachable",
            "an index cannot be reached",
            why=why,
            fix="check the network and the index URLs (`kiln doctor` shows them)",
        )
    return BadInput(
        "resolve.failed", "uv cannot resolve this", why=why, fix="correct what uv complains about"
    )


def _read(path: Path) -> Sequence[Package]:
    try:
        lock = Pylock.from_dict(tomllib.loads(path.read_text("utf-8")))
    except (OSError, tomllib.TOMLDecodeError, PylockValidationError) as error:
        raise BadInput(
            "resolve.failed",
            "uv's answer cannot be read",
            why=str(error),
            fix="report this with the version of uv that `kiln doctor` shows",
        ) from error
    return lock.packages
