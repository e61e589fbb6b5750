"""What drift keeps in the store: the same question is answered once, another one anew."""

from __future__ import annotations

import msgspec
import pytest

from kiln.drift import remember
from kiln.drift.remember import remembered
from kiln.store import Store


class Answer(msgspec.Struct, frozen=True):
    text: str
    count: dict[str, int]


def test_a_question_is_answered_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def ask(question: str) -> Answer:
        def work() -> Answer:
            runs.append(question)
            return Answer(question, {"runs": len(runs)})

        return remembered(store, "drift:test", {"q": question}, Answer, work)

    first = ask("a")
    assert ask("a") == first
    assert ask("b") != first
    assert runs == ["a", "b"]

    monkeypatch.setattr(remember, "_code", lambda: "other code")
    assert ask("a") == Answer("a", {"runs": 3})
    for sha in list(store.blobs):  # collected: asked again
        store.blobs.remove(sha)
    assert ask("a") == Answer("a", {"runs": 4})
