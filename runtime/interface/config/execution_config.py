"""The flags of the device, the kernels and compilation."""

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from palladio.runtime.interface.config.field_checks import check_fields
from palladio.runtime.interface.config.user_dirs import user_cache_dir

_NO_ENVIRONMENT: Mapping[str, str] = types.MappingProxyType({})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionConfig:
    """Execution: device, kernels, compilation.

    Attributes:
        device: Platform to run on. auto: the first one that jax finds. cuda and gpu are the same.
        device_wait: Seconds that the start waits for a TPU or GPU which another process has. Then it ends with exit
            code 75.
        start_check: Check of a start's result: samples of the weights, read back from each device, must be those of the
            files, else the start fails; and the log-probabilities of a first answer must be those of the portable
            implementation on the same device, else the log has a warning with numbers, and /health says "degraded".
            auto: on TPUs and GPUs. The first answer is not checked with several hosts.
        attention_backend: Attention kernels. auto: chosen by platform and model. tpu, gpu_triton and gpu_mosaic (Hopper
            GPUs): Pallas kernels, which run interpreted, and slowly, on any other device. cpu_native: C++, see
            --cpu-kernels. xla: the portable implementation. reference: plain jnp, for tests.
        cpu_kernels: Kernels of a CPU for decode steps, attention, and products with 16-bit or int8 weights.
            native: a small C++ library, compiled at the first start and kept beside the compilation cache. xla: XLA's
            own operations. auto: native for models of hidden size 128 or more and for int8 weights with a scale per
            channel, where a C++ compiler is on PATH; else, and with --deterministic, xla. The log says which.
        kernel_check: Try each kernel once before it is used: on small random inputs, with the results compared with a
            plain implementation. auto: on TPUs and GPUs, once for each kind of device, version of jax and of the
            compiler, and shapes; always: at each start, also on CPUs; never. A kernel that does not compile, computes
            wrong numbers, hangs or ends the process is not used, with a warning; with an --attention-backend that names
            it, the start fails. Verdicts are kept beside the compilation cache.
        compilation_cache_dir: Persistent compilation cache: a directory, or a URL such as gs://BUCKET/PREFIX, which
            needs the extra `cache-url`. "" turns it off. Default: JAX_COMPILATION_CACHE_DIR, else VLLM_XLA_CACHE_PATH,
            else xla in PALLADIO_CACHE_DIR, else in XDG_CACHE_HOME/palladio, else in ~/.cache/palladio. Only the command
            line reads these variables; offline, the default is ~/.cache/palladio/xla.
        compile: When programs are compiled. full: all of them before the first request. background: the few programs
            that can serve any request first, then the others while the server takes requests, one by one. lazy: each
            program when a step first needs it; that step waits. auto: background on a CPU, else full; full with several
            hosts.
        compiled_dir: Directory of exported programs, written by `palladio compile`; a program found there is loaded
            instead of compiled. Not with several hosts. Use only a directory that you trust as much as your code.
        fail_on_recompile: Stop the engine when a step compiles an unexpected program, instead of counting and logging
            it.
        cuda_graph_bs: Decode batch sizes to compile (on a GPU, one CUDA graph each); a smaller batch is padded to the
            next size. --max-running-requests (per data-parallel rank) is always included; larger sizes are ignored.
            Default: powers of two; on a GPU from 2 on, because products of one row are slow there.
        cuda_graph_max_bs: Largest batch size to compile, besides --max-running-requests. A smaller value starts faster
            but pads larger batches more.
        deterministic: Make greedy tokens and logprobs bitwise independent of the other requests, of prompt chunking, of
            retraction and of the prefix cache. Every step runs in one fixed shape, which is slower.
        random_seed: Seed from which requests without a `seed` get theirs. Default: random, printed at start.
        decode_log_interval: Forward passes of decode steps between two "Decode batch." log lines.
    """

    device: Literal["auto", "tpu", "gpu", "cuda", "cpu"] = "auto"
    device_wait: float = 60.0
    start_check: Literal["auto", "always", "never"] = "auto"
    attention_backend: Literal["auto", "tpu", "gpu_triton", "gpu_mosaic", "cpu_native", "xla", "reference"] = "auto"
    cpu_kernels: Literal["auto", "native", "xla"] = "auto"
    kernel_check: Literal["auto", "always", "never"] = "auto"
    compilation_cache_dir: str | None = None
    compile: Literal["auto", "full", "background", "lazy"] = "auto"
    compiled_dir: str | None = None
    fail_on_recompile: bool = False
    cuda_graph_bs: tuple[int, ...] | None = None
    cuda_graph_max_bs: int | None = None
    deterministic: bool = False
    random_seed: int | None = None
    decode_log_interval: int = 40

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def cache_url(self) -> str | None:
        """Where compiled programs are kept, if that is a URL."""
        place = self.compilation_cache_dir
        return place if place is not None and "://" in place else None

    def checks_start(self, platform: str) -> bool:
        """Whether a start on this platform, as jax names it, is checked."""
        return self.start_check == "always" or (self.start_check == "auto" and platform != "cpu")

    def cache_path(self, environment: Mapping[str, str] = _NO_ENVIRONMENT) -> Path | None:
        """Return the local folder of what a start compiles; None: nothing is kept. With a URL it holds what jax does
        not keep there: the C++ library and measured workspaces.

        Args:
            environment: see user_cache_dir.
        """
        if self.compilation_cache_dir is None or self.cache_url is not None:
            return user_cache_dir(environment) / "xla"
        return Path(self.compilation_cache_dir).expanduser() if self.compilation_cache_dir else None

    def trials_path(self) -> Path | None:
        """Where verdicts and markers of kernel trials are kept; None: nowhere."""
        folder = self.cache_path()
        return None if folder is None else folder / "kernel_trials"
