"""all-MiniLM-L6-v2 beside transformers, pooled as sentence-transformers does; `python -m tests.real.encoder FOLDER
REQUEST ANSWER` is the process of transformers."""

import concurrent.futures
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

TOLERANCE: Final = 1e-5
"""Of a component of a vector of length 1. Both sides compute in float32."""
LONGEST: Final = 512
_LENGTHS: Final = (1, 2, 511, 512)  # tokens, those that begin and end a text included
NUM_CLIENTS: Final = 32


def texts_of(lines: Sequence[str]) -> list[str]:
    """The texts to compare: lines, emoji, and one word again and again."""
    return [*lines, "🙂", "👩‍🚀🇫🇷🙂" * 20, "word " * (LONGEST - 2), "a"]


def answer(folder: Path, texts: Sequence[str]) -> dict[str, Any]:
    """Token ids, and vectors, of texts and of the lengths at which something changes."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    ids = [tokenizer(text, truncation=True, max_length=LONGEST)["input_ids"] for text in texts]
    first, *_, last = ids[0]
    ids += [[first, last]]  # an empty text
    ids += [[first, *([7592] * (length - 2)), last][:length] for length in _LENGTHS]
    found = []
    with torch.inference_mode():
        for one in ids:
            mean = model(torch.tensor([one])).last_hidden_state[0].mean(dim=0)
            found.append((mean / mean.norm()).tolist())
    return {"ids": ids, "vectors": found}


def largest_differences(client: Any, texts: Sequence[str], expected: dict[str, Any]) -> dict[str, float]:
    """The largest difference of a component: of all texts in one request, and of each id list by itself, from several
    clients at once."""
    meant = np.array(expected["vectors"])

    def vectors(inputs: Any) -> Any:
        reply = client.post("/v1/embeddings", json={"model": "m", "input": inputs})
        assert reply.status_code == 200, reply.text
        return np.array([one["embedding"] for one in reply.json()["data"]])

    together = vectors(list(texts))
    with concurrent.futures.ThreadPoolExecutor(NUM_CLIENTS) as pool:
        alone = np.concatenate(list(pool.map(lambda ids: vectors([ids]), expected["ids"])))
    return {
        "texts in one request": float(np.abs(together - meant[: len(texts)]).max()),
        f"token ids, from {NUM_CLIENTS} clients": float(np.abs(alone - meant).max()),
    }


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    Path(sys.argv[3]).write_text(json.dumps(answer(Path(sys.argv[1]), asked)), encoding="utf-8")
