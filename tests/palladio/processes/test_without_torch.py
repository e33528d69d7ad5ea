"""A server's process never imports torch, though it is installed; a library's user does as ever."""

import importlib.util
import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch, which must stay out")

LOAD = """
import json, sys
{first}
from palladio.flags.default_model import default_model_path
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
tokenizer = Tokenizer.load(default_model_path())
had_torch = "torch" in sys.modules
import torch
print(json.dumps([tokenizer.encode("a house"), had_torch, torch.ones(2).sum().item()]))
"""


def load_after(first: str) -> tuple[list[int], bool, float]:
    done = subprocess.run(
        [sys.executable, "-c", LOAD.format(first=first)], capture_output=True, text=True, check=True, timeout=120
    )
    ids, had_torch, total = json.loads(done.stdout)
    return ids, had_torch, total


@pytest.mark.slow  # tests/integration/test_structured_output.py looks at a server
def test_transformers_does_not_see_torch_and_others_do():
    hide = "from palladio.processes.without_torch import hide_torch_from_transformers as hide; hide(); hide()"
    hidden = load_after(hide)
    assert hidden[1:] == (False, 2.0)
    plain = load_after("")
    assert plain == (hidden[0], True, 2.0)  # else transformers no longer imports it, and nothing need be hidden
