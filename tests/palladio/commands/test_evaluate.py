"""`palladio eval --perplexity`: windows that count each token once, and transformers' numbers."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palladio import __main__ as cli
from palladio import launch_server
from palladio.commands import evaluate
from palladio.runtime.process.transport import ThreadTransport
from palladio.runtime.text.tokenizer import Tokenizer
from tests.runtime.tiny_engine import FLAGS
from tests.tiny_model import make_checkpoint
from tests.tiny_tokenizer import CORPUS, build_tiny_tokenizer

TEXT = "\n".join(CORPUS)
SAID = re.compile(r"perplexity (\S+) \(loss (\S+) nats a token, (\S+) bits a byte; (\d+) tokens in (\d+) windows\)")


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
    make_checkpoint(tmp_path / "model", "qwen2")
    build_tiny_tokenizer(tmp_path / "model")
    (tmp_path / "text").write_text(TEXT)
    cache = f"--compilation-cache-dir={FLAGS['compilation_cache_dir']}"
    usual = ["--model-path", str(tmp_path / "model"), "--max-running-requests=2", "--compile=lazy", cache]

    def run(*flags: str, text: str = "text") -> tuple[int, str]:
        path = str(tmp_path / text)
        code = cli.main(["eval", "--perplexity", path, *usual, "--context-length=96", "--max-total-tokens=512", *flags])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


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
        (("--quantization=awq",), "text", "--quantization awq: the checkpoint is not quantized"),
    ],
)
def test_bad_flags(flags: tuple[str, ...], text: str, message: str, told: Any) -> None:
    code, said = told(*flags, text=text)
    assert (code, message in said) == (2, True), said
