"""plan, doctor and show on the default pin, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.canonical import is_sha256
from kiln.lock.file import locks_path, read_lock
from kiln.pins.load import load_project
from tests.helpers.default_pin import ROOT, DefaultImage, kiln, locked_files

DEFAULT = load_project(ROOT).pins.default


def test_a_plan_from_nothing_names_every_action_and_all_bytes_to_fetch(tmp_path: Path) -> None:
    done = kiln(ROOT, "plan", "--json", store=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["pin"] == DEFAULT
    assert {action["state"] for action in plan["actions"]} == {"run", "waits"}
    names = {action["name"] for action in plan["actions"]}
    assert {"image", "patch", "component:arctic-inference", "bytecode:torch"} <= names
    assert all(action["why"] for action in plan["actions"])
    lock = read_lock(locks_path(ROOT, DEFAULT))
    assert lock.local is not None
    fetch = {file["sha256"]: file["size"] for file in plan["fetch"]}
    expected = locked_files(lock)
    assert expected.items() <= fetch.items()
    # The rest comes from the repository itself.
    assert fetch.keys() - expected.keys() == {patch.sha256 for patch in lock.local.patches}
    assert not list((tmp_path / "blobs/sha256").iterdir()), "a plan fetches nothing"

    text = kiln(ROOT, "plan", store=tmp_path).stdout.splitlines()
    assert text[-1].startswith(f"{len(names)} actions: 0 cached, {len(names)} to do; ")
    assert f"{len(fetch)} files to fetch" in text[-1]
    assert max(map(len, text)) < 400, "a reason is a line that can be read"


@pytest.mark.net
@pytest.mark.slow
def test_an_emptied_action_table_is_all_to_do_and_nothing_to_fetch(
    default_image: DefaultImage, tmp_path: Path
) -> None:
    shared = str(default_image.store)
    done = kiln(ROOT, "plan", "--json", store=tmp_path, environment={"KILN_ALTERNATES": shared})
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert {action["state"] for action in plan["actions"]} == {"run", "waits"}
    assert plan["fetch"] == []
    cached = json.loads(default_image.kiln("plan", "--json").stdout)
    assert {action["state"] for action in cached["actions"]} == {"cached"}
    assert [a["name"] for a in cached["actions"]] == [a["name"] for a in plan["actions"]]
    assert default_image.kiln("plan").stdout.endswith("all cached: nothing to do\n")


@pytest.mark.net
@pytest.mark.slow
def test_show_knows_the_pin_and_its_digest(default_image: DefaultImage) -> None:
    shown = default_image.kiln("show")
    assert shown.returncode == 0, shown.stderr
    assert default_image.digest in shown.stdout
    data = json.loads(default_image.kiln("show", default_image.digest, "--json").stdout)
    assert (data["kind"], data["pin"]) == ("manifest", default_image.name)


def test_doctor_says_what_this_machine_can_do(tmp_path: Path) -> None:
    done = kiln(ROOT, "doctor", "--json", store=tmp_path)
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["able"] else 4)
    found = {finding["what"]: finding for finding in report["findings"]}
    assert {"python", "encoder", "store", "sandbox", "engine", "runtime", "gpu"} <= found.keys()
    assert found["encoder"]["mark"] == "ok"
    assert all(finding["text"] for finding in report["findings"])
    assert str(tmp_path) in found["store"]["text"]


@pytest.mark.root
@pytest.mark.net  # where the machine has no bubblewrap, the closure's is fetched
def test_no_sandbox_is_said_before_anything_is_fetched_for_it(tmp_path: Path) -> None:
    # A user namespace in which no further one may be made.
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    prefix = ["unshare", "-Ur", "sh", "-ec", forbid, "sh"]
    done = kiln(ROOT, "build", "--locked", "--json", store=tmp_path, prefix=prefix)
    assert done.returncode == 4, done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "sandbox.none"
    sizes = [path.stat().st_size for path in (tmp_path / "blobs/sha256").iterdir()]
    assert sum(sizes) < 100_000_000
    assert not list((tmp_path / "partial").iterdir())


def test_the_lock_of_the_default_pin_names_no_host_and_no_time() -> None:
    text = locks_path(ROOT, DEFAULT).read_text()
    assert "://" not in text
    lock = read_lock(locks_path(ROOT, DEFAULT))
    assert all(is_sha256(sha) and size > 0 for sha, size in locked_files(lock).items())
    assert lock.outputs is not None
