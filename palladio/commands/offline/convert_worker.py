"""The process that `palladio convert` starts: jax is imported here, on the host's own memory.

python -m palladio.commands.offline.convert_worker HF_DIR OUT DTYPE QUANTIZATION
"""

from palladio.processes.early_signals import INTERRUPTED, end_at_once

if __name__ == "__main__":
    end_at_once(INTERRUPTED)  # before what takes seconds to import

import json
import logging
import sys
import time
from pathlib import Path

from palladio.model.config.config import DTYPES, ModelConfig, read_model_dir
from palladio.model.gguf.gguf_file import is_gguf
from palladio.model.loading.manifest import is_converted
from palladio.model.loading.orbax_weights import convert
from palladio.model.loading.stored_config import agree_with_weights
from palladio.runtime.core.plan.class_tokens import with_class_tokens
from palladio.runtime.front.control.progress import ProgressDisplay
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.messages.engine_state import LoadProgress
from palladio.runtime.telemetry.logs import configure_logging
from palladio.runtime.text.hub.hub import resolve_model_path
from palladio.runtime.text.hub.hub_download import DownloadListener
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from palladio.server.launch import run_worker

logger = logging.getLogger("palladio.engine")


def main() -> int:
    """Returns the exit code, see run_worker."""
    configure_logging("info")
    logging.getLogger("absl").setLevel(logging.WARNING)  # orbax logs every step
    source, out, dtype, quantization = sys.argv[1:]
    return run_worker(lambda: _convert(_find(source), Path(out).expanduser(), dtype, quantization or None))


def _find(source: str) -> Path:
    """Its directory, or its GGUF file; shows the download of a hub id."""
    display = ProgressDisplay()
    try:
        return resolve_model_path(source, listener=DownloadListener(display.update), flag="HF_DIR")
    finally:
        display.close()


def _convert(source: Path, out: Path, dtype: str, quantization: str | None) -> None:
    if is_converted(source):
        raise ConfigError(f"{source} is already a converted checkpoint; give the Hugging Face model directory")
    if out.exists() and out.samefile(source):
        raise ConfigError(f"OUT {out} is the model directory itself; give another directory")
    published = with_class_tokens(ModelConfig.from_hf(*read_model_dir(source)), source)
    config = agree_with_weights(source, published, "safetensors", quantization)
    display, start = ProgressDisplay(), time.perf_counter()
    try:
        convert(
            source,
            out,
            config,
            next((name for name in DTYPES if name == dtype), config.dtype),
            lambda done, total: display.update(LoadProgress("load", done, total)),
        )
    except OSError as error:
        raise ConfigError(f"cannot write to {out}: {error}") from error
    finally:
        display.close()
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    seconds = time.perf_counter() - start
    if is_gguf(source):
        _write_beside(source, out)
    logger.info(
        "Converted checkpoint written to %s (%.2f GB, %.1f s); serve it with --model-path %s",
        out,
        size / 1e9,
        seconds,
        out,
    )


def _write_beside(source: Path, out: Path) -> None:
    """What a GGUF file has in its metadata, and a model directory in files."""
    config, _ = read_model_dir(source)
    del config["quantization_config"]  # of the file; the manifest has what became of it
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    Tokenizer.load(source).save(out)


if __name__ == "__main__":
    sys.exit(main())
