"""config.json: what the container may do, and who it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kiln.canonical import Digest
from kiln.errors import BadInput
from kiln.image.read import Image
from kiln.run.runner import Launch, check_launch, new_nonce
from kiln.run.spec import config, user_of

IMAGE = Image(
    manifest=Digest(64 * "a", 1),
    config=Digest(64 * "b", 1),
    layers=(),
    architecture="amd64",
    entrypoint=("vllm", "serve"),
    env=("A=image", "B=image", "WITH=a=b"),
    user="1000:0",
    workdir="/work",
    volumes=("/var/cache/vllm",),
)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    model = tmp_path / "smollm2"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return Launch(model, "kiln-1", ("--enforce-eager",), {"B": "launch"}, shm_bytes=12345)


def made(launch: Launch, image: Image = IMAGE) -> dict[str, Any]:
    return config(image, launch, Path("/r"), Path("/s"), (1000, 0))


def mount(spec: dict[str, Any], target: str) -> dict[str, Any]:
    (found,) = [m for m in spec["mounts"] if m["destination"] == target]
    return dict(found)


def test_the_command_is_the_images_own(launch: Launch) -> None:
    process = made(launch)["process"]
    assert process["args"] == [
        "vllm", "serve", "/models/smollm2", "--enforce-eager",
        "--served-model-name", "kiln-1", "--uds", "/run/kiln/vllm.sock",
    ]  # fmt: skip
    assert process["cwd"] == "/work"
    assert process["env"][1:] == ["A=image", "B=launch", "WITH=a=b"]
    assert process["env"][0].startswith("PATH=")
    with_path = replace(IMAGE, env=("PATH=/opt/bin",))
    assert made(launch, with_path)["process"]["env"] == ["PATH=/opt/bin", "B=launch"]


def test_it_may_do_nothing(launch: Launch) -> None:
    spec = made(launch)
    process = spec["process"]
    assert set(process["capabilities"]) == {
        "bounding", "effective", "inheritable", "permitted", "ambient",
    }  # fmt: skip
    assert not any(process["capabilities"].values())
    assert process["noNewPrivileges"] is True
    assert process["user"] == {"uid": 1000, "gid": 0, "umask": 0o22}
    assert spec["root"] == {"path": "/r", "readonly": True}
    namespaces = {n["type"] for n in spec["linux"]["namespaces"]}
    assert namespaces == {"pid", "ipc", "uts", "mount"}
    # Sandboxes refuse these: see the module.
    assert "rlimits" not in process


def test_what_is_mounted(launch: Launch) -> None:
    spec = made(launch)
    assert mount(spec, "/models/smollm2")["source"] == str(launch.model)
    assert "ro" in mount(spec, "/models/smollm2")["options"]
    assert mount(spec, "/run/kiln")["source"] == "/s"
    assert "rw" in mount(spec, "/run/kiln")["options"]
    assert "size=12345" in mount(spec, "/dev/shm")["options"]
    cache = mount(spec, "/var/cache/vllm")
    assert cache["type"] == "tmpfs"
    assert {"exec", "uid=1000", "mode=1777"} <= set(cache["options"])
    sources = {m["source"] for m in spec["mounts"] if m["type"] == "bind"}
    assert sources == {str(launch.model), "/s"}  # nothing else of this machine
    order = [m["destination"] for m in spec["mounts"]]
    assert order.index("/run") < order.index("/run/kiln")


def test_a_shared_root_is_never_writable(launch: Launch) -> None:
    with pytest.raises(BadInput) as caught:
        made(replace(launch, read_only=False))
    assert caught.value.code == "run.writable-root"


@pytest.mark.parametrize(
    ("image", "given", "expected"),
    [
        ("1000:0", None, (1000, 0)),
        ("1000", None, (1000, 7)),
        ("4242", None, (4242, 0)),
        ("vllm", None, (1000, 7)),
        ("vllm:games", None, (1000, 60)),
        ("vllm:9", None, (1000, 9)),
        ("", None, (0, 0)),
        ("1000:0", "5:6", (5, 6)),
    ],
)
def test_users(
    tmp_path: Path, launch: Launch, image: str, given: str | None, expected: tuple[int, int]
) -> None:
    etc = tmp_path / "root/etc"
    etc.mkdir(parents=True)
    (etc / "passwd").write_text("root:x:0:0::/:/bin/sh\nbroken\nvllm:x:1000:7::/:\n")
    (etc / "group").write_text("root:x:0:\ngames:x:60:\n")
    assert user_of(replace(IMAGE, user=image), replace(launch, user=given), etc.parent) == expected


@pytest.mark.parametrize("user", ["nobody", "vllm:nobody", ":", "-1:0"])
def test_unknown_users(tmp_path: Path, launch: Launch, user: str) -> None:
    with pytest.raises(BadInput) as caught:
        user_of(replace(IMAGE, user=user), launch, tmp_path)
    assert caught.value.code == "run.unknown-user"


def test_a_linked_passwd_is_not_the_hosts(tmp_path: Path, launch: Launch) -> None:
    (tmp_path / "etc").symlink_to("/etc")
    with pytest.raises(BadInput):
        user_of(replace(IMAGE, user="nobody"), launch, tmp_path)


def refused(image: Image, launch: Launch) -> str:
    with pytest.raises(BadInput) as caught:
        check_launch(image, launch, 1000, 0)
    return caught.value.code


def test_launches_that_cannot_work(launch: Launch, tmp_path: Path) -> None:
    launch.model.chmod(0o755)
    check_launch(IMAGE, launch, 1000, 0)
    assert refused(replace(IMAGE, entrypoint=()), launch) == "run.no-entrypoint"
    assert refused(IMAGE, replace(launch, model=tmp_path / "none")) == "run.no-model"
    weights = launch.model / "model.safetensors"
    weights.touch(0o600)
    weights.chmod(0o600)  # as transformers writes it
    assert refused(IMAGE, launch) == "run.model-unreadable"
    weights.unlink()
    (tmp_path / "blob").touch()
    weights.symlink_to(tmp_path / "blob")  # as the hub's cache has it
    assert refused(IMAGE, launch) == "run.model-link"
    weights.unlink()
    weights.symlink_to("config.json")
    check_launch(IMAGE, launch, 1000, 0)


def test_each_start_has_a_name_of_its_own() -> None:
    names = {new_nonce() for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("kiln-") for name in names)
