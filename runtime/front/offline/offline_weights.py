"""SGLang's offline methods that pause generation, exchange the weights and release device memory."""

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.front.offline.loop_thread import LoopThread
from palladio.runtime.front.offline.tensor_file import to_safetensors
from palladio.runtime.interface.messages.model_messages import UpdateOptions

_DONE = "Succeeded to update model weights."


class WeightUpdates(LoopThread):
    """The part of `Engine` that changes the running model."""

    _engine: AsyncEngine

    def pause_generation(self, mode: str = "abort") -> None:
        """Stops generation; prompts that come meanwhile wait.

        Args:
            mode: "abort": all prompts end; "retract": they wait, and are computed again; "in_place": they only wait.

        Raises:
            InvalidRequestError: there is no such mode.
            EngineDeadError: the engine failed or was shut down.
        """
        self._run(self._engine.model.pause(mode))

    def continue_generation(self) -> None:
        """Ends a pause.

        Raises:
            EngineDeadError: the engine failed or was shut down.
        """
        self._run(self._engine.model.go_on())

    def update_weights_from_disk(
        self, model_path: str | os.PathLike[str], load_format: str | None = None, **fields: Any
    ) -> tuple[bool, str]:
        """Exchanges the weights for those in a directory of safetensors, which have to be of the same model. Running
        prompts keep their tokens and go on with the new weights.

        Args:
            load_format: "auto" or "safetensors"; both mean safetensors.
            fields: as of POST /update_weights_from_disk: weight_version, abort_all_requests, keep_pause, ….

        Returns:
            True and a message.

        Raises:
            InvalidRequestError: a field or the weights are wrong, or they do not fit; nothing has changed.
            EngineDeadError: the engine failed or was shut down.
        """
        options = UpdateOptions.of({"load_format": load_format, **fields})
        self._run(self._engine.model.update(Path(model_path).expanduser().resolve(), options))
        return True, _DONE

    def update_weights_from_tensor(
        self, named_tensors: Iterable[tuple[str, Any]], load_format: str | None = None, **fields: Any
    ) -> tuple[bool, str]:
        """Exchange the weights for pairs of name and tensor: all of the model's, named as in its checkpoint.

        Args:
            named_tensors: tensors are numpy's, jax's or torch's.

        Returns, raises: as `update_weights_from_disk`.
        """
        options = UpdateOptions.of({"load_format": load_format, **fields})
        self._run(self._engine.model.update_sent(to_safetensors(named_tensors), options))
        return True, _DONE

    def release_memory_occupation(self, tags: Collection[str] | None = None) -> None:
        """Frees device memory; prompts are refused until all of it is restored.

        Args:
            tags: "weights", "kv_cache"; None: both.

        Raises:
            InvalidRequestError: there is no such tag, or prompts run.
            EngineDeadError: the engine failed or was shut down.
        """
        self._run(self._engine.model.release(tags))

    def resume_memory_occupation(self, tags: Collection[str] | None = None) -> None:
        """Restores device memory: the weights from where they came, the KV cache empty.

        Raises:
            InvalidRequestError: there is no such tag, or what is to be restored does not fit, or cannot be read.
            EngineDeadError: the engine failed or was shut down.
        """
        self._run(self._engine.model.resume(tags))
