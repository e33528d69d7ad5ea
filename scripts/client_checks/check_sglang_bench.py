"""SGLang's bench_serving: a short run of random prompts on each of its routes, with streams and without.

`import sglang` brings torch, which the benchmark's client never uses: the packages around it are entered without
running their __init__, and the one constant it takes from a module that needs torch is given here.
"""

import importlib.util
import json
import os
import runpy
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

from checks import KEY, MODEL, MODEL_DIR, URL, equal, run_checks, true

NUM_PROMPTS, OUTPUT_LENGTH = 6, 64  # so many that a busy machine does not send an answer in one event
FOLDER = Path(tempfile.mkdtemp(prefix="palladio-bench-"))


def _enter_packages() -> None:
    (root,) = importlib.util.find_spec("sglang").submodule_search_locations
    for name in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.disaggregation"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(root, *name.split(".")[1:])]
        sys.modules[name] = package
    constants = types.ModuleType("sglang.srt.disaggregation.utils")
    constants.FAKE_BOOTSTRAP_HOST = "2.2.2.2"
    sys.modules[constants.__name__] = constants


def _run(backend: str, *more: str) -> dict[str, Any]:
    """The result of a run, in which every request has to succeed and give all the tokens that it asked for."""
    output = FOLDER / f"{backend}{len(list(FOLDER.iterdir()))}.jsonl"
    arguments: dict[str, Any] = {"backend": backend, "base-url": URL, "served-model-name": MODEL, "output-file": output}
    arguments |= {"model": MODEL_DIR, "tokenizer": MODEL_DIR, "dataset-name": "random-ids", "seed": 1}
    arguments |= {"num-prompts": NUM_PROMPTS, "max-concurrency": 3, "random-range-ratio": 1.0}
    arguments |= {"random-input-len": 24, "random-output-len": OUTPUT_LENGTH}
    words = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    sys.argv = ["bench_serving", *words, "--disable-tqdm", "--output-details", *more]
    for name in [name for name in sys.modules if name.startswith("sglang.benchmark")]:
        del sys.modules[name]
    runpy.run_module("sglang.benchmark.serving", run_name="__main__")
    result = json.loads(output.read_text(encoding="utf-8").splitlines()[-1])
    equal((result["completed"], [error for error in result["errors"] if error]), (NUM_PROMPTS, []))
    equal(result["output_lens"], [OUTPUT_LENGTH] * NUM_PROMPTS)
    return result


def check_generate() -> None:
    result = _run("sglang", "--flush-cache", "--warmup-requests", "1", "--cache-report")
    true(result["mean_ttft_ms"] > 0)
    true(result["mean_itl_ms"] > 0)


def check_generate_without_streams() -> None:
    _run("sglang", "--disable-stream", "--return-logprob", "--top-logprobs-num", "2")


def check_token_ids() -> None:
    _run("sglang", "--tokenize-prompt")


def check_completions() -> None:
    true(_run("sglang-oai")["mean_ttft_ms"] > 0)


def check_chat_completions() -> None:
    true(_run("sglang-oai-chat")["mean_ttft_ms"] > 0)


def check_chat_completions_without_streams() -> None:
    _run("sglang-oai-chat", "--disable-stream")


if __name__ == "__main__":
    os.environ["OPENAI_API_KEY"] = KEY
    _enter_packages()
    run_checks()
