"""Settings of pip and uv: who names a place, which one wins, and that nothing secret shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.errors import BadInput
from kiln.fetch import settings as module
from kiln.fetch.settings import Settings, read_settings


@pytest.fixture(autouse=True)
def _no_system_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only files below tmp_path, and an index of uv's own that is no real one."""

    def below(environ: object, home: Path) -> list[Path]:
        return [tmp_path / "etc" / "pip.conf", home / ".config" / "pip" / "pip.conf"]

    monkeypatch.setattr(module, "_pip_files", below)
    monkeypatch.setattr(module, "_uv_default", lambda: "https://own.invalid/simple")


def read(tmp_path: Path, **environ: str) -> Settings:
    return read_settings({"UV_CONFIG_FILE": str(tmp_path / "uv.toml"), **environ}, tmp_path)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def user_pip(tmp_path: Path, text: str) -> None:
    write(tmp_path / ".config" / "pip" / "pip.conf", text)


def urls(settings: Settings) -> tuple[str, list[str], list[str]]:
    default = settings.default.url if settings.default else ""
    return default, [p.url for p in settings.extra], [p.url for p in settings.find_links]


def test_nothing_set_takes_uvs_own_default(tmp_path: Path) -> None:
    assert urls(read(tmp_path)) == ("https://own.invalid/simple", [], [])


def test_pips_files_and_environment(tmp_path: Path) -> None:
    write(
        tmp_path / "etc" / "pip.conf",
        "[global]\nindex_url = https://system.invalid/s\ncert=/c.pem\n",
    )
    user_pip(
        tmp_path,
        "[global]\nindex-url = https://user.invalid/s\n"
        "extra-index-url =\n  https://a.invalid/s\n  https://b.invalid/s\n"
        "find-links = /some/wheels\nconstraint = /not/taken\n",
    )
    settings = read(tmp_path)
    assert urls(settings) == (
        "https://user.invalid/s",
        ["https://a.invalid/s", "https://b.invalid/s"],
        ["file:///some/wheels"],
    )
    assert settings.access.ca == "/c.pem"
    assert "not/taken" not in "\n".join(settings.describe())
    settings = read(
        tmp_path,
        PIP_INDEX_URL="https://env.invalid/s",
        PIP_FIND_LINKS="/x https://y.invalid/l.html",
    )
    assert settings.default is not None
    assert settings.default.source == "PIP_INDEX_URL"
    assert urls(settings)[2] == ["file:///x", "https://y.invalid/l.html"]


def test_the_install_section_goes_before_the_global_one(tmp_path: Path) -> None:
    user_pip(
        tmp_path,
        "[install]\nindex-url=https://i.invalid/\n[global]\nindex-url=https://g.invalid/\n",
    )
    assert urls(read(tmp_path))[0] == "https://i.invalid/"


def test_uv_goes_before_pip_and_extras_add_up(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        UV_DEFAULT_INDEX="main=https://uv.invalid/s",
        UV_INDEX="corp=https://c.invalid/s https://d.invalid/s",
        UV_EXTRA_INDEX_URL="https://e.invalid/s",
        UV_FIND_LINKS="/one,/two",
        PIP_INDEX_URL="https://pip.invalid/s",
        PIP_EXTRA_INDEX_URL="https://d.invalid/s https://f.invalid/s",
        PIP_FIND_LINKS="/two /three",
    )
    assert urls(settings) == (
        "https://uv.invalid/s",
        [f"https://{x}.invalid/s" for x in "cdef"],
        ["file:///one", "file:///two", "file:///three"],
    )


def test_uv_toml_is_read_and_explicit_indexes_are_not_taken(tmp_path: Path) -> None:
    write(
        tmp_path / "uv.toml",
        'find-links = ["/w"]\n'
        '[[index]]\nurl = "https://x.invalid/s"\nexplicit = true\n'
        '[[index]]\nurl = "https://y.invalid/s"\n'
        '[[index]]\nurl = "https://z.invalid/s"\ndefault = true\n',
    )
    expected = ("https://z.invalid/s", ["https://y.invalid/s"], ["file:///w"])
    assert urls(read(tmp_path)) == expected


