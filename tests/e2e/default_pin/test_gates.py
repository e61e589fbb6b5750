"""The default pin's image, started for real and judged.

A start takes one to three minutes, so the whole of `make test` has few of them. All are
here; whoever wants another has to give one up:

1. test_a_fresh_machine_gates_it              kiln gate --runner bundle, no tool of the host:
                                              one start for each launch of the pin
2. test_docker_gates_it                       kiln gate --runner docker, after kiln load
3. test_a_tokenizer_that_speaks_in_symbols    a real failure that HTTP does not show
4. test_suffix_decoding_as_any_user           another user, speculation, patch switches
5. test_compiled_by_the_images_own_compiler   without --enforce-eager
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest

from kiln.compile.tools import find_runtime
from kiln.gate.ask import Asker
from kiln.gate.evidence import replay
from kiln.gate.identity import Samples, parse_metrics, read_identity
from kiln.gate.image import expect
from kiln.gate.model import Evidence, Expected
from kiln.gate.run import judge
from kiln.gate.start import model_folder
from kiln.image.prepare import LockFetcher
from kiln.image.read import read_image
from kiln.image.target import find_target
from kiln.pins.model import Preset
from kiln.progress import Silent
from kiln.run.bundle import BundleRunner
from kiln.run.engine import Engine
from kiln.run.folder import runs
from kiln.run.runner import Launch, Server, new_nonce
from kiln.store import Store
from tests.helpers.default_pin import DefaultImage, variables, without
from tests.helpers.dockerd import dockerd

pytestmark = [pytest.mark.net, pytest.mark.root, pytest.mark.slow]


EAGER = "--enforce-eager"


@pytest.fixture(autouse=True)
def _nothing_is_left(default_image: DefaultImage) -> Iterator[None]:
    yield
    assert str(default_image.store) not in Path("/proc/mounts").read_text()
    assert [path.name for path in runs(Store(default_image.store)).iterdir()] == ["lock"]


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="kd-"))
    with dockerd(folder) as url:
        yield url
    shutil.rmtree(folder, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a start by the Python API needs."""

    store: Store
    preset: Preset
    model: Path
    expected: Expected

    def start(
        self,
        model: Path | None = None,
        args: tuple[str, ...] = (),
        env: Mapping[str, str] = {},
        user: str | None = None,
        compiled: bool = False,
    ) -> AbstractContextManager[Server]:
        """The image under the preset, with this model, more options, another user.

        compiled: without the preset's --enforce-eager.
        """
        runner = BundleRunner(self.store, find_runtime(self.store, Silent()), Silent())
        launch = Launch(
            model=model or self.model,
            served_name=new_nonce(),
            args=(*(a for a in self.preset.args if not compiled or a != EAGER), *args),
            env={**self.preset.env, **env},
            start_seconds=self.preset.start_seconds,
            user=user,
        )
        return runner.start(read_image(self.store, self.expected.digest), launch)


@pytest.fixture
def parts(default_image: DefaultImage) -> Parts:
    project, store = default_image.project, Store(default_image.store)
    found = find_target(project, None)
    preset = found.pin.presets["default"]
    fetcher = LockFetcher(project, found.lock, store, Silent())
    model = model_folder(project, found, preset.model, store, fetcher, Silent())
    return Parts(store, preset, model, expect(project, found, "default", preset))


def newest_evidence(image: DefaultImage) -> Evidence:
    found = replay(Store(image.store), image.outputs.manifest.sha256, "default")
    assert found is not None
    return found


def check_evidence(image: DefaultImage, runner: str, confirms: str) -> None:
    """The evidence of a whole gate that passed, complete and with everything it speaks of."""
    evidence = newest_evidence(image)
    assert (evidence.runner, evidence.runner_confirms) == (runner, confirms)
    assert evidence.complete
    assert evidence.verdict == "pass"
    gates = {"smoke", "coherence", "toolcall", "launch", "proof"}
    assert {case.gate for case in evidence.cases} == gates
    assert all(launch.started for launch in evidence.launches)
    assert evidence.proofs
    assert all(proof.holds for proof in evidence.proofs)
    # vLLM 0.32.0 holds arguments to the schema for strict tools only (measured.md).
    odd = {case.id: case.verdict for case in evidence.cases if case.verdict == "known-bad"}
    assert {case.verdict for case in evidence.cases} <= {"pass", "known-bad", "unproven"}
    assert all(name.startswith("toolcall/") and name.endswith("/plain") for name in odd)
    assert evidence.before is not None
    assert evidence.before == evidence.after
    assert evidence.before.pin == image.name
    blobs = Store(image.store).blobs
    assert evidence.blobs()
    assert all(blobs.read(sha) for sha in evidence.blobs())


