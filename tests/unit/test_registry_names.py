"""Names of repositories, tags and digests: what is taken, what is refused, what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.errors import BadInput
from kiln.registry.names import Folder, Repository, check_reference, is_loopback, parse_name

HEX = "a" * 64


@pytest.mark.parametrize(
    ("text", "base", "name", "tag"),
    [
        ("registry.example/team/kiln:v1", "https://registry.example", "team/kiln", "v1"),
        ("registry.example:5000/kiln", "https://registry.example:5000", "kiln", ""),
        ("localhost:5000/kiln:a.b_c-D", "http://localhost:5000", "kiln", "a.b_c-D"),
        ("127.0.0.1:5000/kiln", "http://127.0.0.1:5000", "kiln", ""),
        ("https://localhost:5000/kiln", "https://localhost:5000", "kiln", ""),
        ("http://registry.example/kiln:x", "http://registry.example", "kiln", "x"),
        ("docker.io/vllm/vllm-openai:v1", "https://registry-1.docker.io", "vllm/vllm-openai", "v1"),
        ("docker.io/debian", "https://registry-1.docker.io", "library/debian", ""),
    ],
)
def test_repositories(text: str, base: str, name: str, tag: str) -> None:
    found = parse_name(text)
    assert isinstance(found.place, Repository)
    assert (found.place.base, found.place.name, found.tag) == (base, name, tag)
    assert str(found) == text, "a name is shown as it was written"


def test_layout_folders(tmp_path: Path) -> None:
    assert parse_name(f"oci:{tmp_path}/out:v1").place == Folder(tmp_path / "out")
    assert parse_name(f"oci:{tmp_path}/out:v1").tag == "v1"
    assert parse_name(f"oci:{tmp_path}/a:b/out").place == Folder(tmp_path / "a:b" / "out")
    assert parse_name(f"oci:{tmp_path}/out@sha256:{HEX}").digest == f"sha256:{HEX}"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("kiln", "registry.bad-name"),
        ("team/kiln:v1", "registry.bad-name"),
        ("registry.example/Team/kiln", "registry.bad-name"),
        ("registry.example/../v2/x", "registry.bad-name"),
        ("registry.example/a//b", "registry.bad-name"),
        ("registry.example/kiln?x=1", "registry.bad-name"),
        ("registry.example/kiln#x", "registry.bad-name"),
        ("registry.example/kiln\n", "registry.bad-name"),
        ("registry.example/kiln:v1\n", "registry.bad-tag"),
        ("registry.example/kiln/", "registry.bad-name"),
        ("registry.example:99999/kiln", "registry.bad-name"),
        ("registry.example/kiln:", "registry.bad-name"),
        ("ftp://registry.example/kiln", "registry.bad-name"),
        ("registry.example/kiln:.v1", "registry.bad-tag"),
        ("registry.example/kiln:" + "x" * 129, "registry.bad-tag"),
        ("registry.example/kiln:a b", "registry.bad-tag"),
        (f"registry.example/kiln@sha512:{HEX}", "registry.bad-digest"),
        (f"registry.example/kiln@sha256:{HEX[1:]}", "registry.bad-digest"),
        (f"registry.example/kiln@sha256:{HEX.upper()}", "registry.bad-digest"),
        ("oci:", "registry.bad-name"),
        ("oci:a\0b", "registry.bad-name"),
        ("", "registry.bad-name"),
    ],
)
def test_refused(text: str, code: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_name(text)
    assert caught.value.code == code
    assert caught.value.exit_code == 2


def test_a_password_in_a_name_is_not_shown() -> None:
    with pytest.raises(BadInput) as caught:
        parse_name("https://kiln:s3cret@registry.example/kiln")
    assert "s3cret" not in str(caught.value)


def test_references() -> None:
    assert check_reference("v1") == "v1"
    assert check_reference(f"sha256:{HEX}") == f"sha256:{HEX}"
    for wrong in ("../v1", "sha256:abc", "v1/../x", "v1?x", ""):
        with pytest.raises(BadInput):
            check_reference(wrong)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("127.8.9.1:80", True),
        ("[::1]:80", True),
        ("localhost.example", False),
        ("127.0.0.1.example:80", False),
        ("10.0.0.1", False),
        ("registry.example:5000", False),
    ],
)
def test_loopback_is_known_by_name_alone(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
