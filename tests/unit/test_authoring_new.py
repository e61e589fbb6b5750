"""Beginning a patch: from nothing, from changes, from a commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.authoring.new import Created, new
from kiln.authoring.work import read_work
from kiln.errors import BadInput
from kiln.pins.patch import read_document
from tests.helpers.patch_work import Bench, make_bench, patch_yaml
from tests.unit.test_authoring_save import built, quiet


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = make_bench(tmp_path)
    bench.edit()
    return bench


def begin(bench: Bench, patch: str, **options: str | bool) -> Created:
    return new(bench.work(), patch, **options)  # type: ignore[arg-type]


def test_an_empty_one_is_filled_by_amending(bench: Bench) -> None:
    made = begin(bench, "fresh", title='Say "hello": loudly')
    assert made.files == ("patches/fresh/patch.yaml", "patches/fresh/README.md")
    assert made.saved.written == ()
    assert "fresh: its commit changes nothing yet, so it has no file yet" in made.saved.notes
    assert "patches/fresh/patch.yaml: why, origin still to be written" in made.saved.notes
    assert made.saved.order == ("base", "engine", "config", "fresh")
    assert "patches: [base, engine, config, fresh]" in made.text()
    document = read_document(bench.project, "fresh").value
    assert document.title == 'Say "hello": loudly'
    assert [(v.range, v.file) for v in document.versions] == [("==1.0.0", "1.0.0.patch")]
    (bench.root / ".work/v1/vllm/_fresh.py").write_text("x = 1\n")
    bench.git("add", "-A")
    out = bench.git("commit", "-q", "--amend", "--no-edit")
    assert "wrote patches/fresh/1.0.0.patch" in out
    bench.series("v1", "base", "engine", "config", "fresh")
    assert built(bench)["vllm/_fresh.py"] == b"x = 1\n"


def test_the_guide_is_a_valid_patch_yaml_with_every_line_taken_in(bench: Bench) -> None:
    begin(bench, "fresh")
    path = bench.root / "patches/fresh/patch.yaml"
    lines = path.read_text().splitlines()
    taken = [line.removeprefix("# ") if ":" in line or "- {" in line else line for line in lines]
    words = ("What ", "that others", "The ", "How ")
    path.write_text("\n".join(f"# {t}" if t.startswith(words) else t for t in taken) + "\n")
    document = read_document(bench.project, "fresh").value
    assert document.requires == ("kiln-identity",)
    assert document.env
    assert document.counters
    assert document.retire_when
    assert document.proof


def test_uncommitted_changes_become_it(bench: Bench) -> None:
    bench.replace("vllm/other.py", "other_5 = 5", "other_5 = 'new'")
    (bench.root / ".work/v1/vllm/_fresh.py").write_text("x = 1\n")
    made = begin(bench, "fresh", write_pin=True)
    assert made.saved.written == ("patches/fresh/1.0.0.patch", "pins.yaml")
    assert "patches: [base, engine, config, fresh]  # in this order" in bench.read("pins.yaml")
    assert bench.git("status", "--porcelain") == ""
    assert set(built(bench)) >= {"vllm/other.py", "vllm/_fresh.py"}


def test_a_commit_in_the_middle_gets_an_id(bench: Bench) -> None:
    bench.replace("vllm/other.py", "other_5 = 5", "other_5 = 'mine'")
    quiet(bench, "commit", "-qam", "mine, and why")
    bench.replace("vllm/other.py", "other_30 = 30", "other_30 = 'second'")
    quiet(bench, "commit", "-qam", "second\n\nKiln-Patch: second")
    bench.write("patches/second/patch.yaml", patch_yaml("do second"))
    with pytest.raises(BadInput) as caught:
        bench.save()
    assert caught.value.code == "authoring.no-id"
    tree = quiet(bench, "rev-parse", "HEAD^{tree}")
    bench.replace("vllm/config.py", "config_1 = 1", "config_1 = 'not committed'")
    made = begin(bench, "mine", commit="HEAD~1")
    assert bench.commits()[-2:] == ["mine, and why", "second"]
    assert quiet(bench, "rev-parse", "HEAD^{tree}") == tree
    assert bench.git("status", "--porcelain") == " M vllm/config.py\n"
    assert bench.git("show", "-s", "--format=%b", made.commit).strip() == "Kiln-Patch: mine"
    assert "Subject: mine, and why\n" in bench.read("patches/mine/1.0.0.patch")


@pytest.mark.parametrize(
    ("patch", "commit", "wanted"),
    [
        ("../x", "", "authoring.bad-id"),
        ("Big", "", "authoring.bad-id"),
        ("config", "", "authoring.patch-exists"),
        ("fresh", "HEAD", "authoring.no-commit"),  # it is config's
        ("fresh", "pristine-1.0.0", "authoring.no-commit"),
        ("fresh", "--exec=x", "authoring.no-commit"),
        ("fresh", "nothing", "authoring.no-commit"),
    ],
)
def test_refusals_change_nothing(bench: Bench, patch: str, commit: str, wanted: str) -> None:
    before, head = bench.files(), quiet(bench, "rev-parse", "HEAD")
    with pytest.raises(BadInput) as caught:
        begin(bench, patch, commit=commit)
    assert caught.value.code == wanted
    assert (bench.files(), quiet(bench, "rev-parse", "HEAD")) == (before, head)


def test_a_second_try_goes_on_where_the_first_was_stopped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kiln.authoring import new as module

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "write_all", stop)
        with pytest.raises(KeyboardInterrupt):
            begin(bench, "fresh")
    assert bench.commits()[-1] == "fresh: TODO"
    assert not (bench.root / "patches/fresh").exists()
    begin(bench, "fresh")
    assert bench.commits().count("fresh: TODO") == 1
    assert (bench.root / "patches/fresh/patch.yaml").exists()


def test_the_command_line_makes_the_work_tree_if_need_be(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    work = bench.root / "elsewhere"
    done = bench.kiln("patch", "edit", "v1", "--source", str(bench.src / "1.0.0"), "--dir",
                      str(work))  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, str(work)), done.stderr
    assert read_work(work).state.project == ".."
    done = bench.kiln("patch", "new", "fresh", "--write-pin", cwd=work / "vllm")
    assert done.returncode == 0, done.stderr
    assert "wrote patches/fresh/patch.yaml" in done.stdout
    assert "fresh]" in bench.read("pins.yaml")
    done = bench.kiln(
        "patch",
        "save",
        str(work),
        "--json",
        cwd=tmp_path / "src",
    )
    assert done.returncode == 2
    done = bench.kiln("patch", "save", "elsewhere", "--json")
    assert done.returncode == 0, done.stderr
