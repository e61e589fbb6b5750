"""Canonical JSON and the rendering of errors."""

from __future__ import annotations

import pytest

from kiln.canonical import Digest, digest, dumps, is_sha256, key
from kiln.errors import BadInput, CannotHere, Problems, raise_problems


def test_one_value_has_one_form() -> None:
    assert dumps({"b": [1, True, None], "a": "é"}) == '{"a":"é","b":[1,true,null]}'.encode()
    assert key({"a": 1, "b": 2}) == key({"b": 2, "a": 1})
    assert dumps(Digest("ab", 1)) == b'{"sha256":"ab","size":1}'


@pytest.mark.parametrize("value", [1.5, {"a": [1, 2.0]}, {1: 2}, {"a": {1, 2}}, b"bytes"])
def test_what_has_no_one_form_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        dumps(value)


def test_digest_prints_as_oci_does() -> None:
    assert str(digest(b"")).startswith("sha256:e3b0c44298fc1c14")
    assert is_sha256(digest(b"").sha256)
    assert not is_sha256("E3" * 32)
    assert not is_sha256("e3" * 32 + "\n")


def test_an_error_says_where_what_why_and_what_to_do() -> None:
    error = BadInput("x.y", "it is wrong", where="f:1:2", why="one\ntwo", fix="mend it")
    assert str(error) == ("f:1:2: it is wrong [x.y]\n  why: one\n       two\n  do:  mend it")
    assert error.as_dict()["code"] == "x.y"


def test_problems_are_raised_together_with_the_worst_code() -> None:
    raise_problems([])
    with pytest.raises(BadInput):
        raise_problems([BadInput("a", "a")])
    with pytest.raises(Problems) as error:
        raise_problems([BadInput("a", "a"), CannotHere("b", "b")])
    assert error.value.exit_code == 4
    assert str(error.value) == "a [a]\nb [b]"
