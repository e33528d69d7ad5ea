"""Writes GGUF files of tiny checkpoints as llama.cpp's converter would: names, metadata, the order of the rows of
Llama's queries and keys, norms with 1 added. The gguf package says what blocks mean; nothing of the product does."""

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from safetensors.numpy import load_file

from tests.model.safetensors_writer import write_safetensors
from tests.tiny_model import write_json

NUMBERS = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ4_NL": 20,
    "IQ3_S": 21,
    "IQ4_XS": 23,
    "BF16": 30,
    "MXFP4": 39,
}
SCALES = {  # where the float16 numbers of a block are, and their size in usual weights
    "Q4_0": ((0, 6e-3),),
    "Q4_1": ((0, 6e-3), (2, 5e-2)),
    "Q5_0": ((0, 3e-3),),
    "Q5_1": ((0, 3e-3), (2, 5e-2)),
    "Q8_0": ((0, 4e-4),),
    "Q2_K": ((80, 2e-3), (82, 3e-3)),
    "Q3_K": ((108, 5e-4),),
    "Q4_K": ((0, 1e-4), (2, 6e-4)),
    "Q5_K": ((0, 5e-5), (2, 6e-4)),
    "Q6_K": ((208, 1e-5),),
    "IQ4_NL": ((0, 4e-4),),
    "IQ4_XS": ((0, 2e-5),),
    "MXFP4": (),
}
SIZES = {kind: GGML_QUANT_SIZES[GGMLQuantizationType[kind]] for kind in SCALES}
"""Numbers and bytes of a block."""
PARTS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
EXPERT_PARTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
GEMMA_PARTS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
Tensor = tuple[str, tuple[int, ...], bytes]  # type, shape with the inputs last, and what is in the file


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<Ii", 5, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(value)}f", 9, 6, len(value), *value)
        case list():
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    raise TypeError(value)


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], version: int = 3) -> Path:
    """Tensors begin at multiples of 32 bytes."""
    head = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    head += [_text(key) + _value(value) for key, value in metadata.items()]
    body = b""
    for name, (kind, shape, data) in tensors.items():
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head.append(_text(name) + sizes + struct.pack("<IQ", NUMBERS[kind], len(body)))
        body += data + bytes(-len(data) % 32)
    header = b"".join(head)
    path.write_bytes(header + bytes(-len(header) % 32) + body)
    return path


def write_parts(folder: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], num_parts: int) -> list[Path]:
    """Write parts as llama-gguf-split does: all metadata in the first."""
    folder.mkdir()
    files = []
    for number in range(num_parts):
        own = {**(metadata if number == 0 else {}), "split.no": number, "split.count": num_parts}
        path = folder / f"m-{number + 1:05}-of-{num_parts:05}.gguf"
        files.append(write_gguf(path, own, dict(list(tensors.items())[number::num_parts])))
    return files


def drawn_blocks(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """u8[rows, blocks, bytes]: every bit drawn, but scales of a size that weights have."""
    numbers, size = SIZES[kind]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // numbers, size), dtype=np.uint8)
    for start, scale in SCALES[kind]:
        halves = (rng.uniform(0.5, 2, blocks.shape[:2]) * scale).astype(np.float16)
        blocks[..., start : start + 2] = halves[..., None].view(np.uint8)
    if kind == "Q4_K":
        blocks[0, 0, 4], blocks[0, 0, 8] = 0, 40  # a group of one number, its minimum
    elif kind in ("Q4_1", "Q5_1"):
        blocks[0, 0, :2] = 0  # likewise
    elif kind == "MXFP4":
        blocks[..., 0] = rng.integers(116, 120, blocks.shape[:2])  # powers of two
    return blocks


def widened(kind: str, stored: np.ndarray) -> np.ndarray:
    """f32[rows, numbers], as the gguf package dequantizes blocks."""
    return dequantize(stored.reshape(len(stored), -1), GGMLQuantizationType[kind])


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """The rows of queries or keys as llama.cpp's converter lays them out for Llama."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_name(name: str, is_gemma: bool) -> str:
    module, end = name.rsplit(".", 1)
    parts = PARTS | GEMMA_PARTS if is_gemma else PARTS
    if module in parts:
        return f"{parts[module]}.{end}"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{parts[part]}.{end}"


def metadata_of(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    found = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_theta"]),
        "attention.key_length": config.get("head_dim") or config["hidden_size"] // heads,
    }
    own = {f"{architecture}.{key}": value for key, value in found.items()}
    return {"general.architecture": architecture, **own, "tokenizer.ggml.eos_token_id": 2}


def as_gguf(
    path: Path,
    architecture: str,
    kind: Callable[[str], str],
    more: Mapping[str, Any] | None = None,
    extra: Mapping[str, Tensor] | None = None,
    num_parts: int = 1,
) -> Path:
    """A GGUF file of a checkpoint in `path`, or its first part, and the same numbers as plain float32 in `path`/wide.

    Args:
        kind: the type of a matrix, by its name in safetensors. more: metadata. extra: tensors.
        num_parts: files, in `path`/parts where there are several.
    """
    config = json.loads((path / "config.json").read_text())
    rng, is_gemma = np.random.default_rng(0), architecture.startswith("gemma")
    written: dict[str, Tensor] = {}
    wide: dict[str, np.ndarray] = {}
    experts: dict[str, list[tuple[str, np.ndarray]]] = {}
    for name, given in load_file(path / "model.safetensors").items():
        values, of = given.astype(np.float32), kind(name) if given.ndim == 2 else "F32"
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        count = heads.get(name.split(".")[-2]) if architecture == "llama" else None
        if of in SIZES:
            stored = drawn_blocks(of, values.shape, rng)
            wide[name] = widened(of, stored)
        else:
            stored = values.astype(np.float16) if of == "F16" else values
            wide[name] = stored.astype(np.float32)
            if is_gemma and name.endswith("norm.weight"):
                stored = values + 1
                wide[name] = stored - np.float32(1)
        stored = stored if count is None else permuted(stored, count)
        if ".experts." in name:
            before, _, after = name.partition(".experts.")
            part = EXPERT_PARTS[after.split(".")[1]]
            experts.setdefault(f"blk.{before.split('.')[2]}.ffn_{part}_exps.weight", []).append((name, stored))
            written[f"blk.{before.split('.')[2]}.ffn_{part}_exps.weight"] = (of, values.shape, b"")
        else:
            written[gguf_name(name, is_gemma)] = (of, values.shape, stored.tobytes())
    for name, parts in experts.items():
        in_order = sorted(parts, key=lambda part: int(part[0].split(".experts.")[1].split(".")[0]))
        of, shape, _ = written[name]
        written[name] = (of, (len(parts), *shape), b"".join(stored.tobytes() for _, stored in in_order))
    copy = path / "wide"
    copy.mkdir()
    write_json(copy / "config.json", config | {"torch_dtype": "float32"})
    write_safetensors(copy / "model.safetensors", wide)
    metadata, tensors = {**metadata_of(config, architecture), **(more or {})}, {**written, **(extra or {})}
    if num_parts > 1:
        return write_parts(path / "parts", metadata, tensors, num_parts)[0]
    return write_gguf(path / "model.gguf", metadata, tensors)
