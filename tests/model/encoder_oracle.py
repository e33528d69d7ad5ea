"""The results of transformers (with torch) for encoders whose every number is random. Only imported where torch is."""

from pathlib import Path

import torch
import transformers

from tests.tiny_encoders import config_of


def save(architecture: str, folder: Path, **overrides) -> Path:
    """Writes a checkpoint as transformers does, with random numbers in all parameters and buffers that it stores."""
    given = config_of(architecture, **overrides)
    kind = given.pop("model_type")
    config = transformers.AutoConfig.for_model(kind, **given)
    model = getattr(transformers, architecture)(config)
    generator = torch.Generator().manual_seed(len(architecture))
    with torch.no_grad():
        for name, values in model.state_dict().items():
            if not values.is_floating_point():
                continue
            noise = torch.randn(values.shape, generator=generator)
            is_norm = values.ndim == 1 and name.endswith("weight")
            is_table = "embeddings" in name or "bias" in name
            factor = 0.2 if is_norm else 0.5 if is_table else 2.0 / values.shape[-1] ** 0.5
            values.copy_(noise * factor + (1.0 if is_norm else 0.0))
    if kind == "gemma3_text":  # transformers halves the window whenever it reads a file, and saves what it has halved
        model.config.sliding_window = given["sliding_window"]
    model.save_pretrained(folder)
    return folder


@torch.inference_mode()
def run(folder: Path, architecture: str, texts, types=None):
    """Of each text by itself the hidden states [len, D], or the logits of its labels."""
    torch.set_num_threads(1)
    kind = getattr(transformers, architecture)
    model, info = kind.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"], info
    assert not info["unexpected_keys"], info
    found = []
    for number, text in enumerate(texts):
        inputs = {"input_ids": torch.tensor([text])}
        if types is not None:
            inputs["token_type_ids"] = torch.tensor([types[number]])
        out = model(**inputs)
        found.append((out.logits if "Classification" in architecture else out.last_hidden_state)[0].numpy())
    return found
