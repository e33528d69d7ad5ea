"""Writes a run's model as a Hugging Face directory.

python -m training.export --run DIR --to palladio/default_checkpoint
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from palladio.model.config.config import ModelConfig
from palladio.model.functional import ModelStructure, flatten_model, unflatten_model
from training.checkpoints import Leaves, State, load
from training.network import SEED, hf_config, model_config, new_model

HERE = Path(__file__).resolve().parent
COPIED = {"chat_template.jinja": "chat_template.jinja", "model_card.md": "README.md"}
Tensors = dict[str, np.ndarray[Any, Any]]


def export(run: Path, to: Path, name: str) -> None:
    """Export a run.

    Args:
        name: name of the run's file that holds the state.
    """
    to.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
    end_of_text, message_end = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    config = model_config(tokenizer)
    structure, leaves = flatten_model(new_model(config, SEED))
    state = load(run / name, State(0, leaves, None))
    _write_json(to / "config.json", hf_config(end_of_text, message_end))
    _write_json(
        to / "generation_config.json",
        {
            "bos_token_id": end_of_text,
            "pad_token_id": end_of_text,
            "eos_token_id": [message_end, end_of_text],
            "do_sample": True,
            "temperature": 0.3,
            "top_p": 0.9,
            "top_k": 20,
        },
    )
    _write_json(
        to / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "unk_token": None,
            "model_max_length": config.max_position_embeddings,
            "clean_up_tokenization_spaces": False,
        },
    )
    (to / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    for file, shipped in COPIED.items():
        shutil.copyfile(HERE / file, to / shipped)
    save_file(_tensors(structure, state.leaves, config), str(to / "model.safetensors"), metadata={"format": "pt"})
    print(f"step {state.step} of {run} is in {to}")


def _tensors(structure: ModelStructure, leaves: Leaves, config: ModelConfig) -> Tensors:
    """Hugging Face's names and shapes (out, in), bfloat16."""
    model = unflatten_model(structure, leaves)
    D, N, H = config.hidden_size, config.num_heads, config.head_size
    found: Tensors = {
        "model.embed_tokens.weight": model.embedding.table.values[...],
        "model.norm.weight": model.norm.scale[...],
    }
    for number, layer in enumerate(model.layers):
        qkv = np.asarray(layer.attention.qkv.kernel.values[...])  # [D, K, G+2, H]
        gate_up = np.asarray(layer.mlp.gate_up.kernel.values[...])  # [D, 2, F]
        prefix = f"model.layers.{number}."
        found |= {
            prefix + "input_layernorm.weight": layer.attention_norm.scale[...],
            prefix + "post_attention_layernorm.weight": layer.mlp_norm.scale[...],
            prefix + "self_attn.q_norm.weight": layer.attention.query_norm.scale[...],
            prefix + "self_attn.k_norm.weight": layer.attention.key_norm.scale[...],
            prefix + "self_attn.q_proj.weight": qkv[:, :, :-2].reshape(D, N * H).T,
            prefix + "self_attn.k_proj.weight": qkv[:, :, -2].reshape(D, -1).T,
            prefix + "self_attn.v_proj.weight": qkv[:, :, -1].reshape(D, -1).T,
            prefix + "self_attn.o_proj.weight": np.asarray(layer.attention.output.kernel.values[...]).T,
            prefix + "mlp.gate_proj.weight": gate_up[:, 0].T,
            prefix + "mlp.up_proj.weight": gate_up[:, 1].T,
            prefix + "mlp.down_proj.weight": np.asarray(layer.mlp.down.kernel.values[...]).T,
        }
    return {name: np.ascontiguousarray(np.asarray(array).astype(ml_dtypes.bfloat16)) for name, array in found.items()}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--state", default="final.npz", help="the run's file to take")
    args = parser.parse_args()
    export(args.run, args.to, args.state)


if __name__ == "__main__":
    main()
