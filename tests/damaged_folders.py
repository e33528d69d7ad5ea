"""Small whole model folders, and damages to them: each number of a seed is one damage to one file of one folder."""

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from tests.model.gguf_files import as_gguf
from tests.model.quantized_checkpoints import GROUP, awq, rewrite
from tests.tiny_model import make_checkpoint, write_json
from tests.tiny_tokenizer import build_tiny_sentencepiece, build_tiny_tokenizer

SMALL = {"num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 64}
TEMPLATE = "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content }}{%- endfor %}"
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 3, 2**31, 10**9, 10**30, -0.0, 0.5, 1e308, float("inf"), float("nan")),
    *("", "x", "1", "../../../etc/passwd", "/dev/zero", "a/b", "\ud800", "\0", "{{", "x" * 100_000, "(a+)+$"),
    *([], {}, [[]], [None], {"a": {}}, [0] * 1000, ["x"] * 1000, list(range(-5, 5)), {"type": "x"}),
)
HEAD = 4096  # bytes at the beginning of a binary file, of which most are of its header

Damage = Callable[[random.Random, Path], None]


def make_folders(root: Path) -> dict[str, Path]:
    """Whole ones, by kind: what `serve` is given. The one that is converted needs jax, and is made elsewhere."""
    plain = make_checkpoint(root / "plain", "qwen2", **SMALL)
    build_tiny_tokenizer(plain)
    (plain / "chat_template.jinja").write_text(TEMPLATE)
    write_json(plain / "special_tokens_map.json", {"eos_token": "<|im_end|>"})
    write_json(plain / "added_tokens.json", {"<think>": 380})
    divided = _divide(shutil.copytree(plain, root / "divided"))
    quantization = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
    quantized = rewrite(
        make_checkpoint(root / "awq", "qwen2", **SMALL), lambda _, rng, shape: awq(rng, shape), quantization
    )
    shutil.rmtree(quantized / "wide")
    write_json(quantized / "quant_config.json", {"w_bit": 4, "q_group_size": GROUP, "zero_point": True})
    build_tiny_sentencepiece(quantized)
    gguf = as_gguf(make_checkpoint(root / "llama", "llama3", **SMALL), "llama", lambda _: "F32", _vocabulary())
    return {"plain": plain, "divided": divided, "awq": quantized, "gguf": gguf}


def _divide(folder: Path) -> Path:
    """Its weights in two files with an index, one of them in a folder below."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = {name: ("a.safetensors", "below/b.safetensors")[number % 2] for number, name in enumerate(tensors)}
    (folder / "below").mkdir()
    for file in set(names.values()):
        save_file({name: tensors[name] for name in names if names[name] == file}, folder / file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": names})
    return folder


def _vocabulary() -> dict[str, Any]:
    """A sentencepiece model's, as GGUF has it."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"t{number}" for number in range(384 - len(tokens))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (384 - 259)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [float(-number) for number in range(384)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.chat_template": TEMPLATE,
    }


def damage(source: Path, target: Path, rng: random.Random) -> tuple[Path, str]:
    """A damaged copy of a folder, or of a GGUF file. Returns its path, and what was done to it."""
    if source.is_file():
        target.mkdir()
        path = file = target / source.name
        shutil.copyfile(source, file)
    else:
        path = shutil.copytree(source, target)
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
        few = [file for file in files if "parameters" not in file.parts] or files
        file = rng.choice(few if rng.random() < 0.9 else files)
    kinds = [*BYTES, *ODD] if path.is_dir() else [*BYTES, *HEADS]
    if file.suffix == ".json":
        kinds = [*JSON * 4, *kinds]
    elif file.suffix == ".safetensors":
        kinds = [*HEADERS * 4, *kinds]
    elif file.suffix == ".jinja":
        kinds = [*TEMPLATES * 3, *kinds]
    change = rng.choice(kinds)
    change(rng, file)
    return path, f"{file.relative_to(target)}: {change.__name__.strip('_')}"


def _in_json(rng: random.Random, value: Any) -> Any:
    """The same with one place changed, which may be any part of it."""
    parts = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    if not parts or rng.random() < 0.15:
        return rng.choice(VALUES)
    key, inner = rng.choice(parts[:40])
    copy = value.copy()
    what = rng.random()
    if what < 0.1:
        del copy[key]
    elif what < 0.15 and isinstance(copy, dict):
        copy[str(rng.choice(VALUES))[:1000]] = inner
    elif what < 0.5:
        copy[key] = rng.choice(VALUES)
    else:
        copy[key] = _in_json(rng, inner)
    return copy


def _value(rng: random.Random, file: Path) -> None:
    changed = json.loads(file.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 3))):
        changed = _in_json(rng, changed)
    file.write_text(json.dumps(changed))


def _depth(rng: random.Random, file: Path) -> None:
    text, depth = file.read_text(), rng.choice((100, 1000, 100_000))
    begin, end = rng.choice((("[", "]"), ('{"a":', "}")))
    deep = begin * depth + "1" + end * depth
    place = text.find(":")
    file.write_text(text[: place + 1] + deep + "," + '"x":' + text[place + 1 :] if place >= 0 else deep)


def _twice(rng: random.Random, file: Path) -> None:
    text = file.read_text()
    file.write_text(text.replace("{", '{"architectures": 5, "a": 1, "a": 2, ', 1))


