"""What sentence-transformers' files say, and files that are damaged or belong to another model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from palladio.model.base.errors import CheckpointError, ConfigError
from palladio.model.loading.pooling_weights import read_pooling_weights
from palladio.model.pooling.pooling_files import read_modules, read_pooling
from palladio.model.pooling.pooling_spec import Dense, Normalize, PoolingSpec, VectorNorm
from palladio.model.pooling.text_settings import TextSettings

OLD, NEW = "sentence_transformers.models.", "sentence_transformers.base.modules."
TRANSFORMER, POOLING = (f"{OLD}Transformer", ""), (f"{OLD}Pooling", "1_Pooling")
DENSE, NORM, NORMALIZE = (
    (f"{OLD}Dense", "2_Dense"),
    (f"{NEW}layer_norm.LayerNorm", "3_LayerNorm"),
    (f"{NEW}normalize.Normalize", "4_Normalize"),
)
LAST = {"word_embedding_dimension": 8, "pooling_mode_cls_token": False, "pooling_mode_lasttoken": True}
MEAN = {"pooling_mode_mean_tokens": True}
TANH = {"in_features": 8, "out_features": 4, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}
RAW = (Normalize(),)


def write(folder: Path, files: dict[str, Any], modules: list[tuple[Any, str]] | None = None) -> Path:
    if modules is not None:
        entries = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (kind, path) in enumerate(modules)]
        files = {**files, "modules.json": entries}
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("pooling", "modules", "expected"),
    [
        (None, None, PoolingSpec(("last",), RAW)),
        (LAST, None, PoolingSpec(("last",), RAW)),
        ({**MEAN, "include_prompt": False}, None, PoolingSpec(("mean",), RAW, includes_prompt=False)),
        (LAST, [TRANSFORMER, POOLING, NORMALIZE], PoolingSpec(("last",), RAW)),
        (MEAN, [TRANSFORMER, POOLING], PoolingSpec(("mean",), ())),
        ({"pooling_mode_cls_token": True}, [TRANSFORMER, POOLING, NORMALIZE], PoolingSpec(("cls",), RAW)),
        ({"pooling_mode": "mean"}, [TRANSFORMER, POOLING, NORMALIZE], PoolingSpec(("mean",), RAW)),
        ({"pooling_mode": "weightedmean"}, [TRANSFORMER, POOLING], PoolingSpec(("weighted_mean",), ())),
        ({"pooling_mode": ["mean", "cls"]}, [TRANSFORMER, POOLING], PoolingSpec(("mean", "cls"), ())),
        ({"pooling_mode_mean_tokens": False}, [TRANSFORMER, POOLING], PoolingSpec(("mean",), ())),
        (  # in the library's order, whatever the file's
            {"pooling_mode_mean_sqrt_len_tokens": True, "pooling_mode_max_tokens": True, **MEAN},
            [TRANSFORMER, POOLING],
            PoolingSpec(("max", "mean", "mean_sqrt_len"), ()),
        ),
        (None, [TRANSFORMER], PoolingSpec(("last",), ())),
        ({"pooling_mode_max_tokens": True}, [TRANSFORMER, NORMALIZE], PoolingSpec(("last",), RAW)),  # no part of it
    ],
)
def test_what_a_checkpoint_asks_for(tmp_path: Path, pooling: Any, modules: Any, expected: PoolingSpec) -> None:
    folder = write(tmp_path, {} if pooling is None else {"1_Pooling/config.json": pooling}, modules)
    assert read_pooling(folder, 8) == expected


def test_modules_behind_the_pooling(tmp_path: Path) -> None:
    files = {"1_Pooling/config.json": MEAN, "2_Dense/config.json": TANH, "3_LayerNorm/config.json": {"dimension": 4}}
    spec = read_pooling(write(tmp_path, files, [TRANSFORMER, POOLING, DENSE, NORM, NORMALIZE]), 8)
    assert spec.steps == (Dense("2_Dense", 8, 4), VectorNorm("3_LayerNorm", 4), Normalize())
    assert (spec.size(8), spec.token_size(8), spec.name, spec.normalizes, spec.num_carried) == (4, 8, "mean", True, 1)
    residual = TANH | {"use_residual": True, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
    (dense,) = read_pooling(write(tmp_path, {"2_Dense/config.json": residual}, [TRANSFORMER, POOLING, DENSE]), 8).steps
    assert dense == Dense("2_Dense", 8, 4, has_bias=False, activation="identity", adds_input=True)
    assert [name for _, name, _ in PoolingSpec(("mean",), (dense,)).tensors] == ["linear.weight", "residual.weight"]


def test_a_vector_for_each_token(tmp_path: Path) -> None:
    """As PyLate writes it, whose models make them of length 1; and as sentence-transformers does."""
    dense = {"in_features": 8, "out_features": 4, "bias": False, "activation_function": "torch.nn.Identity"}
    files = {"1_Dense/config.json": dense}
    pylate = [(f"{OLD}Transformer", ""), ("pylate.models.Dense.Dense", "1_Dense")]
    spec = read_pooling(write(tmp_path, files, pylate), 8)
    assert (spec.methods, spec.token_size(8), spec.name) == ((), 4, "tokens")
    assert spec.token_steps == (Dense("1_Dense", 8, 4, has_bias=False, activation="identity"), Normalize())
    files["1_Dense/config.json"] = dense | {"module_input_name": "token_embeddings"}
    ours = [TRANSFORMER, (f"{NEW}dense.Dense", "1_Dense"), NORMALIZE]
    assert read_pooling(write(tmp_path, files, ours), 8) == spec


def test_the_default_is_the_callers(tmp_path: Path) -> None:
    default = PoolingSpec(("mean",), ())
    assert read_pooling(tmp_path, 8, default) == default
    assert read_pooling(write(tmp_path, {}, [TRANSFORMER, NORMALIZE]), 8, default) == PoolingSpec(("mean",), RAW)


POOLED = {"1_Pooling/config.json": MEAN}


@pytest.mark.parametrize(
    ("files", "modules", "named"),
    [
        ({"1_Pooling/config.json": {"pooling_mode_magic": True}}, None, "1_Pooling/config.json: pooling_mode_magic"),
        ({"1_Pooling/config.json": {"pooling_mode": "magic"}}, None, "1_Pooling/config.json: pooling_mode 'magic'"),
        ({"1_Pooling/config.json": {"pooling_mode": []}}, None, "1_Pooling/config.json: pooling_mode must"),
        ({"1_Pooling/config.json": {"pooling_mode_mean_tokens": 1}}, None, "pooling_mode_mean_tokens must be true"),
        ({"1_Pooling/config.json": MEAN | {"include_prompt": "no"}}, None, "include_prompt must be true"),
        ({"1_Pooling/config.json": []}, None, "1_Pooling/config.json must be a JSON object"),
        ({"1_Pooling/config.json": MEAN | {"word_embedding_dimension": 9}}, None, "word_embedding_dimension is 9"),
        ({"1_Pooling/config.json": MEAN | {"embedding_dimension": 9}}, None, "embedding_dimension is 9"),
        ({"1_Pooling/config.json": MEAN | {"word_embedding_dimension": "8"}}, None, "word_embedding_dimension must"),
        ({}, [TRANSFORMER, (f"{OLD}LSTM", "2_LSTM")], "modules.json: type '.*LSTM' is not supported"),
        ({}, [(5, "")], "modules.json must be a list of objects"),
        ({}, [POOLING, TRANSFORMER], "modules.json: the Transformer must be the first"),
        ({}, [TRANSFORMER, TRANSFORMER], "modules.json has 2 modules of type Transformer"),
        (POOLED, [TRANSFORMER, POOLING, DENSE], "2_Dense/config.json is missing"),
        (
            POOLED | {"2_Dense/config.json": TANH | {"in_features": 9}},
            [TRANSFORMER, POOLING, DENSE],
            "in_features is 9",
        ),
        (
            {"1_Pooling/config.json": {"pooling_mode": ["mean", "max"]}, "2_Dense/config.json": TANH},
            [TRANSFORMER, POOLING, DENSE],
            "in_features is 8, .* 16 numbers",
        ),
        (
            POOLED | {"2_Dense/config.json": TANH | {"out_features": 0}},
            [TRANSFORMER, POOLING, DENSE],
            "out_features must",
        ),
        (
            POOLED | {"2_Dense/config.json": TANH | {"activation_function": "torch.nn.PReLU"}},
            [TRANSFORMER, POOLING, DENSE],
            "2_Dense/config.json: activation_function 'torch.nn.PReLU'",
        ),
        (POOLED | {"3_LayerNorm/config.json": {"dimension": 4}}, [TRANSFORMER, POOLING, NORM], "dimension is 4"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, files: dict[str, Any], modules: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_pooling(write(tmp_path, files, modules), 8)


def test_a_file_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(ConfigError, match=r"cannot read .*modules.json as JSON"):
        read_modules(tmp_path)
    with pytest.raises(ConfigError, match="no path below it"):
        read_pooling(write(tmp_path, {}, [TRANSFORMER, (f"{OLD}Pooling", "../other")]))


def test_tensors_of_the_modules(tmp_path: Path) -> None:
    files = {"1_Pooling/config.json": MEAN, "2_Dense/config.json": TANH}
    spec = read_pooling(write(tmp_path, files, [TRANSFORMER, POOLING, DENSE]), 8)
    file = tmp_path / "2_Dense" / "model.safetensors"
    with pytest.raises(CheckpointError, match=r"2_Dense/model.safetensors is missing"):
        read_pooling_weights(tmp_path, spec)
    (tmp_path / "2_Dense" / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin"):
        read_pooling_weights(tmp_path, spec)
    stored = {"linear.weight": np.ones((4, 8), np.float16), "linear.bias": np.arange(4, dtype=np.float32)}
    save_file(stored, file)
    matrix, bias = read_pooling_weights(tmp_path, spec)
    assert (matrix.dtype, matrix.shape, bias.tolist()) == (np.float32, (4, 8), [0, 1, 2, 3])
    assert [one.shape for one in read_pooling_weights(tmp_path / "none", spec, is_dummy=True)] == [(4, 8), (4,)]
    for changed, named in (
        ({"linear.weight": stored["linear.weight"]}, "missing keys .* linear.bias"),
        (stored | {"other": stored["linear.bias"]}, "unexpected keys .* other"),
        (stored | {"linear.bias": np.ones(5, np.float32)}, r"linear.bias .* shape \(5,\)"),
        (stored | {"linear.bias": np.ones(4, np.int32)}, "linear.bias .* dtype I32"),
    ):
        save_file(changed, file)
        with pytest.raises(CheckpointError, match=named):
            read_pooling_weights(tmp_path, spec)


SETTINGS, LENGTH = "config_sentence_transformers.json", "sentence_bert_config.json"


def test_settings_of_texts(tmp_path: Path) -> None:
    assert TextSettings.of(tmp_path) == TextSettings()
    prompts = {"query": "Find: ", "document": ""}
    files = {
        SETTINGS: {"prompts": prompts, "default_prompt_name": "query", "similarity_fn_name": "dot", "extra": 1},
        LENGTH: {"max_seq_length": 256, "do_lower_case": True},
    }
    assert TextSettings.of(write(tmp_path, files)) == TextSettings(prompts, "query", 256, True, "dot")
    write(tmp_path, {SETTINGS: {"activation_fn": "torch.nn.modules.activation.Sigmoid"}, LENGTH: {}})
    assert TextSettings.of(tmp_path) == TextSettings(activation="sigmoid")
    write(tmp_path, {"0_BERT/sentence_bert_config.json": {"max_seq_length": 99}}, [(f"{OLD}Transformer", "0_BERT")])
    assert TextSettings.of(tmp_path).max_length == 99, "where modules.json says it is"


def test_marks_of_a_model_of_tokens(tmp_path: Path) -> None:
    """PyLate's names of the prompts."""
    write(tmp_path, {SETTINGS: {"query_prefix": "[Q] ", "document_prefix": "[D] "}})
    assert TextSettings.of(tmp_path).prompts == {"query": "[Q] ", "document": "[D] "}


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        (SETTINGS, {"prompts": ["a"]}, "prompts must"),
        (SETTINGS, {"prompts": {"a": 1}}, "prompts must"),
        (SETTINGS, {"prompts": {"a": "x" * 20_000}}, "prompt 'a' has 20000"),
        (SETTINGS, {"prompts": {str(i): "" for i in range(2000)}}, "prompts has 2000"),
        (SETTINGS, {"prompts": {"a": ""}, "default_prompt_name": "b"}, "default_prompt_name 'b'"),
        (SETTINGS, {"similarity_fn_name": 1}, "similarity_fn_name must"),
        (SETTINGS, {"activation_fn": "torch.nn.PReLU"}, "activation_fn"),
        (SETTINGS, [], "must contain a JSON object"),
        (LENGTH, {"max_seq_length": 0}, "max_seq_length must"),
        (LENGTH, {"max_seq_length": "256"}, "max_seq_length must"),
        (LENGTH, {"do_lower_case": 1}, "do_lower_case must"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, name: str, content: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        TextSettings.of(write(tmp_path, {name: content}))
