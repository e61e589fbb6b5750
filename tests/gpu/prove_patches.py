"""The patches' proofs on a GPU, with an official vLLM wheel to which the series is applied.

    python3 tests/gpu/prove_patches.py prepare WHEEL VERSION SITE
    python3 tests/gpu/prove_patches.py prove SITE MODEL OUT [--gpus N] [LAUNCH ...]

`prepare` puts a wheel's files into SITE (a folder for PYTHONPATH), applies the series of
the pin of that version, exactly as a build does, and writes /etc/kiln/manifest.json for it.
`prove` starts vLLM once for each launch of the default pin, on the V1 model runner, and
judges with the gates' own code what its counters show; OUT gets the evidence as JSON. The
proofs are those of the patch.yaml files. Ends with 0 if every proof held, 1 if one did not.

This is no gate of an image: it shows that the patches do on a GPU what they say.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kiln.canonical import sha256
from kiln.gate.answers import Told, compare, run_workload
from kiln.gate.ask import Asker
from kiln.gate.counters import read_counters
from kiln.gate.model import LaunchPlan, Work
from kiln.gate.plan import plan
from kiln.gate.proof import Watched, prove
from kiln.lock.model import patch_set_id
from kiln.pins.load import load_project
from kiln.pins.model import Preset
from kiln.pins.patch import read_series
from kiln.run.client import Client
from kiln.run.runner import new_nonce
from kiln.source.patch import patch_wheel
from kiln.source.wheel import Wheel
from kiln.store import Store

ROOT = Path(__file__).parents[2]
MANIFEST = Path("/etc/kiln/manifest.json")
PORT = 8123
PINNED = "v0.32.0-cpu"  # the pin whose launches are started


def prepare(wheel: Path, version: str, site: Path) -> None:
    """A site folder with the patched wheel, and the manifest that its identity reads."""
    project = load_project(ROOT)
    pin = next(p for p in project.pins.pins.values() if p.vllm.version == version)
    opened = Wheel(wheel, wheel.name)
    applied = patch_wheel(opened, read_series(project, pin.patches, version))
    for name in opened.names():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(opened.read(name))
    files: dict[str, str] = {}
    for name, data in applied.files.items():
        assert data is not None, f"{name} would be deleted"
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
        files[str((site / name).resolve())] = sha256(data)
    manifest = {
        "schema": 2,
        "pin": f"{version} on a GPU host",
        "kiln_id": "0" * 64,
        "patch_set": patch_set_id(applied.patches),
        "vllm": {"version": version},
        "patches": [
            {"id": p.id, "sha256": p.sha256, "counters": list(p.counters)} for p in applied.patches
        ],
        "files": files,
        "wheel": {"file": wheel.name, "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()},
    }
    MANIFEST.parent.mkdir(parents=True, exist_ok=True)
    MANIFEST.write_text(json.dumps(manifest, indent=1))


@contextlib.contextmanager
def serving(site: Path, model: Path, launch: LaunchPlan, gpus: int, store: Store) -> Iterator[Any]:
    """A server of one launch, ready; yields (asker, log)."""
    name, log = new_nonce(), Path(tempfile.mkdtemp()) / "log"
    args = [arg.replace("/models/smollm2-135m", str(model)) for arg in launch.args]
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)),
        *("--served-model-name", name, "--port", str(PORT), "--host", "127.0.0.1"),
        *("--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "4"),
        *("--gpu-memory-utilization", "0.3", "--tensor-parallel-size", str(gpus)),
        *args,
    ]
    env = (
        os.environ
        | launch.env
        | {
            "PYTHONPATH": str(site),
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
    )
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out)
        try:
            asker = Asker(Client.url(f"http://127.0.0.1:{PORT}"), store.blobs, name)
            _wait(process, asker, log)
            yield asker, log
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], asker: Asker, log: Path) -> None:
    for _ in range(300):
        with contextlib.suppress(Exception):
            if (
                Asker(asker._client, asker._blobs, asker.model)
                .post("/v1/completions", {"prompt": "Hello", "max_tokens": 1})
                .status
                == 200
            ):
                return
        if process.poll() is not None:
            break
        time.sleep(1)
    raise SystemExit(f"vLLM did not start:\n{log.read_text(errors='replace')[-6000:]}")


def one(
    site: Path, model: Path, launch: LaunchPlan, gpus: int, store: Store, plain: dict[Work, Told]
) -> dict[str, Any]:
    """Start a launch and judge it; what it showed."""
    begin = time.monotonic()
    with serving(site, model, launch, gpus, store) as (asker, log):
        ready = time.monotonic() - begin
        readings, rounds = [read_counters(asker)], []
        for work in launch.works:
            told = run_workload(asker, work)
            readings.append(read_counters(asker))
            rounds.append(Watched(work, told, *readings[-2:]))
        same = {}
        for watched in rounds:
            work = watched.work
            if launch.name == "default":
                plain[work] = watched.told
            elif work in plain and work.temperature == 0:
                problems, said = compare(plain[work], watched.told)
                same[work.workload] = [said, *(p.detail for p in problems)]
        cases, _ = prove(launch, rounds)
        return {
            "launch": launch.name,
            "args": launch.args,
            "env": launch.env,
            "gpus": gpus,
            "ready_seconds": round(ready),
            "classes": readings[-1].classes,
            "before": msgspec.to_builtins(readings[0].counts()),
            "after": msgspec.to_builtins(readings[-1].counts()),
            "problems": [p.detail for r in readings for p in r.problems]
            + [p.detail for w in rounds for p in w.told.problems],
            "same_text": same,
            "cases": [msgspec.to_builtins(case) for case in cases],
            "log_tail": log.read_text(errors="replace")[-600:],
        }


def prove_all(site: Path, model: Path, out: Path, gpus: int, names: list[str]) -> int:
    """Every launch, or those named; the exit code."""
    import torch  # type: ignore[import-not-found]

    project = load_project(ROOT)
    preset: Preset = project.pin(PINNED).presets["default"]
    manifest = json.loads(MANIFEST.read_text())
    known = {patch["id"] for patch in manifest["patches"]}
    store, plain, found = Store(Path(tempfile.mkdtemp()) / "store"), dict[Work, Told](), []
    for launch in plan(project, PINNED, preset).launches:
        if names and launch.name not in (*names, "default"):
            continue
        proofs = {patch: each for patch, each in launch.proofs.items() if patch in known}
        launch = dataclasses.replace(launch, proofs=proofs)
        sys.stdout.write(f"launch {launch.name}\n")
        sys.stdout.flush()
        result = one(site, model, launch, gpus, store, plain)
        found.append(result)
        for case in result["cases"]:
            sys.stdout.write(
                f"  {case['verdict']} {case['id']} {case['detail']} {case['reason']}\n"
            )
        sys.stdout.write(f"  {result['classes']} {result['same_text']} {result['problems']}\n")
        evidence = {
            "vllm": manifest["vllm"]["version"],
            "wheel": manifest["wheel"],
            "patch_set": manifest["patch_set"],
            "patches": manifest["patches"],
            "torch": torch.__version__,
            "gpu": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
            "launches": found,
        }
        out.write_text(json.dumps(evidence, indent=1))
    verdicts = [case["verdict"] for result in found for case in result["cases"]]
    return 0 if verdicts and set(verdicts) == {"pass"} else 1


def main() -> int:
    """See the module's text."""
    words = sys.argv[1:]
    gpus = 1
    if "--gpus" in words:
        at = words.index("--gpus")
        gpus = int(words[at + 1])
        del words[at : at + 2]
    if words[0] == "prepare":
        prepare(Path(words[1]), words[2], Path(words[3]))
        return 0
    return prove_all(Path(words[1]), Path(words[2]), Path(words[3]), gpus, words[4:])


if __name__ == "__main__":
    sys.exit(main())
