"""A small project whose pins are two versions of a tiny vLLM, to try `kiln patch` on.

The sources are folders; the files are long enough for hunks to stand apart. Version 2.0.0
has lines added at the top of engine.py (offsets), another text around one place of
config.py (a conflict), the parser in another folder (a move), and what `merged` does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from kiln.authoring.edit import Edited, edit
from kiln.authoring.save import Saved, save
from kiln.authoring.work import Work, read_work
from kiln.drift.origin import FolderSource
from kiln.pins.load import load_project
from kiln.pins.project import Project
from kiln.progress import Silent

ROOT = Path(__file__).parents[2]

PINS = """\
default: v1
pins:
  # the old one
  v1:
    recipe: tiny
    vllm: {version: 1.0.0, wheel: tiny-vllm==1.0.0}
    python: "3.11"
    torch: {version: "2.0"}
    patches: [base, engine, config]  # in this order
  v2:
    recipe: tiny
    vllm: {version: 2.0.0, wheel: tiny-vllm==2.0.0}
    python: "3.11"
    torch: {version: "2.0"}
    patches:
      # first
      - base
      - engine
      - config
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


def numbered(name: str, count: int = 40) -> str:
    """A Python file of many lines, each unlike the others."""
    return "".join(f"{name}_{number} = {number}\n" for number in range(1, count + 1))


def sources() -> dict[str, dict[str, str | bytes]]:
    """The files of both versions."""
    parser = numbered("parser")
    one: dict[str, str | bytes] = {
        "vllm/__init__.py": "",
        "vllm/_version.py": "__version__ = '1.0.0'\n",
        "vllm/engine.py": numbered("engine"),
        "vllm/config.py": numbered("config"),
        "vllm/other.py": numbered("other"),
        "vllm/entry/parser.py": parser,
        "vllm/entry/__init__.py": "",
        "vllm/data.so": bytes(range(256)) * 9,
        "vllm/odd.txt": "latin \xe9\r\nends\r\n".encode("latin-1"),
    }
    two = {
        **one,
        "vllm/_version.py": "__version__ = '2.0.0'\n",
        "vllm/engine.py": "import os\nimport sys\n\n" + numbered("engine"),
        "vllm/config.py": numbered("config").replace("config_21 = 21", "config_21 = [21]"),
        "vllm/parsers/__init__.py": "",
        "vllm/parsers/parser.py": parser,
    }
    del two["vllm/entry/parser.py"]
    return {"1.0.0": one, "2.0.0": two}


def patch_yaml(title: str, versions: str = "1.0.0", more: str = "") -> str:
    """A patch.yaml for some versions, in flow style, with a comment."""
    rows = "".join(f'  - {{range: "=={v}", file: {v}.patch}}\n' for v in versions.split())
    return f"title: {title}\nwhy: a test\norigin: own\n# files\nversions:\n{rows}{more}"


HEAD = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: Kiln <kiln@localhost>
Date: Sat, 1 Jan 2000 00:00:00 +0000
Subject: {id}: {title}