def _many(rng: random.Random, file: Path) -> None:
    """A list or an object of very many parts."""
    content = json.loads(file.read_bytes())
    if isinstance(content, dict) and content:
        key = rng.choice(sorted(content))
        count = rng.choice((20_000, 100_000))
        content[key] = rng.choice(
            ([0] * count, {f"k{i}": i for i in range(count)}, [{"id": i, "content": f"<{i}>"} for i in range(count)])
        )
        file.write_text(json.dumps(content))


def _header(rng: random.Random, file: Path) -> None:
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(_in_json(rng, json.loads(data[8 : 8 + size]))).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])


def _deep_header(rng: random.Random, file: Path) -> None:
    header = b"[" * 200_000 + b"]" * 200_000
    file.write_bytes(len(header).to_bytes(8, "little") + header)


def _length(rng: random.Random, file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(rng.choice((0, 1, 2**31, 2**63, 2**64 - 1, len(data) - 8)).to_bytes(8, "little") + data[8:])


def _flips(rng: random.Random, file: Path) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 8))):
        if data:
            data[rng.randrange(min(len(data), HEAD))] = rng.choice((0, 0xFF, 0x22, 0x5B, rng.randrange(256)))
    file.write_bytes(data)


def _cut(rng: random.Random, file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: rng.randrange(len(data) + 1)])


def _inserted(rng: random.Random, file: Path) -> None:
    data = file.read_bytes()
    place = rng.randrange(min(len(data), HEAD) + 1)
    more = rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\0" * 8, b"[" * 50_000, b'"', b"NaN", b"9" * 5000, b"\\ud800"))
    file.write_bytes(data[:place] + more + data[place:])


def _empty(rng: random.Random, file: Path) -> None:
    file.write_bytes(rng.choice((b"", b"\0" * 100, b"null", b"[]", b"{}", b"5", b'"x"', "{}".encode("utf-16"))))


def _number(rng: random.Random, file: Path) -> None:
    """A count or a length in the head of a GGUF file."""
    data = bytearray(file.read_bytes())
    place, size = rng.randrange(4, min(len(data) - 8, HEAD)), rng.choice((4, 8))
    data[place : place + size] = rng.choice((0, 1, 7, 2**16, 2**31 - 1, 2**32 - 1)).to_bytes(size, "little")
    file.write_bytes(data)


def _long_array(rng: random.Random, file: Path) -> None:
    """A GGUF key whose array has 3·10⁹ bytes, which are there; on the disk it is a hole."""
    head = b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little") + (1).to_bytes(8, "little") + b"k"
    file.write_bytes(head + b"\x09\0\0\0" + bytes(4) + (3 * 10**9).to_bytes(8, "little"))
    os.truncate(file, 3 * 10**9 + HEAD)


def _piece(rng: random.Random, file: Path) -> None:
    """A part of a template is gone, or there again."""
    text = file.read_text()
    first, second = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    file.write_text(text[:first] + text[first:second] * rng.choice((0, 2, 100)) + text[second:])


def _nested(rng: random.Random, file: Path) -> None:
    depth = rng.choice((50, 90, 300, 3000, 50_000))
    begin, inner, end = rng.choice(
        (("(", "1", ")"), ("{% if x %}", "a", "{% endif %}"), ("", "x", "|trim"), ("[", "", "]"), ("", "x", "()"))
    )
    text = begin * depth + inner + end * depth
    file.write_text(text if "%" in text else "{{ " + text + " }}")


def _large(rng: random.Random, file: Path) -> None:
    part = rng.choice(("text ", "{{ messages[0].content }}\n", "{% set a = 1 %}", "{{ 'a' * 1000000000 }}"))
    file.write_text(part * (rng.choice((100_000, 9_000_000)) // len(part)))


def _pipe(rng: random.Random, file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _folder(rng: random.Random, file: Path) -> None:
    file.unlink()
    file.mkdir()


def _link(rng: random.Random, file: Path) -> None:
    file.unlink()
    file.symlink_to(rng.choice(("/etc/passwd", "/dev/zero", "/nowhere", file.name, "config.json", "..")))


def _gone(rng: random.Random, file: Path) -> None:
    file.unlink()


def _endless(rng: random.Random, file: Path) -> None:
    os.truncate(file, 5 * 10**9)  # a hole


JSON: tuple[Damage, ...] = (_value, _value, _value, _depth, _twice, _many)
HEADERS: tuple[Damage, ...] = (_header, _header, _deep_header, _length)
TEMPLATES: tuple[Damage, ...] = (_piece, _nested, _large)
BYTES: tuple[Damage, ...] = (_flips, _flips, _cut, _inserted, _empty)
HEADS: tuple[Damage, ...] = (_number, _number, _number, _number, _long_array)
ODD: tuple[Damage, ...] = (_pipe, _folder, _link, _gone, _endless)


def pick(folders: Mapping[str, Path], seed: int, number: int, target: Path) -> tuple[str, Path, str]:
    """Damage number so and so of a seed. Returns the kind of the folder, the damaged copy, and what was done."""
    rng = random.Random(f"{seed} {number}")
    kind = rng.choice(sorted(folders))
    path, text = damage(folders[kind], target, rng)
    return kind, path, f"{kind} {text}"
