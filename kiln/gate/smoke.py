"""Does the image live, before and after all else, and is it the one that it should be.

/health and /v1/models go on answering when the engine is dead. So life is a completion
within a deadline, in the name that only this start serves (see kiln.run.runner), once
before the other gates and once after them.
"""

from __future__ import annotations

from kiln.gate.ask import Asker, Unanswered
from kiln.gate.model import Case, Problem, case, not_run
from kiln.gate.openai import read_completion
from kiln.gate.text import check_empty
from kiln.run.runner import Server, Stopped

LAST_WORDS = 20  # lines of the log
_PROMPT = "The capital of France is"


def check_process(server: Server, name: str) -> Case:
    """The started process runs."""
    if server.alive():
        return case(name, [])
    text = f"it ended with status {server.exit_status()}; its last words:\n"
    return case(name, [Problem("died", text + server.log_tail(LAST_WORDS).strip())])


def check_completion(server: Server, asker: Asker, name: str) -> Case:
    """A completion comes in time, from the model of this start."""
    if asker.dead:
        return not_run(name, asker.dead)
    body = {"prompt": _PROMPT, "max_tokens": 2, "temperature": 0, "seed": 0, "logprobs": 1}
    try:
        answer = asker.post("/v1/completions", body)
    except Unanswered as error:
        return case(name, [_why_silent(server, asker, error)])
    reading = read_completion(answer)
    problems = list(reading.problems)
    if answer.status == 200:
        problems += check_empty(reading.said.text, None)
        if reading.said.model != asker.model:
            text = f"{reading.said.model!r} answered, not {asker.model!r}: another server"
            problems.append(Problem("wrong-model", text))
    return case(name, problems, repr(reading.said.text), [answer.sha])


def _why_silent(server: Server, asker: Asker, error: Unanswered) -> Problem:
    if error.code != "run.timeout":
        return Problem("no-answer", str(error))
    try:
        health = f"/health says {asker.get('/health').status}"
    except Unanswered:
        health = "/health does not answer either"
    words = server.log_tail(LAST_WORDS).strip()
    return Problem("engine-dead", f"the engine is dead: {error}, while {health}; log:\n{words}")


def check_stop(stopped: Stopped, name: str) -> Case:
    """It ended by itself when it was told to, and left nothing behind."""
    if not stopped.ours:
        return not_run(name, "Kiln did not start this server, and so does not stop it")
    problems = []
    if not stopped.clean:
        problems.append(
            Problem("stop-forced", f"it had to be killed, {stopped.seconds:.1f} s after SIGTERM")
        )
    problems += [Problem("left-behind", f"still there after the stop: {it}") for it in stopped.left]
    return case(name, problems, f"stopped in {stopped.seconds:.1f} s")
