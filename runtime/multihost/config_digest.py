"""Settings and files that must be the same on all hosts that run one model together."""

import hashlib
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

from palladio.model.files.small_files import MAX_TABLE_BYTES, read_bytes
from palladio.model.loading.readers.checkpoint import has_weights, weight_files
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.version import __version__

# What may differ: paths, time limits, how much is logged, and what host 0 decides for all.
_OWN = frozenset(
    {
        *("model_path", "tokenizer_path", "download_dir", "compilation_cache_dir", "crash_dump_folder"),
        *("node_rank", "base_gpu_id", "dist_init_addr", "dist_coordinator_port", "dist_timeout", "watchdog_timeout"),
        "soft_watchdog_timeout",
        *("device_wait", "health_timeout", "max_engine_restarts", "decode_log_interval", "random_seed"),
    }
)
_FILES = ("config.json", "model.safetensors.index.json", "palladio_checkpoint.json")  # as a whole
_SAMPLE = 2**16  # bytes at the beginning, in the middle and at the end of a file of weights


def config_digest(config: EngineConfig) -> Mapping[str, str]:
    """Flag or fact → value, as text. `source.model_path` is a directory."""
    flags = {f"--{name.replace('_', '-')}": str(value) for name, value in config.flags().items() if name not in _OWN}
    packages = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    return {"palladio": __version__, **packages, "the model": model_hash(config.source), **flags}


def model_hash(source: ModelSource) -> str:
    """Hash a model's config and tokenizer, and the sizes and samples of its weights: all of them would take minutes."""
    found, folder = hashlib.sha256(), Path(source.model_path)
    places = [(folder, name) for name in _FILES] + [(Path(source.tokenizer_path or folder), "tokenizer.json")]
    for place, name in places:
        content = read_bytes(place, name, MAX_TABLE_BYTES)
        found.update(b"none" if content is None else content)
    weights = [folder] if folder.is_file() else weight_files(folder) if has_weights(folder) else []
    for path in weights if source.load_format != "dummy" else ():
        found.update(f"{path.name} {path.stat().st_size}".encode())
        found.update(_sample(path))
    return found.hexdigest()[:16]


def _sample(path: Path) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        parts = []
        for begin in (0, size // 2, max(0, size - _SAMPLE)):
            file.seek(begin)
            parts.append(file.read(_SAMPLE))
    return b"".join(parts)