# ---- 1 -----------------------------------------------------------------------------------------

# A replay starts no process and asks nobody, an engine least of all.
_ALONE = """
import sys
def refuse(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "socket.connect"):
        raise RuntimeError(f"{event} {arguments}")
sys.addaudithook(refuse)
from kiln.cli import main
main(["image", "--locked"])
"""


def test_a_fresh_machine_gates_it_and_the_verdict_is_replayed(default_image: DefaultImage) -> None:
    lacking = without("bwrap", "crun", "runc")
    done = default_image.kiln("gate", "--runner", "bundle", "--again", prefix=lacking)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{default_image.digest}\n"
    assert "runtime: crun from the closure" in done.stderr
    check_evidence(default_image, "bundle", f"manifest {default_image.digest}")

    before = [*Store(default_image.store).actions.all_evidence()]
    again = subprocess.run(
        [sys.executable, "-c", _ALONE],
        cwd=default_image.project.root,
        env=variables(default_image.store),
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert again.stdout == f"{default_image.digest}\n"
    assert "nothing changed: replaying the evidence" in again.stderr
    assert [*Store(default_image.store).actions.all_evidence()] == before


# ---- 2 -----------------------------------------------------------------------------------------


def test_docker_gates_it_under_the_locks_config_digest(
    default_image: DefaultImage, engine_url: str
) -> None:
    config = str(default_image.outputs.config)
    loaded = default_image.kiln("load", DOCKER_HOST=engine_url)
    assert loaded.returncode == 0, loaded.stderr
    name = loaded.stdout.strip()
    engine = Engine.connect(engine_url)
    # Debian's engine has the classic store, in which an image's id is its config's digest.
    assert engine.client.images.get(name).id == config
    assert f"the engine confirms config {config}" in loaded.stderr
    again = default_image.kiln("load", DOCKER_HOST=engine_url)
    assert (again.returncode, again.stdout) == (0, loaded.stdout), again.stderr
    assert [image.id for image in engine.client.images.list()] == [config]

    # One launch: the others are started by the first test, and take as long again.
    options = ("--runner", "docker", "--again", "--launch", "default", "--json")
    done = default_image.kiln("gate", *options, DOCKER_HOST=engine_url)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert f"sha256:{said['digest']}" == default_image.digest
    assert (said["runner"], said["runner_confirms"]) == ("docker", f"config {config}")
    assert [launch["name"] for launch in said["launches"]] == ["default"]
    # A part of the gates is no evidence of the whole.
    assert (said["verdict"], said["complete"]) == ("pass", False)
    assert engine.client.containers.list(all=True) == []
    assert engine.client.volumes.list() == []


# ---- 3 -----------------------------------------------------------------------------------------


def test_a_tokenizer_that_speaks_in_symbols_fails(parts: Parts, tmp_path: Path) -> None:
    """transformers 5 ignores the decoder of tokenizer.json for a LlamaTokenizer."""
    broken = tmp_path / parts.model.name
    shutil.copytree(parts.model, broken)
    path = broken / "tokenizer_config.json"
    config = json.loads(path.read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config | {"tokenizer_class": "LlamaTokenizer"}))

    # Evidence of a preset that nobody asks for: the failure must not be replayed.
    expected = dataclasses.replace(parts.expected, preset="symbols")
    with parts.start(model=broken) as server:
        assert server.client.get("/health").status == 200
        evidence = judge(
            server,
            expected,
            store=parts.store,
            runner="bundle",
            reporter=Silent(),
            gates=("coherence",),
        )
    assert evidence.exit_code == 1
    assert {c.verdict for c in evidence.cases if c.gate == "smoke"} == {"pass"}
    failed = {c.id: c.problems for c in evidence.cases if c.verdict == "fail"}
    assert "byte-symbols" in failed["coherence/france"], msgspec.to_builtins(evidence)


# ---- 4 -----------------------------------------------------------------------------------------

NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 5,
    "prompt_lookup_min": 2,
}


