"""A small pin that builds in a second: three tiny wheels, one patch, a whole project.

No interpreter and no Debian packages, hence no sandbox: what is left is everything
else, with real wheels, a real lock and real layers. Golden files, kill loops, races
and faults use it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

PINS = """\
default: small
pins:
  small:
    recipe: tiny
    vllm: {version: 1.0.0+tiny, wheel: tiny-vllm==1.0.0, relabel: vllm==1.0.0+tiny}
    python: "3.11"
    torch: {version: "2.0"}
    patches: [greeting]
"""

RECIPE = """\
title: a tiny image for tests
python:
  interpreter: /usr/bin/python3.11
  site: /usr/local/lib/python3.11/dist-packages
  scripts: /usr/local/bin
wheels:
  layers:
    torch: [torch]
runtime:
  entrypoint: [vllm, serve]
  user: "1000:0"
  cache: /var/cache/vllm
  env: {LANG: C.UTF-8}
"""

HELLO = """\
\"\"\"Says hello.\"\"\"


def hello() -> str:
    return "hello"
"""

PATCH = """\
title: Greet by name
why: a test needs one changed line
origin: own
versions:
  - {range: "==1.0.0+tiny", file: 1.0.0.patch}
"""

# A context line that is empty still begins with its blank.
DIFF = "\n".join(
    [
        "--- a/vllm/hello.py",
        "+++ b/vllm/hello.py",
        "@@ -2,4 +2,4 @@",
        " ",
        " ",
        " def hello() -> str:",
        '-    return "hello"',
        '+    return "hello, patched"',
        "",
    ]
)


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str | bytes],
    requires: tuple[str, ...] = (),
    scripts: str = "",
) -> Path:
    """Write a valid pure wheel; returns its path.

    Stored, not deflated: golden files hold its hash, and zlib differs between Pythons.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    members = {
        path: data.encode() if isinstance(data, str) else data for path, data in files.items()
    }
    members[f"{info}/METADATA"] = "\n".join(
        [*head, *(f"Requires-Dist: {r}" for r in requires), ""]
    ).encode()
    members[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    if scripts:
        members[f"{info}/entry_points.txt"] = f"[console_scripts]\n{scripts}\n".encode()
    rows = []
    for path, data in members.items():
        sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={sha},{len(data)}")
    members[f"{info}/RECORD"] = ("\n".join([*rows, f"{info}/RECORD,,"]) + "\n").encode()
    target = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, data in members.items():
            item = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            item.external_attr = 0o100644 << 16
            archive.writestr(item, data)
    return target


@dataclass(frozen=True)
class Small:
    """A project folder and the folder of wheels that it resolves from."""

    root: Path
    wheels: Path
    store: Path

    def environment(self, **extra: str) -> dict[str, str]:
        """The environment to run kiln in: this store, these wheels, and no index."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_", "KILN_"))}
        return kept | {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_NO_INDEX": "1",
            "KILN_STORE": str(self.store),
            "PYTHONPATH": str(ROOT),
            **extra,
        }

    def kiln(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run `kiln ARGUMENTS` in the project, as a user would."""
        return subprocess.run(
            [sys.executable, "-m", "kiln", *arguments],
            cwd=self.root,
            env=self.environment(**extra),
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )


def make_small(folder: Path) -> Small:
    """A fresh small project below a folder, without a lock."""
    small = Small(folder / "project", folder / "wheels", folder / "store")
    small.wheels.mkdir(parents=True)
    vllm: dict[str, str | bytes] = {
        "vllm/__init__.py": "",
        "vllm/hello.py": HELLO,
        "vllm/data.bin": bytes(range(256)) * 99,
    }
    make_wheel(
        small.wheels, "tiny-vllm", "1.0.0", vllm, ("torch", "idle>=1"), "vllm = vllm.hello:hello"
    )
    make_wheel(small.wheels, "torch", "2.0", {"torch/__init__.py": "x = 1\n" * 1000})
    make_wheel(small.wheels, "idle", "1.1", {"idle/__init__.py": "", "idle/a.py": "a = 1\n"})
    files = {
        "pins.yaml": PINS,
        "images/tiny.yaml": RECIPE,
        "patches/greeting/patch.yaml": PATCH,
        "patches/greeting/1.0.0.patch": DIFF,
    }
    for name, text in files.items():
        path = small.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (small.root / "images" / "locks").mkdir()
    return small
