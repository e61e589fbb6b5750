"""A series with renames, modes and links in a whole image: built, locked, unpacked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.errors import KilnError
from kiln.image.build import Built, build_pin
from kiln.image.read import read_image
from kiln.lock.file import read_lock
from kiln.pins.load import load_project
from kiln.progress import Silent
from kiln.resolve.lock import lock_pin
from kiln.run.rootfs import image_root
from kiln.store import Store
from tests.helpers.patching import link, rename
from tests.helpers.small import Small, make_small

SITE = "usr/local/lib/python3.11/dist-packages"
RUN = b"diff --git a/vllm/__init__.py b/vllm/__init__.py\nold mode 100644\nnew mode 100755\n"
DOCS = b"--- a/docs/x.md\n+++ b/docs/x.md\n@@ -1 +1 @@\n-a\n+b\n"
MOVES = DOCS + RUN + rename("vllm/hello.py", "vllm/hallo.py") + link("vllm/hi.py", b"hallo.py")
RULES = """\
counters: {turned: a test, again: a test}
unproven: this is a test
leave_out: ["docs/*.md"]
retire_when: [{file: vllm/hello.py, contains: "%s"}]
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    small = make_small(tmp_path)
    for name, value in small.environment().items():
        if name.startswith(("PIP_", "KILN_")):
            monkeypatch.setenv(name, value)
    (small.root / "patches/greeting/1.0.0.patch").write_bytes(MOVES)
    rules(small, "not there")
    lock_pin(load_project(small.root), None, Store(small.store), Silent())
    return small


def rules(small: Small, marker: str) -> None:
    path = small.root / "patches/greeting/patch.yaml"
    text = path.read_text().partition("counters:")[0]
    path.write_text(text + RULES % marker)


def build(small: Small, locked: bool = False) -> Built:
    return build_pin(load_project(small.root), None, Store(small.store), Silent(), locked=locked)


def test_the_image_is_what_the_series_says(small: Small) -> None:
    built = build(small)
    store = Store(small.store)
    root = image_root(store, read_image(store, built.manifest.sha256), Silent())
    vllm = root / SITE / "vllm"
    assert sorted(path.name for path in vllm.iterdir()) == [
        "__init__.py", "data.bin", "hallo.py", "hi.py",
    ]  # fmt: skip
    assert (vllm / "hi.py").is_symlink()
    assert b"Says hello" in (vllm / "hi.py").read_bytes()
    assert (vllm / "__init__.py").stat().st_mode & 0o777 == 0o755
    record = next((root / SITE).glob("vllm-*.dist-info/RECORD")).read_text()
    assert "vllm/hello.py" not in record
    assert "vllm/hallo.py" in record

    manifest = json.loads((root / "etc/kiln/manifest.json").read_bytes())
    assert manifest["schema"] == 2
    (patch,) = manifest["patches"]
    assert (patch["id"], patch["counters"]) == ("greeting", ["again", "turned"])
    assert manifest["files"].keys() == {f"/{SITE}/vllm/{n}" for n in ("__init__.py", "hallo.py")}


def test_the_lock_holds_it_and_nothing_is_done_twice(small: Small) -> None:
    build(small)
    path = small.root / "images/locks/small.lock"
    local = read_lock(path).local
    assert local is not None
    (patch,) = local.patches
    assert patch.left_out == ("docs/x.md",)
    assert patch.counters == ("again", "turned")
    assert {file.path: file.mode for file in patch.files} == {
        "vllm/__init__.py": "100755",
        "vllm/hallo.py": "",
        "vllm/hello.py": "",
        "vllm/hi.py": "120000",
    }
    before = path.read_bytes()
    assert build(small, locked=True).ran == 0
    assert path.read_bytes() == before


def test_a_rule_is_looked_at_again_and_changes_no_image(small: Small) -> None:
    first = build(small)
    rules(small, "not there either")
    with pytest.raises(KilnError) as caught:
        build(small, locked=True)
    assert caught.value.code == "lock.local-changed"
    assert "patches.greeting.rules" in caught.value.why
    again = build(small)
    assert (again.manifest, again.identity) == (first.manifest, first.identity)
    rules(small, "Says hello")
    with pytest.raises(KilnError) as caught:
        build(small)
    assert caught.value.code == "patch.retired"
    assert "vllm/hello.py:1 " in caught.value.why