"""


def change(path: str, old: str, line: int, new: str, context: int = 3) -> str:
    """A unified diff that replaces one line (from 1) of a text."""
    lines = old.splitlines()
    above = lines[max(0, line - 1 - context) : line - 1]
    below = lines[line : line + context]
    start, count = line - len(above), len(above) + 1 + len(below)
    body = [*(f" {text}" for text in above), f"-{lines[line - 1]}", f"+{new}"]
    body += [f" {text}" for text in below]
    head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
    return head + f"@@ -{start},{count} +{start},{count} @@\n" + "\n".join(body) + "\n"


def added(path: str, text: str) -> str:
    """A unified diff that adds a file."""
    lines = text.splitlines()
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return head + f"@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)


@dataclass(frozen=True)
class Bench:
    """A project, and the sources of both of its versions."""

    root: Path
    src: Path

    @property
    def project(self) -> Project:
        """The project, read now."""
        return load_project(self.root)

    def source(self, version: str) -> FolderSource:
        """A version's files."""
        return FolderSource(self.src / version)

    def write(self, path: str, text: str | bytes) -> Path:
        """A file of the project."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode() if isinstance(text, str) else text)
        return target

    def read(self, path: str) -> str:
        """A file of the project."""
        return (self.root / path).read_bytes().decode()

    def patch(self, name: str, diff: str, versions: str = "1.0.0", more: str = "") -> None:
        """A patch with one file for each version, all of them the same."""
        self.write(f"patches/{name}/patch.yaml", patch_yaml(f"do {name}", versions, more))
        for version in versions.split():
            self.write(
                f"patches/{name}/{version}.patch", HEAD.format(id=name, title=f"do {name}") + diff
            )

    def series(self, pin: str, *names: str) -> None:
        """Give a pin another series, in pins.yaml."""
        head, found, tail = self.read("pins.yaml").partition(f"  {pin}:\n")
        line = f"patches: [{', '.join(names)}]\n"
        tail = re.sub(
            r"patches:.*?(?=^  \S|\Z)", line, tail, count=1, flags=re.DOTALL | re.MULTILINE
        )
        self.write("pins.yaml", head + found + tail)

    def files(self) -> dict[str, bytes]:
        """Everything in patches/, by path."""
        found = sorted(path for path in (self.root / "patches").rglob("*") if path.is_file())
        return {path.relative_to(self.root).as_posix(): path.read_bytes() for path in found}

    def edit(self, pin: str = "v1", **options: bool) -> Edited:
        """The pin's work tree."""
        version = {"v1": "1.0.0", "v2": "2.0.0"}[pin]
        return edit(self.project, pin, lambda: self.source(version), Silent(), None, **options)

    def work(self, pin: str = "v1") -> Work:
        """The pin's work tree, which is there."""
        return read_work(self.root / ".work" / pin)

    def save(self, pin: str = "v1", *, overwrite: bool = False, write_pin: bool = False) -> Saved:
        """Save the pin's work tree."""
        return save(self.work(pin), overwrite=overwrite, write_pin=write_pin)

    def environment(self, **extra: str) -> dict[str, str]:
        """For programs that run in a work tree, its hooks among them."""
        return {**os.environ, "PYTHONPATH": str(ROOT), **extra}

    def git(self, *arguments: str, pin: str = "v1", **extra: str) -> str:
        """Plain git in the work tree, as a user runs it, with hooks; returns stdout + stderr."""
        done = self.attempt("git", *arguments, pin=pin, **extra)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def attempt(
        self, *command: str, pin: str = "v1", **extra: str
    ) -> subprocess.CompletedProcess[str]:
        """Run something in the work tree."""
        return subprocess.run(
            command,
            cwd=self.root / ".work" / pin,
            env=self.environment(**extra),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
            check=False,
        )

    def kiln(
        self, *arguments: str, cwd: Path | None = None, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `kiln ARGUMENTS` in the project, as a user would."""
        return subprocess.run(
            [sys.executable, "-m", "kiln", *arguments],
            cwd=cwd or self.root,
            env=self.environment(**extra),
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )

    def replace(self, path: str, old: str, new: str, pin: str = "v1") -> None:
        """Edit a file of the work tree."""
        target = self.root / ".work" / pin / path
        text = target.read_bytes().decode()
        assert old in text
        target.write_bytes(text.replace(old, new, 1).encode())

    def commits(self, pin: str = "v1") -> list[str]:
        """The subjects of the series, oldest first."""
        behind = f"{self.work(pin).state.base}..HEAD"
        out = self.git("log", "--reverse", "--format=%s", behind, pin=pin)
        return out.splitlines()


def make_bench(folder: Path) -> Bench:
    """A project with three patches of version 1.0.0: `base` adds a file, `engine` changes two
    places of engine.py, `config` line 20 of config.py."""
    bench = Bench(folder / "project", folder / "src")
    for version, files in sources().items():
        for path, data in files.items():
            target = bench.src / version / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data.encode() if isinstance(data, str) else data)
    bench.write("pins.yaml", PINS)
    bench.write("images/tiny.yaml", RECIPE)
    (bench.root / "images" / "locks").mkdir()
    bench.patch("base", added("vllm/_base.py", "x = 1\ny = 2\n"))
    bench.patch("engine", change("vllm/engine.py", numbered("engine"), 20, "engine_20 = 'new'"))
    bench.patch("config", change("vllm/config.py", numbered("config"), 20, "config_20 = 'new'"))
    return bench
