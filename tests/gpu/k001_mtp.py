"""Proves patch k001-mtp-dynamic-k on a GPU, with the vLLM that this Python imports.

    python3 tests/gpu/k001_mtp.py [CASE ...]

Run it in an image of the pin, or with any vLLM 0.23.0, 0.24.0 or 0.32.0 to which kiln-identity
and k001-mtp-dynamic-k are applied. It needs nothing else: the model is made by
build/models/tiny-mtp/make.py, and prompts are token numbers, so that no tokenizer is used.

Each case serves the same prompts with the switch off and on, and must give the same tokens
(at temperature 0); K must have gone down and up, drafts must have been cut, passes of the
MTP head left out, and the share of drafted tokens that is accepted must be higher than
without. Ends with 0 if all of it held, 1 if something did not, 4 where it cannot run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

MODEL = Path(__file__).parents[2] / "build/models/tiny-mtp"
MOST = 5
DECISIONS = ("k-raised", "k-lowered", "draft-shortened", "pass-saved")
# Wild tokens first, then one in the middle of a chain; see make.py.
PROMPTS = [[8001, 8017, 8042], [1010, 1011], [8090] * 20, [1500, 8003, 8004], [1130], [8055]]
LENGTHS = (300, 200, 250, 120, 400, 40)
# Arguments of vllm.LLM. float32: what a token follows must not hang on the batch's shape.
BASE = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 8, "skip_tokenizer_init": True}
CASES: dict[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True, "async_scheduling": False},
    "async": {"enforce_eager": True, "async_scheduling": True},
    "graphs": {"async_scheduling": False},
    "async-graphs": {"async_scheduling": True},
    "two-gpus": {"enforce_eager": True, "async_scheduling": False, "tensor_parallel_size": 2},
    "few-tokens": {"enforce_eager": True, "max_num_batched_tokens": 16, "max_model_len": 512},
}
# What a child process does: one start of vLLM, one JSON line.
CHILD = """
import json, sys
from vllm import LLM, SamplingParams, _kiln
model, arguments, prompts, lengths, most = json.loads(sys.argv[1])
if __name__ == "__main__":
    speculative = {"method": "mtp", "num_speculative_tokens": most} if most else None
    llm = LLM(model, speculative_config=speculative, disable_log_stats=False, **arguments)
    params = [
        SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False)
        for n in lengths
    ]
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
    values = {m.name: m.value for m in llm.get_metrics() if hasattr(m, "value")}
    said = _kiln.said()
    print("RESULT " + json.dumps({
        "tokens": [list(o.outputs[0].token_ids) for o in outputs],
        "drafted": values.get("vllm:spec_decode_num_draft_tokens", 0),
        "accepted": values.get("vllm:spec_decode_num_accepted_tokens", 0),
        "counts": {d: n for (p, d), n in said.counts.items() if p.startswith("k001")},
        "runs": sorted(said.runs),
    }), flush=True)
"""


def say(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def serve(model: Path, arguments: dict[str, Any], most: int, on: bool) -> dict[str, Any]:
    """What one start of vLLM has answered and counted. Raises SystemExit if it fails."""
    order = json.dumps([str(model), BASE | arguments, PROMPTS, LENGTHS, most])
    env = os.environ | {"KILN_K001_DYNAMIC_K": "1" if on else "0"}
    # Importing vLLM here has named a folder of counters; each start is to have its own.
    env.pop("KILN_COUNTERS", None)
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        program.write(CHILD)
        program.flush()
        command = [sys.executable, program.name, order]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return result
    raise SystemExit(f"vLLM has not answered:\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")


def judge(name: str, arguments: dict[str, Any], model: Path) -> list[str]:
    """What is wrong in a case; one line of figures is printed."""
    plain = serve(model, arguments, 0, on=False)
    off = serve(model, arguments, MOST, on=False)
    on = serve(model, arguments, MOST, on=True)
    shares = [r["accepted"] / max(r["drafted"], 1) for r in (off, on)]
    say(f"{name}: runs {on['runs']}, accepted {shares[0]:.3f} -> {shares[1]:.3f} of the drafted")
    say(f"  off: drafted {off['drafted']}, accepted {off['accepted']}; decisions {off['counts']}")
    say(f"  on: drafted {on['drafted']}, accepted {on['accepted']}; decisions {on['counts']}")
    wrong = []
    for what, result in (("off", off), ("on", on)):
        if result["tokens"] != plain["tokens"]:
            wrong.append(f"{name}: with the switch {what} the tokens differ from unspeculated ones")
    if off["counts"]:
        wrong.append(f"{name}: decisions counted with the switch off: {off['counts']}")
    wrong += [f"{name}: no {d}" for d in DECISIONS if not on["counts"].get(d)]
    if not shares[1] > shares[0]:
        wrong.append(f"{name}: the accepted share has not risen")
    if [proposer for _, proposer in on["runs"]] != ["EagleProposer"]:
        wrong.append(f"{name}: other classes run: {on['runs']}")
    return wrong


def main(names: list[str]) -> int:
    """Judge the cases named, or all."""
    if unknown := set(names) - CASES.keys():
        say(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
        return 2
    try:
        torch = import_module("torch")
        save_file = import_module("safetensors.torch").save_file
        import_module("vllm._kiln_k001")
    except ImportError as error:
        say(f"cannot run here: {error}")
        return 4
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    say(f"torch {torch.__version__}, cuda {torch.cuda.is_available()}")
    sys.path.insert(0, str(MODEL))
    make = import_module("make")
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        save_file(make.weights(), model / "model.safetensors", metadata={"format": "pt"})
        (model / "config.json").write_text(json.dumps(make.CONFIG))
        for name in names or CASES:
            wrong += judge(name, CASES[name], model)
    say("\n".join(wrong) or "all of it held")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
