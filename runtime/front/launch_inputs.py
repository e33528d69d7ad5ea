"""What the front needs to start an engine: a config that names local directories, and the model's tokenizer."""

import asyncio
import dataclasses
import threading
from collections.abc import Callable

from palladio.runtime.front.requests.crash_dump import prepare_folder
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.messages.engine_state import LoadProgress
from palladio.runtime.text.hub.hub import resolve_source
from palladio.runtime.text.hub.hub_download import DownloadListener
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer


async def resolve_config(config: EngineConfig, on_progress: Callable[[LoadProgress], None]) -> EngineConfig:
    """Return the configuration with local directories, as the engine gets it; a model that is missing is downloaded.

    Args:
        on_progress: called in this event loop.

    Raises:
        ConfigError: there is no such model, or nothing can be written to the folder for crash dumps.
    """
    survival = config.survival
    if survival.crash_dump_folder is not None:
        folder = prepare_folder(survival.crash_dump_folder).resolve()
        survival = dataclasses.replace(survival, crash_dump_folder=str(folder))
    loop = asyncio.get_running_loop()

    def report(progress: LoadProgress) -> None:
        loop.call_soon_threadsafe(on_progress, progress)

    stop = threading.Event()
    try:
        source = await asyncio.to_thread(resolve_source, config.source, listener=DownloadListener(report, stop=stop))
    finally:
        stop.set()  # else its thread would go on with a download, and this process could not end
    return dataclasses.replace(config, source=source, survival=survival)


async def load_tokenizer(source: ModelSource) -> Tokenizer | None:
    """Read the tokenizer in a thread; None with --skip-tokenizer-init.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    if source.skip_tokenizer_init:
        return None
    folder = source.tokenizer_path or source.model_path
    return await asyncio.to_thread(Tokenizer.load, folder, trust_remote_code=source.trust_remote_code)
