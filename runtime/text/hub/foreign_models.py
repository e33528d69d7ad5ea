"""What a model path is, if it is no Hugging Face model directory: each form that people give, with what to do."""

import re
from pathlib import Path
from typing import Any

from palladio.model.base.errors import CheckpointError
from palladio.model.files.small_files import read_object
from palladio.model.gguf.gguf_model import is_projector

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BUCKETS = {  # scheme → how to mount a bucket, and how to copy
    "gs": ("gcsfuse --implicit-dirs BUCKET DIR", "gcloud storage cp --recursive"),
    "s3": ("mount-s3 BUCKET DIR", "aws s3 cp --recursive"),
}
_ORIGINALS = ("params.json", "consolidated.00.pth")

_MOST_SHOWN = 3  # names of files


def describe_address(path: str) -> str | None:
    """Why a path that is a URL cannot be served, and what to do; None: it is no URL."""
    scheme = _SCHEME.match(path)
    if scheme is None:
        return None
    name = scheme[0].removesuffix("://").lower()
    if name == "file":
        return f"{path} is a URL: give the path without {scheme[0]}"
    if name in _BUCKETS:
        mount, copy = _BUCKETS[name]
        return f"{path} is a URL: mount the bucket ({mount}) or copy the model ({copy} …), and give the local directory"
    return f"{path} is a URL: download the model first, and give the local directory"


def describe_folder(folder: Path, *, needs_weights: bool) -> str | None:
    """What a directory holds in place of a model, and what to do; None: it may be a model, or nothing is known.

    Args:
        needs_weights: config.json alone does not make it a model.
    """
    if (folder / "config.json").is_file():
        if needs_weights and not any(folder.glob("*.safetensors")):
            return _gguf_files(folder) or _torch_files(folder) or _onnx_files(folder)
        return _mlx_config(folder)
    if any(folder.glob("*.gguf")):
        return _gguf_files(folder)
    if (folder / "adapter_config.json").is_file():
        base = _base_model(folder / "adapter_config.json")
        return (
            f"{folder} is an adapter (LoRA), not a model: merge it into its base model{base} with peft "
            "(merge_and_unload, then save_pretrained), and give the merged model's directory"
        )
    if any((folder / name).is_file() for name in _ORIGINALS):
        return (
            f"{folder} has Meta's or Mistral's original format (params.json), not Hugging Face's: give the Hugging "
            "Face version of the model, or convert it with transformers' convert_<family>_weights_to_hf.py"
        )
    if (folder / "model_index.json").is_file():
        return f"{folder} is a diffusers pipeline: only models that generate or embed text are supported"
    inner = [file.parent for pattern in ("*", "snapshots/*") for file in sorted(folder.glob(f"{pattern}/config.json"))]
    if inner:
        return f"{folder} has no config.json, but {inner[0]} has one: give that directory"
    return None


def _gguf_files(folder: Path) -> str | None:
    files = [str(file) for file in sorted(folder.glob("*.gguf")) if not is_projector(file)]
    if not files:
        return None
    more = f", … ({len(files)} files)" if len(files) > _MOST_SHOWN else ""
    return f"{folder} is a directory of several GGUF models: give one of them: {', '.join(files[:_MOST_SHOWN])}{more}"


def _torch_files(folder: Path) -> str | None:
    name = next((file.name for file in sorted(folder.glob("pytorch_model*.bin"))), None)
    if name is None:
        return None
    return (
        f"{folder} has {name} and no *.safetensors: such files can run code and are not read. Take a revision of the "
        "model with safetensors, or convert it with transformers (from_pretrained, then save_pretrained)"
    )


def _onnx_files(folder: Path) -> str | None:
    if not any(folder.glob("*.onnx")) and not any(folder.glob("onnx/*.onnx")):
        return None
    return f"{folder} holds an ONNX model: give the checkpoint that it was exported from, with *.safetensors"


def _mlx_config(folder: Path) -> str | None:
    """MLX writes how it quantized under a key of its own."""
    quantization = _read_object(folder / "config.json").get("quantization")
    if not isinstance(quantization, dict) or "group_size" not in quantization:
        return None
    return (
        f"{folder} is quantized by MLX, in a format for Apple's devices: give the model that it was made of, or one "
        "quantized otherwise (AWQ, GPTQ, compressed-tensors, GGUF)"
    )


def _base_model(config: Path) -> str:
    """The name of an adapter's base model, as part of a sentence."""
    name = _read_object(config).get("base_model_name_or_path")
    return f" ({name})" if isinstance(name, str) and name else ""


def _read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object; {} if there is none, or it cannot be read, which later readers report."""
    try:
        return read_object(file.parent, file.name) or {}
    except CheckpointError:
        return {}
