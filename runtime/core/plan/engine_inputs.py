"""EngineInputs: what flags, the model's files and the device say, before any weight is loaded."""

import dataclasses
from pathlib import Path
from typing import Self

import jax
from jax.sharding import Mesh

from palladio.model.base.sharding import make_mesh
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.config.config_overrides import overrides_of
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.stored_config import agree_with_weights
from palladio.model.pooling.pooling_files import MODULES_FILE, read_pooling
from palladio.model.pooling.pooling_spec import PoolingSpec
from palladio.model.pooling.text_settings import TextSettings
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.class_tokens import vocabulary, with_class_tokens
from palladio.runtime.core.plan.dtypes import Dtypes
from palladio.runtime.core.plan.platform_defaults import PlatformDefaults
from palladio.runtime.core.plan.sizing import EngineLimits, check_encoder, check_experts, check_states
from palladio.runtime.core.plan.small_gguf import as_multiplied
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineInputs:
    """
    Attributes:
        config: the flags; the context length is that of the texts that the model was made for, if no flag gives it.
        device: the first one. path: of the model's folder.
        limits: as flags, model and platform suggest; states of layers may lower them.
        num_valid_tokens: ids that may be sampled.
        pooling: of --is-embedding; None: the engine generates text.
        texts: how texts of an engine of --is-embedding are prepared.
    """

    config: EngineConfig
    device: jax.Device
    target: Target
    defaults: PlatformDefaults
    path: Path
    model: ModelConfig
    limits: EngineLimits
    dtypes: Dtypes
    mesh: Mesh
    layout: TensorLayout
    num_valid_tokens: int
    pooling: PoolingSpec | None
    texts: TextSettings

    @classmethod
    def of(cls, config: EngineConfig, device: jax.Device) -> Self:
        """
        Raises:
            ConfigError: a flag or the model's config is wrong, or there are too few devices.
        """
        target = Target.of(device)
        defaults = PlatformDefaults.of(device.platform, target.kind)
        path = Path(config.source.model_path)  # a local directory: resolved before the core was created
        texts = TextSettings.of(path) if config.source.is_embedding else TextSettings()
        read = _model_config(config, path, texts)
        model = as_multiplied(read, path, device.platform, config.source.quantization)
        config = _of_length(config, model, texts)
        limits = EngineLimits.of(config, model, defaults)
        model = model.for_context(limits.context_length)
        dtypes = Dtypes.of(config, target, model)
        check_experts(config.parallel, model)
        check_states(config, model)
        check_encoder(config, model)
        mesh = _mesh(config)
        layout = TensorLayout.over(model, mesh)
        return cls(
            config=config,
            device=device,
            target=target,
            defaults=defaults,
            path=path,
            model=model,
            limits=limits,
            dtypes=dtypes,
            mesh=mesh,
            layout=layout,
            num_valid_tokens=_num_valid_tokens(config, path, layout.stored.vocab_size),
            pooling=_pooling_of(model, path) if config.source.is_embedding else None,
            texts=texts,
        )


def _of_length(config: EngineConfig, model: ModelConfig, texts: TextSettings) -> EngineConfig:
    """The flags with the length of texts that the model was made for, unless they give another."""
    if config.source.context_length is not None or texts.max_length is None:
        return config
    length = min(texts.max_length, model.max_position_embeddings)
    return dataclasses.replace(config, source=dataclasses.replace(config.source, context_length=length))


def _model_config(config: EngineConfig, path: Path, texts: TextSettings) -> ModelConfig:
    config_and_generation = read_model_dir(path, overrides_of(config.source.json_model_override_args))
    model = ModelConfig.from_hf(*config_and_generation, config.source.family_module)
    if config.source.is_embedding:
        model = with_class_tokens(dataclasses.replace(model, has_head=False), _tokenizer_folder(config, path))
        if model.classifier is not None and texts.activation is not None:
            model = dataclasses.replace(
                model, classifier=dataclasses.replace(model.classifier, activation=texts.activation)
            )
    elif not model.has_head:
        raise ConfigError(
            f"architectures: {model.architecture!r} has no language-model head; start it with --is-embedding"
        )
    return agree_with_weights(path, model, config.source.load_format, config.source.quantization)


def _tokenizer_folder(config: EngineConfig, path: Path) -> Path:
    """Where the tokenizer is of the model at `path`."""
    return Path(config.source.tokenizer_path or path)


def _pooling_of(model: ModelConfig, path: Path) -> PoolingSpec:
    """How an engine that makes embeddings pools; a decoder that classifies looks at a text's last token.

    Raises:
        ConfigError: the files of pooling are wrong, or ask for what only an encoder gives.
    """
    encoder = model.encoder
    if model.classifier is not None:
        head = None if encoder is None else encoder.head
        return PoolingSpec(("last" if head is None else head.pooling,), ())
    default = PoolingSpec() if encoder is None else PoolingSpec(("mean",))
    pooling = read_pooling(path, model.hidden_size, default)
    if not pooling.methods:
        if encoder is None:
            raise ConfigError(f"{path / MODULES_FILE}: vectors of single tokens need an encoder; add a Pooling")
        pooling = dataclasses.replace(pooling, gives_tokens=True)
    if not pooling.includes_prompt and pooling.reads_all:
        raise ConfigError(f"{path}: include_prompt: false of its Pooling is not supported; set it to true")
    return pooling


def _mesh(config: EngineConfig) -> Mesh:
    parallel, devices = config.parallel, jax.devices()
    tp_size, dp_size = parallel.rank_size, parallel.dp_size
    found = f"jax finds {len(devices)} ({devices[0].device_kind})"
    if tp_size > len(devices):
        raise ConfigError(
            f"--tp-size {tp_size} needs that many devices, but {found}; "
            f"use --tp-size {len(devices)}{' or less' if len(devices) > 1 else ''}"
        )
    if dp_size * tp_size > len(devices):
        most = len(devices) // tp_size
        raise ConfigError(
            f"--dp-size {dp_size} × --tp-size {tp_size} needs {dp_size * tp_size} devices, but {found}; "
            f"use --dp-size {most}{' or less' if most > 1 else ''}"
        )
    if jax.process_count() > 1 and dp_size * tp_size < len(devices):
        raise ConfigError(
            f"--tp-size {tp_size} leaves devices unused: --nnodes {jax.process_count()} hosts have "
            f"{len(devices)} in total; use --tp-size {len(devices) // dp_size}, or fewer hosts"
        )
    return make_mesh(tp_size, devices, dp_size, parallel.rank_parts, shares_experts=parallel.enable_dp_attention)


def _num_valid_tokens(config: EngineConfig, path: Path, vocab_size: int) -> int:
    """Ids that the tokenizer knows; the checkpoint's vocabulary may be padded beyond them."""
    file = _tokenizer_folder(config, path) / "tokenizer.json"
    if config.source.skip_tokenizer_init or not file.is_file():
        return vocab_size
    return min(vocab_size, max(vocabulary(file).values(), default=vocab_size - 1) + 1)
