"""An engine whose model's files ask for more than one pooling and steps behind it, and one that gives a vector for each
token. The latter's vectors are the hidden states out of which the former's are computed here."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from palladio.model.pooling.pooling_spec import Normalize, PoolingSpec
from palladio.runtime.core.plan import engine_inputs
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.outputs.token_output import TokenOutput
from palladio.runtime.interface.request.embedding import EMBEDDING_PARAMS
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.pooling_params import PoolingParams, VectorKind
from tests.model.make_goldens import prompts
from tests.runtime.core.test_embedding_engine import EMBEDS, checkpoint, finish, vector
from tests.runtime.tiny_engine import TinyEngine
from tests.tiny_model import write_json

D, SIZE = 48, 6
PROMPTS = [prompt for prompt in prompts() if len(prompt) <= 40][:6]
WHOLE = EMBEDS | {"chunked_prefill_size": -1, "disable_radix_cache": True}
TOKENS: tuple[VectorKind, ...] = ("tokens",)
BOTH: tuple[VectorKind, ...] = ("dense", "tokens")
WEIGHTS = {
    "linear.weight": np.random.default_rng(0).standard_normal((SIZE, 3 * D)).astype(np.float32) / 8,
    "linear.bias": np.random.default_rng(1).standard_normal(SIZE).astype(np.float32),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a decoder with three poolings and a Dense, which wants prompts and short texts."""
    folder = checkpoint(tmp_path_factory.mktemp("several"))
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": ["max", "weightedmean", "lasttoken"]})
    (folder / "2_Dense").mkdir()
    dense = {"in_features": 3 * D, "out_features": SIZE, "activation_function": "torch.nn.modules.activation.Tanh"}
    write_json(folder / "2_Dense" / "config.json", dense)
    save_file(WEIGHTS, folder / "2_Dense" / "model.safetensors")
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense", "Normalize": "3_Normalize"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds.items()]
    write_json(folder / "modules.json", modules)
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "Find: "}})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 100, "do_lower_case": True})
    return folder


@pytest.fixture(scope="module")
def several(folder: Path) -> TinyEngine:
    return TinyEngine(folder, **EMBEDS)


@pytest.fixture(scope="module")
def of_tokens(folder: Path) -> TinyEngine:
    """What encoders are: their texts are computed in one step."""
    spec = PoolingSpec(("last",), (Normalize(),), gives_tokens=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine_inputs, "_pooling_of", lambda model, path: spec)
        return TinyEngine(folder, **WHOLE)


def run(
    engine: TinyEngine, texts: list[list[int]], kinds: dict[int, tuple[VectorKind, ...]] | None = None
) -> list[TokenOutput]:
    core = engine.core()
    for number, prompt in enumerate(texts):
        pooling = PoolingParams(kinds=(kinds or {}).get(number, ("dense",)))
        core.add(GenerationRequest(str(number), prompt, EMBEDDING_PARAMS, pooling=pooling))
    outputs = finish(core)
    return [outputs[str(number)] for number in range(len(texts))]


def hidden_of(outputs: list[TokenOutput]) -> list[np.ndarray]:
    return [np.frombuffer(output.token_vectors or b"", "<f4").reshape(-1, D) for output in outputs]


def test_a_vector_for_each_token(of_tokens: TinyEngine) -> None:
    """Of the requests that ask for it, whatever else is in the step."""
    mixed = run(of_tokens, PROMPTS, {1: TOKENS, 3: BOTH})
    assert [output.token_vectors is None for output in mixed] == [number not in (1, 3) for number in range(6)]
    assert [output.embedding == b"" for output in mixed] == [number == 1 for number in range(6)]
    every = run(of_tokens, PROMPTS, dict.fromkeys(range(6), BOTH))
    for output, prompt, states in zip(every, PROMPTS, hidden_of(every), strict=True):
        assert states.shape == (len(prompt), D)
        np.testing.assert_allclose(states[-1] / np.linalg.norm(states[-1]), vector(output), atol=1e-6)
    alone = hidden_of(run(of_tokens, [PROMPTS[3]], {0: TOKENS}))[0]
    np.testing.assert_allclose(hidden_of(mixed)[3], alone, atol=1e-5)
    spec = of_tokens.core().ready.embedding
    assert spec is not None
    assert (spec.kinds, spec.token_size) == (("dense", "tokens"), D)


def test_several_poolings_and_a_dense(several: TinyEngine, of_tokens: TinyEngine) -> None:
    states = hidden_of(run(of_tokens, PROMPTS, dict.fromkeys(range(6), TOKENS)))
    for output, text in zip(run(several, PROMPTS), states, strict=True):
        places = np.arange(1, len(text) + 1)[:, None]
        pooled = np.concatenate([text.max(0), (text * places).sum(0) / places.sum(), text[-1]])
        expected = np.tanh(WEIGHTS["linear.weight"] @ pooled + WEIGHTS["linear.bias"])
        np.testing.assert_allclose(vector(output), expected / np.linalg.norm(expected), atol=1e-5)


def test_what_the_engine_says_of_itself(several: TinyEngine) -> None:
    ready = several.core().ready
    spec = ready.embedding
    assert spec is not None
    assert (spec.size, spec.pooling, spec.normalized) == (SIZE, "max+weighted_mean+last", True)
    assert (spec.prompts, spec.default_prompt, spec.lowers_case) == ({"query": "Find: "}, None, True)
    assert (spec.kinds, spec.token_size, ready.context_length) == (("dense",), 0, 100)


def test_the_flag_is_before_the_files_length(folder: Path) -> None:
    assert TinyEngine(folder, **EMBEDS, compile="lazy", context_length=128).core().ready.context_length == 128


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "mean", "word_embedding_dimension": 7}, "word_embedding_dimension"),
        ("1_Pooling/config.json", {"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
        ("modules.json", [{"type": "pylate.models.Dense.Dense", "path": "2_Dense"}], "in_features"),
    ],
)
def test_files_that_do_not_fit(folder: Path, tmp_path: Path, file: str, content: object, named: str) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    if file == "1_Pooling/config.json":
        entries = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
        write_json(copy / "modules.json", entries)
    write_json(copy / file, content)
    with pytest.raises(ConfigError, match=named):
        TinyEngine(copy, **EMBEDS)
