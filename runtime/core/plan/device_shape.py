"""The shape of the state that a device keeps for an engine, and of the model's weights."""

from jax.sharding import Mesh

from palladio.model.cache.kv_cache import PAGE_SIZES, CacheLayout, fitting_page_size
from palladio.model.config.config import ModelConfig
from palladio.model.functional import ModelStructure, flatten_model
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.load_model import abstract_model
from palladio.model.pooling.pooling_spec import PoolingSpec
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.dtypes import Dtypes
from palladio.runtime.core.plan.sizing import EngineLimits
from palladio.runtime.execution.batch.media_rows import pool_rows
from palladio.runtime.execution.state.device_state import DeviceShape, Weights
from palladio.runtime.execution.state.proposer import NgramProposer, Proposer
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.speculative_config import SpeculativeConfig


def abstract_weights(
    model: ModelConfig, dtypes: Dtypes, mesh: Mesh, kernels: Kernels
) -> tuple[ModelStructure, Weights]:
    """A model's structure and the shapes of its parameters."""
    return flatten_model(
        abstract_model(model, dtype=dtypes.activations, weights_dtype=dtypes.weights, mesh=mesh, kernels=kernels)
    )


def device_shape(
    config: EngineConfig,
    layout: TensorLayout,
    limits: EngineLimits,
    dtypes: Dtypes,
    mesh: Mesh,
    num_valid_tokens: int,
    pooling: PoolingSpec | None,
    target: Target = Target(),
) -> DeviceShape:
    """The shape of a device's state.

    Args:
        num_valid_tokens: ids that may be sampled. target: see DeviceShape.
    """
    model = layout.config
    page_size = config.cache.page_size or (
        PAGE_SIZES[-1]  # an encoder's hold nothing, so few are best
        if model.encoder is not None
        else fitting_page_size(model, dtype=dtypes.kv_cache, mesh=mesh, least_bytes=limits.least_page_bytes)
    )
    num_slots = limits.max_running + 1
    cache = CacheLayout.of(
        model, page_size=page_size, dtype=dtypes.kv_cache, num_slots=num_slots, state_dtype=dtypes.activations
    )
    return DeviceShape(
        num_slots=num_slots,
        num_columns=-(-limits.context_length // cache.spec.page_size),
        vocab_size=model.vocab_size,
        num_valid_tokens=num_valid_tokens,
        num_decode_steps=config.scheduler.num_continuous_decode_steps or 1,
        checks_cache=config.cache.cache_self_check > 0,
        dtype=dtypes.activations,
        cache=cache,
        mesh=mesh,
        target=target,
        pooling=pooling,
        pooled_size=0 if pooling is None else pooling.num_carried * pooling.token_size(model.hidden_size),
        proposer=proposer_of(config.speculative),
        has_plain_tier=limits.has_plain_tier,
        joined_rows=limits.joined_rows,
        num_embeds=pool_rows(limits.max_step_tokens) if config.source.enable_input_embeds else 0,
        hidden_size=model.hidden_size,
    )


def proposer_of(speculative: SpeculativeConfig) -> Proposer | None:
    """What the flags ask for."""
    return None if speculative.ngram is None else NgramProposer(*speculative.ngram)