def test_suffix_decoding_as_any_user(parts: Parts) -> None:
    """... and with two API servers: whichever answers shows what all processes counted."""
    with parts.start(
        args=(f"--speculative-config={json.dumps(NGRAM)}", "--api-server-count=2"),
        env={"KILN_P75_SUFFIX": "1", "KILN_P75_SPEC_FACTOR": "2.0"},
        user="4242:0",
    ) as server:
        log = server.log_tail(100_000)
        assert "KILN_P75_SUFFIX: method 'ngram' -> 'suffix'" in log
        assert "KILN_P75_SUFFIX: suffix_decoding_max_spec_factor 1.0 -> 2.0" in log
        assert "KILN_P75_SUFFIX: num_speculative_tokens 3 -> None" in log

        before = metrics(server)
        line = "one two three four five six seven eight nine ten\n"
        prompt = f"{line * 6}one two three"
        body = {"model": server.model, "prompt": prompt, "max_tokens": 48, "temperature": 0}
        assert completion(server, body).startswith(" four five six seven eight nine ten\n")
        after = metrics(server)

        def grown(name: str, **labels: str) -> float:
            return total(after, name, **labels) - total(before, name, **labels)

        assert grown("vllm:spec_decode_num_accepted_tokens_total") > 0
        # Longer drafts than the three tokens that ngram was given: the match decides.
        per_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        assert grown(per_position, position="4") > 0

        read = read_identity(Asker(server.client, parts.store.blobs, server.model), parts.expected)
        assert read.problems == ()
        assert total(after, "kiln_modified_files") == 0
        pages = [metrics(server) for _ in range(8)]
        said = {name for name in pages[0] if name.startswith("kiln_")}
        assert "kiln_patch_decisions_total" in said
        assert all(page[name] == pages[0][name] for page in pages for name in said)
        suffix = "p75-suffix-decoding"
        assert total(after, "kiln_patch_decisions_total", patch=suffix, decision="switched") > 0
        runtime = [labels for labels, _ in after["kiln_runtime_info"]]
        assert runtime == [{"runner": "CPUModelRunner", "proposer": "SuffixDecodingProposer"}]
        patches = {patch.id for patch in parts.expected.patches}
        assert {labels["patch"] for labels, _ in after["kiln_patch_info"]} == patches

        # Any uid in group 0: it writes in its one place and nowhere else; what is
        # preloaded is in the server.
        assert shell(server, "id -u; id -g; touch $HOME/x && echo written") == "4242\n0\nwritten\n"
        assert shell(server, "touch /usr/x 2>&1 || echo refused").endswith("refused\n")
        maps = shell(server, "cat /proc/1/maps")
        assert "libtcmalloc_minimal.so" in maps
        assert "libiomp5.so" in maps
        stopped = server.stop()
        assert stopped.clean
        assert stopped.left == ()


# ---- 5 -----------------------------------------------------------------------------------------


def test_compiled_by_the_images_own_compiler(parts: Parts) -> None:
    """torch.compile builds C++ while the server starts, on a read-only root, as the image's
    user; its results lie in the one writable place."""
    assert EAGER in parts.preset.args
    with parts.start(compiled=True) as server:
        assert "enforce_eager=True" not in server.log_tail(100_000)
        body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        assert completion(server, {"model": server.model, **body}).startswith(" Paris")
        built = shell(server, "find $HOME -name '*.so' | wc -l; touch /usr/x 2>&1 || echo refused")
        count, said = built.split("\n", 1)
        assert int(count) > 0
        assert said.endswith("refused\n")


def completion(server: Server, body: Mapping[str, object]) -> str:
    reply = server.client.post_json("/v1/completions", body, 120)
    assert reply.status == 200, reply.body
    value = reply.json()
    assert isinstance(value, dict)
    return str(value["choices"][0]["text"])


def metrics(server: Server) -> Samples:
    reply = server.client.get("/metrics")
    return parse_metrics(reply.body, reply.headers["content-type"])


def total(samples: Samples, name: str, **labels: str) -> float:
    return sum(value for found, value in samples.get(name, []) if labels.items() <= found.items())


def shell(server: Server, script: str) -> str:
    done = server.execute(["/bin/sh", "-c", script], 60)
    assert done is not None
    status, out, err = done
    assert status == 0, err
    return out.decode()