def test_no_index_leaves_find_links_only(tmp_path: Path) -> None:
    settings = read(
        tmp_path, PIP_NO_INDEX="1", PIP_EXTRA_INDEX_URL="https://a.invalid/s", PIP_FIND_LINKS="/w"
    )
    assert urls(settings) == ("", [], ["file:///w"])
    assert "no-index" in settings.describe()[0]


def test_the_order_of_certificates(tmp_path: Path) -> None:
    own = {"REQUESTS_CA_BUNDLE": "/r", "SSL_CERT_FILE": "/s", "PIP_CERT": "/p a"}
    assert read(tmp_path, **own).access.ca == "/p a"
    del own["PIP_CERT"]
    assert read(tmp_path, **own).access.ca == "/s"
    del own["SSL_CERT_FILE"]
    assert read(tmp_path, **own).access.ca == "/r"


def test_credentials_are_kept_apart(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        PIP_INDEX_URL="https://me:s3cr%40et@h.invalid/s",
        PIP_PROXY="http://u:s3cr@et@proxy.invalid:8080",
    )
    shown = "\n".join(settings.describe()) + repr(settings)
    assert "s3cr" not in shown
    assert urls(settings)[0] == "https://h.invalid/s"
    assert settings.access.credentials == {"https://h.invalid:443": ("me", "s3cr@et")}
    assert settings.with_credentials("https://h.invalid/s") == "https://me:s3cr%40et@h.invalid/s"
    assert settings.with_credentials("https://i.invalid/s") == "https://i.invalid/s"


def test_timeouts(tmp_path: Path) -> None:
    assert read(tmp_path, PIP_DEFAULT_TIMEOUT="180").access.read == 180
    assert read(tmp_path, PIP_DEFAULT_TIMEOUT="9", UV_HTTP_TIMEOUT="7").access.read == 7
    with pytest.raises(BadInput) as caught:
        read(tmp_path, PIP_TIMEOUT="soon")
    assert caught.value.code == "settings.bad-value"
    assert caught.value.where == "PIP_TIMEOUT"


@pytest.mark.parametrize("text", ["index-url = x\n", "[global\n", "[global]\na\x00\n= s3cret\n"])
def test_a_file_that_cannot_be_read_is_named_and_not_quoted(tmp_path: Path, text: str) -> None:
    user_pip(tmp_path, text + "s3cret")
    with pytest.raises(BadInput) as caught:
        read(tmp_path)
    assert caught.value.code == "settings.bad-file"
    assert caught.value.where.endswith("pip.conf")
    assert "s3cret" not in str(caught.value)


def test_bad_toml_is_named(tmp_path: Path) -> None:
    write(tmp_path / "uv.toml", "index = [")
    with pytest.raises(BadInput) as caught:
        read(tmp_path)
    assert caught.value.code == "settings.bad-file"


def test_a_bad_url_names_its_setting(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        read(tmp_path, PIP_EXTRA_INDEX_URL="ftp://x.invalid/")
    assert caught.value.code == "fetch.bad-url"
    assert caught.value.where == "PIP_EXTRA_INDEX_URL"


def test_uv_tells_its_own_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert module._uv_default().startswith("https://")


def test_pips_files_in_pips_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    own = tmp_path / "own.conf"
    names = [str(p) for p in module._pip_files({"PIP_CONFIG_FILE": str(own)}, tmp_path)]
    home = [str(tmp_path / ".pip/pip.conf"), str(tmp_path / ".config/pip/pip.conf")]
    assert names[:4] == ["/etc/xdg/pip/pip.conf", "/etc/pip.conf", *home]
    assert names[-1] == str(own)
    own.touch()  # as pip has it, a file of one's own switches off the user's
    names = [str(p) for p in module._pip_files({"PIP_CONFIG_FILE": str(own)}, tmp_path)]
    assert not set(home) & set(names)
    assert list(module._pip_files({"PIP_CONFIG_FILE": "/dev/null"}, tmp_path)) == []
