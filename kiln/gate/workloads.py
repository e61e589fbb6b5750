"""What a server is asked while its patches are watched: fixed prompts, few tokens.

`repeat` makes text that repeats itself, so that ngram and suffix drafts are made and
accepted; some of its prompts go on with certainty, others change a word now and then, so
that drafts are refused too. `sample` asks one prompt many times with a seed of its own each,
for what happens only in sampling. `wander` asks for long answers, for a model whose drafts
are right in some passages and wrong in others. Each at the temperature that a proof names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """prompts: of completions. tokens: at most, of each answer. times: how often each
    prompt is asked, with another seed. at_once: requests at a time."""

    prompts: tuple[str, ...]
    tokens: int
    times: int = 1
    at_once: int = 4


WORKLOADS: Mapping[str, Workload] = {
    "repeat": Workload(
        (
            '{"name": "Anna", "city": "Rome", "age": 31}\n' * 5 + '{"name":',
            "def add(a, b):\n    return a + b\n\n\n" * 3 + "def",
            "one two three four five six seven eight nine ten\n" * 6 + "one two three",
            "".join(f"2024-01-0{day} INFO server started on port 8000\n" for day in range(1, 6)),
            "id,colour,size\n1,red,small\n2,blue,large\n3,green,small\n4,red,large\n5,blue,small\n6,",
            "Shopping list:\n- apples\n- pears\n- bread\n- milk\n"
            "Shopping list:\n- apples\n- pears\n",
            # What it counts is new each time: such drafts are refused for long.
            "2 2 2 2\n"
            + "".join(f"Here is number {number} of it.\n" for number in (1, 2, 3))
            + "Here is number",
        ),
        tokens=48,
    ),
    "wander": Workload(
        ("The first", "One two three four", "A list of colours: red,", "Water"), tokens=256
    ),
    "sample": Workload(("My favourite colour is",), tokens=8, times=32),
}
