"""What the engine sends by itself: progress of the start, its limits, that it is busy, or that it failed."""

import dataclasses
from typing import Self

from palladio.runtime.interface.errors import ConfigError, DeviceTakenError, EngineDeadError, PalladioError
from palladio.runtime.interface.request.embedding import EmbeddingSpec
from palladio.runtime.interface.request.input_embeds import EmbedsSpec


@dataclasses.dataclass(frozen=True, slots=True)
class LoadProgress:
    """Start-up progress, for the log and /ready; with --compile background it goes on while requests are served.

    Attributes:
        phase: "device" (seconds of --device-wait), "download" (bytes), "load" (tensors) or "compile" (programs).
        done, total: counts within the phase.
        eta_seconds: that the rest of the phase will take, if it goes on as it did; None: too early to say.
    """

    phase: str
    done: int
    total: int
    eta_seconds: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class WeightsSize:
    """Attributes:
    num_parameters: without the scales of quantized weights. num_bytes: in memory, over all devices.
    """

    num_parameters: int = 0
    num_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine accepts requests; the limits it chose.

    Attributes:
        context_length: most tokens of prompt and output together that the model takes.
        max_total_tokens: tokens that the KV pool of each data-parallel rank holds, if all layers keep all of them.
        model_type, architecture: from config.json.
        vocab_size: ids at or above this are invalid in prompts, stop_token_ids and logit_bias.
        eos_token_ids: the model's end-of-sequence ids.
        device: platform and kind, as jax names them.
        dtype: the dtype of the weights.
        num_programs: compiled programs; compile_seconds: wall time they took; cache_hits: found in the cache.
        attention_kernels: the backend of attention that --attention-backend names, or auto chose.
        embedding: what it makes of a prompt; None: it generates text.
        num_ranks: data-parallel ranks (--dp-size).
        weights: the size of the model's weights.
        embeds: the rows that it takes in the place of token embeddings; None: none (--enable-input-embeds).
        longest_request: tokens that fit the pool if a request is alone; None: as many as max_total_tokens. It is more
            where layers have windows, because these keep the newest tokens only.
        degraded: what the check of the start found wrong, though the engine serves; "": nothing.
    """

    context_length: int
    max_total_tokens: int
    max_running_requests: int
    chunked_prefill_size: int
    page_size: int
    model_type: str
    architecture: str
    vocab_size: int
    eos_token_ids: list[int]
    device: str
    dtype: str
    num_programs: int
    compile_seconds: float
    cache_hits: int
    random_seed: int
    startup_seconds: float = 0.0
    attention_kernels: str = ""
    embedding: EmbeddingSpec | None = None
    num_ranks: int = 1
    longest_request: int | None = None
    embeds: EmbedsSpec | None = None
    weights: WeightsSize = WeightsSize()
    degraded: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine cannot go on; the process ends after this.

    Attributes:
        message: one line for the user; config: the cause is a flag or the checkpoint, not a defect.
        device: another process has the device.
        trial: name of the kernel whose trial ended the process; empty: there was none.
    """

    message: str
    config: bool
    device: bool = False
    trial: str = ""

    @classmethod
    def of(cls, error: PalladioError) -> Self:
        """What a start says that an error has ended."""
        is_config, is_device = isinstance(error, ConfigError), isinstance(error, DeviceTakenError)
        return cls(str(error), config=is_config, device=is_device)

    def error(self) -> ConfigError | DeviceTakenError | EngineDeadError:
        """The error of a start that failed so."""
        if self.device:
            return DeviceTakenError(self.message)
        return (ConfigError if self.config else EngineDeadError)(self.message)


@dataclasses.dataclass(frozen=True, slots=True)
class EngineBusy:
    """The engine's thread is at something that may take long. Another thread sends it again and again meanwhile."""

    doing: str
