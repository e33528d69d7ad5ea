"""The process that `palladio plan` starts: it imports jax, and keeps it away from accelerators.

python -m palladio.commands.plan.plan_worker < request.json
"""

from palladio.processes.early_signals import INTERRUPTED, end_at_once

if __name__ == "__main__":
    end_at_once(INTERRUPTED)  # before what takes seconds to import

import dataclasses
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import msgspec

from palladio.model.config.config import ModelConfig, read_config_file, read_model_dir
from palladio.model.config.config_overrides import overrides_of
from palladio.model.gguf.gguf_file import is_gguf
from palladio.model.loading.manifest import is_converted
from palladio.model.loading.stored_config import agree_with_weights
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.kernel_choice import choose_kernels
from palladio.runtime.core.plan.memory import MemoryPlan
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.planning.compile_only import CompiledPlan, compile_deployment, compile_only_mesh
from palladio.runtime.planning.deployment import Deployment, KnownShapes, Roofline
from palladio.runtime.planning.hardware import SLICES, Slice, find_slice
from palladio.runtime.telemetry.logs import configure_logging
from palladio.runtime.text.hub.hub import resolve_source
from palladio.server.launch import run_worker

_CONTEXT = 2048  # tokens of a request in the cache, for the figures, if the context allows them


@dataclasses.dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the command line asks for.

    Attributes:
        config: flags of the engine; its tp_size is not heeded.
        tp_size: None: all devices of the slice.
        topology: a slice; None: all of one host, and where none of them suffices, larger ones of each chip up to the
            first that does.
        compile: run the real compiler.
        words: the engine's flags as typed.
    """

    config: EngineConfig
    tp_size: int | None
    topology: str | None
    compile: bool
    words: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A plan for one slice."""

    deployment: Deployment
    memory: MemoryPlan
    compiled: CompiledPlan | None

    @property
    def context(self) -> int:
        """Tokens of each request in the figures."""
        return min(_CONTEXT, self.deployment.limits.context_length)

    @property
    def full_batch(self) -> int:
        """Such requests that run at once in each data-parallel rank."""
        return max(1, min(self.deployment.limits.max_running, self.deployment.num_requests(self.context, self.memory)))


def main() -> int:
    """Returns the exit code, see run_worker."""
    configure_logging("warning")
    return answer(sys.stdin.buffer.read())


def answer(words: bytes) -> int:
    """Prints the plan for a PlanRequest in JSON; returns the exit code: see run_worker."""
    request = msgspec.json.decode(words, type=PlanRequest)
    return run_worker(lambda: _print(request))


def _print(request: PlanRequest) -> None:
    model = _read_model(request.config)
    if model.encoder is not None:
        source = dataclasses.replace(request.config.source, is_embedding=True)
        request = dataclasses.replace(request, config=dataclasses.replace(request.config, source=source))
    for line in _one(request, model) if request.topology is not None else _all(request, model):
        print(line, flush=True)


def _is_config(path: Path) -> bool:
    """Whether a model path is a config.json alone."""
    return path.is_file() and not is_gguf(path)


def _read_model(config: EngineConfig) -> ModelConfig:
    path, overrides = Path(config.source.model_path), overrides_of(config.source.json_model_override_args)
    if _is_config(path):
        model = ModelConfig.from_hf(read_config_file(path, overrides), None, config.source.family_module)
    else:
        folder = Path(resolve_source(config.source, needs_weights=False).model_path)
        model = ModelConfig.from_hf(*read_model_dir(folder, overrides), config.source.family_module)
        if is_converted(folder) or is_gguf(folder):
            how = config.source.load_format, config.source.quantization
            return _as_served(agree_with_weights(folder, model, *how), config)
    return _as_served(model.with_quantization(config.source.quantization), config)


def _as_served(model: ModelConfig, config: EngineConfig) -> ModelConfig:
    """
    Raises:
        ConfigError: it has no head, and is to generate.
    """
    if not model.has_head and not config.source.is_embedding and model.encoder is None:
        raise ConfigError(f"architectures: {model.architecture!r} has no language-model head; add --is-embedding")
    return dataclasses.replace(model, has_head=model.has_head and not config.source.is_embedding)


