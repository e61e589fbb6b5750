"""What a lock is resolved from."""

from __future__ import annotations

import json

from kiln.lock.request import request
from kiln.pins.load import load_project
from tests.conftest import ROOT


def test_a_request_is_the_same_after_a_lock_was_written_and_read() -> None:
    project = load_project(ROOT)
    today = request(project, project.pin(project.pins.default))
    # A tuple would come back as a list, and `kiln lock` would resolve all of it anew.
    assert json.loads(json.dumps(today)) == today
