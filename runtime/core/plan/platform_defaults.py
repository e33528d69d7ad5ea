"""What flags that are not given mean on a CPU, a GPU or a TPU."""

import dataclasses
from typing import Literal, Self

from palladio.model.config.config import ModelConfig
from palladio.model.layers.divided_tokens import LEAST_PART, RING
from palladio.runtime.interface.config.config import EngineConfig

CompileMode = Literal["full", "background", "lazy"]

SHORT_PASSES = 4  # of the longest that are short: all passes of a step together read no more


@dataclasses.dataclass(frozen=True, slots=True)
class PlatformDefaults:
    """What flags that are not given mean on a platform.

    Attributes:
        dtype: of activations, and of weights where neither the checkpoint nor the kind of CPU suggests another.
        max_running: more requests than this gain little: a CPU is compute-bound early.
        chunk: prompt tokens of a step: enough to fill the matrix units, short enough to keep running streams moving. On
            a TPU larger ones take more time a token: see benchmarks/results/notes/2026-11-24.md.
        device_chunk: the least prompt tokens of a step for each device, up to largest_chunk: see RING of
            model/layers/divided_tokens.py.
        largest_chunk: of a model with experts, each of which gets only some of the tokens.
        bucket_growth: ratio of neighbouring prefill sizes: compiling is what costs on a CPU.
        fine_hidden_size: models of this hidden size or more have finer sizes: a CPU is compute-bound early, so padding
            costs what it adds. None: padding costs little.
        min_decode: rows of the smallest decode step. XLA computes products of one row as multiply and reduce: a GPU
            some of them in two kernels with weight × x in memory between them, and rounded to the weights' dtype; a TPU
            outside of its matrix units, by XLA's estimate eight times slower than memory.
        has_plain_tier: steps without top_k, top_p and min_p are sampled by programs of their own. A CPU skips
            the search for thresholds by a loop of no turns. A TPU does, but writes what the loop would read; a GPU
            would wait for its host there: it always searches.
        joined_rows: decode steps of up to this number of rows sample in the program that computes them, unless rows
            need a mask, a penalty or log-probabilities; each size has two programs more. A CPU starts programs on the
            cores that compute; an accelerator computes while the next one is started.
        joined_passes: forward passes of one of those programs, at most, see `passes_of`.
        short_pass_bytes: a pass that reads no more than this is shorter than what the host does for a step.
        mixes: prefill steps decode as well.
        pool_per_request: tokens of pool for each running request, beside one whole context; None: a whole context
            each. A CPU's memory is the host's, so only take what is likely to be used.
        least_page_bytes: of a page of one layer on one device. A TPU's kernel starts a copy for each page, which takes
            as long as 5 KiB of copying on v6e and 9 KiB on 7x, and every block of keys as long as a few more.
        compile: see ExecutionConfig. Who tries a model on a CPU waits for the first answer; who starts a server with
            an accelerator measures it once it is ready.
    """

    dtype: str
    max_running: int
    chunk: int
    device_chunk: int
    largest_chunk: int
    bucket_growth: int
    fine_hidden_size: int | None
    min_decode: int
    has_plain_tier: bool
    joined_rows: int
    joined_passes: int
    short_pass_bytes: int
    mixes: bool
    pool_per_request: int | None
    least_page_bytes: int
    compile: CompileMode

    @classmethod
    def of(cls, platform: str, kind: str = "") -> Self:
        """Return the defaults of a platform.

        Args:
            platform: as in a Target.
            kind: as in a Target.
        """
        if platform == "cpu":
            return cls(
                dtype="float32",
                max_running=64,
                chunk=1024,
                device_chunk=0,
                largest_chunk=1024,
                bucket_growth=4,
                fine_hidden_size=512,
                min_decode=1,
                has_plain_tier=False,
                joined_rows=4,
                joined_passes=8,
                short_pass_bytes=2**24,  # 0.5 ms at 32 GB/s, which two cores read even of what is not in their caches
                mixes=False,
                pool_per_request=1024,
                least_page_bytes=0,
                compile="background",
            )
        return cls(
            dtype="bfloat16",
            max_running=256,
            chunk=2048 if platform == "tpu" else 8192,
            device_chunk=LEAST_PART if kind in RING else 0,
            largest_chunk=8192,
            bucket_growth=2,
            fine_hidden_size=None,
            min_decode=2,
            has_plain_tier=True,
            joined_rows=0,
            joined_passes=1,
            short_pass_bytes=0,
            mixes=True,
            pool_per_request=None,
            least_page_bytes=32 * 1024 if platform == "tpu" else 0,
            compile="full",
        )

    def passes_of(self, weight_bytes: int) -> int:
        """Return how many forward passes a decode step of few requests makes, at most. Several pay, and delay no
        request for long, where each is short. The size of the weights decides, not a measurement: what is
        compiled depends on nothing but flags, model and platform.

        Args:
            weight_bytes: of a device.
        """
        if self.joined_passes == 1 or weight_bytes > self.short_pass_bytes:
            return 1
        return min(self.joined_passes, SHORT_PASSES * self.short_pass_bytes // max(weight_bytes, 1))

    def chunk_of(self, model: ModelConfig, num_devices: int) -> int:
        """Return the prompt tokens of a step, by default.

        Args:
            num_devices: how many devices share each layer.
        """
        if model.num_sparse_layers:
            return self.largest_chunk
        return min(max(self.chunk, self.device_chunk * num_devices), self.largest_chunk)


def compile_mode(config: EngineConfig, defaults: PlatformDefaults) -> CompileMode:
    """When programs are compiled. Several hosts start together, with all of them."""
    if config.execution.compile != "auto":
        return config.execution.compile
    return "full" if config.parallel.num_hosts > 1 else defaults.compile