def _bits(one: Deployment) -> str:
    """Return the type of the weights."""
    kind = one.model.weight_kinds.kind
    return str(jax.numpy.dtype(one.dtypes.weights).name) if kind is None else kind.name


def _tp_size(request: PlanRequest, place: Slice) -> int:
    """--tp-size: as given, or of all devices."""
    parallel = request.config.parallel
    rank_size = max(1, place.num_devices // parallel.dp_size)
    return request.tp_size or rank_size * (parallel.dp_size if parallel.enable_dp_attention else 1)


def _sized(request: PlanRequest, place: Slice) -> EngineConfig:
    """The flags on this slice.

    Raises:
        ConfigError: they need more devices than it has, leave some of its hosts without work, or divide its devices
            into parts that do not come out even.
    """
    ranks, tp_size = request.config.parallel.dp_size, _tp_size(request, place)
    parallel = dataclasses.replace(request.config.parallel, tp_size=tp_size)
    is_whole = ranks == 1 or parallel.enable_dp_attention
    if parallel.num_devices > place.num_devices:
        sizes = f"--tp-size {tp_size}" if is_whole else f"--dp-size {ranks} × --tp-size {tp_size}"
        raise ConfigError(f"{sizes} needs that many devices; {place.name} has {place.num_devices}")
    if place.num_hosts > 1 and place.num_devices % ranks:
        raise ConfigError(
            f"--dp-size {ranks} leaves hosts of {place.name} unused: use a --dp-size that divides its "
            f"{place.num_devices} devices"
        )
    if place.num_hosts > 1 and parallel.num_devices < place.num_devices:
        most = place.num_devices if is_whole else place.num_devices // ranks
        raise ConfigError(
            f"--tp-size {tp_size} leaves hosts of {place.name} unused: use --tp-size {most} or a smaller slice"
        )
    return dataclasses.replace(request.config, parallel=parallel)


def _answer(request: PlanRequest, config: EngineConfig, deployment: Deployment) -> Answer:
    model, place = deployment.model, deployment.place
    if not request.compile:
        return Answer(deployment, deployment.plan(config, deployment.estimated_workspace()), None)
    mesh = compile_only_mesh(
        place,
        deployment.num_shards,
        deployment.num_ranks,
        deployment.num_expert_parts,
        shares_experts=config.parallel.enable_dp_attention,
    )
    over = dataclasses.replace(deployment.shape, mesh=mesh)
    kernels = choose_kernels(
        config.execution.attention_backend, Target.of(mesh.devices.flat[0]), deployment.layout.config, over
    )
    deployment = Deployment.of(config, model, place, mesh, kernels)
    compiled = compile_deployment(deployment)
    return Answer(deployment, deployment.plan(config, compiled.workspace), compiled)


def _one(request: PlanRequest, model: ModelConfig) -> Iterator[str]:
    assert request.topology is not None
    place = find_slice(request.topology)
    config = _sized(request, place)
    answer = _answer(request, config, Deployment.of(config, model, place))
    one, compiled = answer.deployment, answer.compiled
    roofline = Roofline(one)
    path = Path(request.config.source.model_path).absolute()
    name = path.parent.name if _is_config(path) else path.name
    yield (
        f"{name} ({one.num_parameters / 1e9:.2f} billion parameters, {_bits(one)}) on "
        f"{place.name}: {one.num_ranks * one.num_shards} of {place.num_devices} devices ({place.chip.label}), "
        f"{place.num_hosts} host(s)"
    )
    yield from (f"  {line}" for line in (*one.layout.table(), *answer.memory.table()))
    estimate = one.estimated_workspace()
    if compiled is None:
        yield "  The workspace is an estimate; --compile measures it with the real compiler."
    else:
        sums = ", ".join(f"{count} {kind}" for kind, count in sorted(compiled.collectives.items())) or "none"
        yield f"  compiled with jax {jax.__version__} in {compiled.seconds:.0f} s; collectives of a decode pass: {sums}"
        share = estimate / compiled.workspace
        yield f"  estimated workspace: {estimate / 2**30:.2f} GiB, {share:.2f} × the compiler's figure"
    yield "Upper bounds from memory bandwidth and matrix units:"
    if one.model.has_head:
        many, ranks, context = answer.full_batch, one.num_ranks, answer.context
        yield f"  1 request: {roofline.decode_rate(1, context):,.0f} tokens/s"
        rate = ranks * roofline.decode_rate(many, context)
        yield f"  {ranks * many} requests of {context:,} tokens: {rate:,.0f} tokens/s"
    yield f"  prompts: {roofline.prefill_rate():,.0f} tokens/s"
    yield f"Launch, on each of the {place.num_hosts} hosts:" if place.num_hosts > 1 else "Launch:"
    yield f"  palladio serve {_command(request, one)}"


def _command(request: PlanRequest, one: Deployment) -> str:
    path = request.config.source.model_path
    folder = str(Path(path).parent) if _is_config(Path(path)) else path  # a config.json alone cannot be served
    words = [word.removesuffix(path) + folder if word.endswith(path) else word for word in request.words]
    tp_size = one.num_shards * one.num_sharing
    if request.tp_size is None and tp_size > 1:
        words += ["--tp-size", str(tp_size)]
    if one.place.num_hosts > 1:  # which of them a host is, GKE and TPU VMs say
        words += ["--nnodes", str(one.place.num_hosts)]
    return shlex.join(words)


def _all(request: PlanRequest, model: ModelConfig) -> Iterator[str]:
    yield (
        f"{'topology':<10} {'tp':>3} {'weights':>10} {'KV tokens':>12} {'1 request':>12} {'full batch':>23} "
        f"{'prompts':>12}"
    )
    fitting: list[Slice] = []
    left_out: dict[Slice, ConfigError] = {}
    known, ranks = KnownShapes(model), request.config.parallel.dp_size
    for place in sorted(SLICES.values(), key=lambda place: place.num_hosts > 1):
        if place.num_hosts > 1 and any(one.num_hosts == 1 or one.chip is place.chip for one in fitting):
            continue
        try:
            config = _sized(request, place)
        except ConfigError as error:
            left_out[place] = error
            continue
        one = Deployment.of(config, model, place, known=known)  # what it refuses, it refuses on every slice
        try:
            answer = _answer(request, config, one)
        except ConfigError as error:
            yield f"{place.name:<10} {one.num_shards:>3} {error}"
            continue
        fitting.append(place)
        roofline, many = Roofline(answer.deployment), answer.full_batch
        decode = (
            f"{roofline.decode_rate(1, answer.context):>8,.0f} t/s "
            f"{ranks * roofline.decode_rate(many, answer.context):>13,.0f} t/s ×{ranks * many:<4}"
        )
        yield (
            f"{place.name:<10} {one.num_shards:>3} {one.weight_bytes / 2**30:>6.2f} GiB "
            f"{answer.memory.total_tokens:>12,} {decode if model.has_head else '':>36} "
            f"{roofline.prefill_rate():>8,.0f} t/s"
        )
    yield f"Weights per device; up to {_CONTEXT:,} tokens per request. --topology NAME shows one in detail."
    if not fitting:
        raise ConfigError(_why_none(request, left_out))


def _why_none(request: PlanRequest, left_out: Mapping[Slice, ConfigError]) -> str:
    """Why there is no slice for the model, with the refusal of the slice that comes closest to what the flags need."""
    parallel = request.config.parallel
    needed = (request.tp_size or parallel.ep_size) * (1 if parallel.enable_dp_attention else parallel.dp_size)
    sizes = sorted(left_out, key=lambda place: place.num_devices)
    enough = [place for place in sizes if place.num_devices >= needed]
    if len(left_out) == len(SLICES):
        return f"no slice matches these flags: {left_out[(enough or sizes[-1:])[0]]}"
    fits = f"{request.config.source.model_path} does not fit on any of them with these flags"
    return f"{fits}; others do not match the flags: {left_out[enough[0]]}" if enough else fits


if __name__ == "__main__":
    sys.exit(main())
