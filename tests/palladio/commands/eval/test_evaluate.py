"""`palladio eval --perplexity`: windows that count each token once, and transformers' numbers."""

import collections
import json
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from palladio import __main__ as cli
from palladio.commands.eval import evaluate
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.transport import ThreadTransport
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from palladio.server import launch as launch_server
from tests.runtime.tiny_engine import FLAGS
from tests.tiny_model import make_checkpoint
from tests.tiny_tokenizer import CORPUS, build_tiny_tokenizer

TEXT = "\n".join(CORPUS)
SAID = re.compile(r"perplexity (\S+) \(loss (\S+) nats a token, (\S+) bits a byte; (\d+) tokens in (\d+) windows?\)")


@pytest.mark.parametrize(
    ("count", "size", "stride"), [(10, 4, 2), (10, 4, 3), (11, 4, 1), (3, 8, 4), (8, 8, 4), (2, 2, 1)]
)
def test_each_token_but_the_first_counts_once(count: int, size: int, stride: int) -> None:
    found = list(evaluate.windows(count, size, stride))
    assert [token for window in found for token in range(window.scored, window.end)] == list(range(1, count))
    assert all(window.begin < window.scored <= window.end <= window.begin + size for window in found)
    assert [window.begin for window in found] == [stride * number for number in range(len(found))]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command in this process on a tiny checkpoint; returns the exit status, and what it says."""
    monkeypatch.setattr(evaluate, "ProcessTransport", lambda environment: ThreadTransport())
    monkeypatch.setattr(launch_server, "configure_logging", lambda level, log_format: None)
    make_checkpoint(tmp_path / "model", "qwen2", num_hidden_layers=1)
    build_tiny_tokenizer(tmp_path / "model")
    (tmp_path / "text").write_text(TEXT)
    cache = f"--compilation-cache-dir={FLAGS['compilation_cache_dir']}"
    usual = ["--model-path", str(tmp_path / "model"), "--max-running-requests=2", "--compile=lazy", cache]

    def run(*flags: str, text: str = "text", what: list[str] | None = None) -> tuple[int, str]:
        what = what or ["--perplexity", str(tmp_path / text)]
        code = cli.main(["eval", *what, *usual, "--context-length=96", "--max-total-tokens=512", *flags])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def test_results_are_not_among_log_lines_of_steps(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[str] = []
    monkeypatch.setattr(launch_server, "configure_logging", lambda level, log_format: levels.append(level))
    assert told("--window=1")[0] == told("--window=1", "--log-level=info")[0] == 2
    assert levels == ["warning", "info"]


@pytest.mark.slow  # needs transformers; make real measures perplexity
def test_the_loss_is_transformers(told: Any, tmp_path: Path) -> None:
    """Over overlapping windows, the way its guide computes it."""
    hf_oracle = pytest.importorskip("tests.model.hf_oracle")
    code, said = told("--window=64", "--stride=24", "--against=--quantization int8")
    ids = Tokenizer.load(tmp_path / "model").encode(TEXT)
    starts = [start for start in range(0, len(ids), 24) if start == 0 or start + 40 < len(ids)]
    logits, _ = hf_oracle.run(tmp_path / "model", [ids[start : start + 64] for start in starts], 1)
    losses, scored = [], 1
    for start, rows in zip(starts, logits, strict=True):
        wide = rows.astype(np.float64)
        logprobs = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
        end = min(start + 64, len(ids))
        losses += [-logprobs[place - start - 1, ids[place]] for place in range(scored, end)]
        scored = end
    (first, second) = SAID.findall(said)
    assert code == 0
    assert f"Scoring {len(ids)} tokens in {first[4]} windows\n" in said
    assert len(losses) == int(first[3]) == len(ids) - 1
    assert float(first[1]) == pytest.approx(np.mean(losses), abs=2e-5)
    assert float(first[0]) == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)
    assert float(first[2]) == pytest.approx(np.sum(losses) / np.log(2) / len(TEXT.encode()), abs=1e-4)
    assert "with --quantization int8: perplexity" in said
    assert 0 < abs(float(second[1]) - float(first[1])) < 0.02
    found = re.search(r"log-probabilities differ by (\S+) on average, by (\S+) at most", said)
    assert found is not None
    assert 0 < float(found[1]) < float(found[2]) < 0.5


@pytest.mark.parametrize(
    ("flags", "text", "message"),
    [
        (("--window=97",), "text", "--window 97 must be in 2 … 96 (--context-length)"),
        (("--window=8", "--stride=8"), "text", "--stride 8 must be in 1 … 7, less than --window"),
        ((), "nowhere", "--perplexity: cannot read"),
        (("--limit=3",), "text", "--limit is a flag of --tasks: leave it out"),
        (("--json=x",), "text", "--json is a flag of --tasks: leave it out"),
        (("--quantization=awq",), "text", "--quantization awq: the checkpoint is not quantized"),
    ],
)
def test_bad_flags(flags: tuple[str, ...], text: str, message: str, told: Any) -> None:
    code, said = told(*flags, text=text)
    assert (code, message in said) == (2, True), said


class _Tasks:
    """What lm-eval has of its `lm_eval.tasks`, with one task."""

    def __init__(self, include_path: str | None) -> None:
        assert include_path is None

    def match_tasks(self, names: list[str]) -> list[str]:
        return [name for name in names if name == "tiny"]


def _install_lm_eval(monkeypatch: pytest.MonkeyPatch, evaluate_model: Any) -> None:
    """As much of lm-eval as the adapter asks for."""
    parts = {
        "lm_eval": {"simple_evaluate": evaluate_model, "__spec__": ModuleSpec("lm_eval", None)},
        "lm_eval.api": {},
        "lm_eval.api.model": {"TemplateLM": object},
        "lm_eval.tasks": {"TaskManager": lambda include_path: _Tasks(include_path)},
        "lm_eval.utils": {
            "get_rolling_token_windows": lambda ids, prefix, size, context: [([prefix, *ids[:-1]], ids)],
            "make_disjoint_window": lambda pair: (pair[0][:1], pair[1]),
        },
    }
    for name, values in parts.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "palladio.commands.eval.lm_eval_model", raising=False)


def test_tasks_of_lm_eval(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: Any) -> None:
    """Log-likelihoods are those of `--perplexity`; the likeliest continuation is the greedy answer."""
    ask = collections.namedtuple("ask", "args")
    kept: dict[str, Any] = {}

    def evaluate_model(model: Any, tasks: list[str], **options: Any) -> dict[str, Any]:
        ids, prompt = model.tok_encode(TEXT[:60]), model.tok_encode(TEXT[:40])
        request = GenerationRequest("greedy", prompt, SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))

        async def greedy() -> list[int]:
            outputs = model._scores._engine.generate(request)
            return [token async for output in outputs for token in output.token_ids]

        (said,) = model._scores._wait([greedy()], "")
        pairs = [(ids[:1], ids[1:]), ([model.prefix_token_id], ids), (prompt, said), (prompt, [3, 3])]
        kept["scores"] = model._loglikelihood_tokens([(None, *pair) for pair in pairs])
        kept["rolling"] = model.loglikelihood_rolling([ask((TEXT[:60],))])
        kept["answers"] = model.generate_until([ask((TEXT[:40], {"until": ["\n\n"], "max_gen_toks": 4}))] * 2)
        kept["options"], kept["length"], kept["count"] = options, model.max_length, len(ids)
        return {"results": {"tiny": {"acc,none": 0.5, "acc_stderr,none": 0.1, "alias": "tiny"}}, "samples": object()}

    _install_lm_eval(monkeypatch, evaluate_model)
    code, said = told("--limit=3", f"--json={tmp_path / 'out.json'}", what=["--tasks=tiny"])
    assert (code, said.splitlines()[-1]) == (0, "tiny acc 0.5000 ± 0.1000")
    assert json.loads((tmp_path / "out.json").read_text())["results"]["tiny"]["acc,none"] == 0.5
    assert (kept["options"]["limit"], kept["length"]) == (3, 96)
    whole, first, greedy, other = kept["scores"]
    assert [greedy[1], other[1]] == [True, False]
    assert other[0] < greedy[0] < 0
    assert kept["rolling"] == [pytest.approx(first[0], abs=1e-4)]
    assert kept["answers"][0] == kept["answers"][1] != ""
    (tmp_path / "short").write_text(TEXT[:60])
    (found,) = SAID.findall(told("--window=96", text="short")[1])
    assert int(found[3]) == kept["count"] - 1
    assert whole[0] == pytest.approx(-float(found[1]) * int(found[3]), rel=1e-4)
    code, said = told(what=["--tasks=tiny,nonesuch"])
    assert (code, said) == (2, "error: --tasks: lm-eval has no nonesuch; `lm-eval ls tasks` lists them\n")
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert told(what=["--tasks=tiny"]) == (2, "error: --tasks needs lm-eval: pip install lm-eval\n")
