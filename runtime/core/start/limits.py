"""The limits that an engine reports once it is ready."""

import jax.numpy as jnp

from palladio.model.config.config import ModelConfig
from palladio.model.pooling.pooling_spec import PoolingSpec
from palladio.model.pooling.text_settings import TextSettings
from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.interface.messages.engine_state import EngineReady, WeightsSize
from palladio.runtime.interface.request.embedding import ClassSpec, EmbeddingSpec
from palladio.runtime.interface.request.input_embeds import EmbedsSpec


def ready_of(design: EnginePlan, seconds: float, weights: WeightsSize) -> EngineReady:
    """Collect the limits of a plan whose programs are built.

    Args:
        seconds: how long compiling took, in seconds.
    """
    reports, pooling = design.programs.built.reports, design.shape.pooling
    return EngineReady(
        context_length=design.limits.context_length,
        max_total_tokens=design.plan.num_tokens,
        max_running_requests=design.limits.total_running,
        chunked_prefill_size=design.limits.chunk,
        page_size=design.shape.page_size,
        model_type=design.model.model_type,
        architecture=design.model.architecture,
        vocab_size=design.shape.num_valid_tokens,
        eos_token_ids=list(design.model.eos_token_ids),
        device=f"{design.device.platform}: {design.device.device_kind}",
        dtype=jnp.dtype(design.dtypes.weights).name,
        num_programs=len(reports),
        compile_seconds=seconds,
        cache_hits=sum(report.result == "hit" for report in reports),
        random_seed=design.seed,
        attention_kernels=design.kernels.attention
        if design.model.encoder is None
        else design.kernels.segment_attention,
        embedding=None if pooling is None else _embedding(design.model, pooling, design.texts),
        num_ranks=design.shape.ranks.num_ranks,
        weights=weights,
        embeds=EmbedsSpec(design.shape.hidden_size, float(jnp.finfo(design.shape.dtype).max))
        if design.shape.num_embeds
        else None,
        longest_request=design.shape.page_groups.longest_request(
            design.plan.num_pages - 1, splits_prompts=design.limits.chunk != -1
        ),
    )


def _embedding(model: ModelConfig, pooling: PoolingSpec, texts: TextSettings) -> EmbeddingSpec:
    classifier, is_encoder = model.classifier, model.encoder is not None
    if classifier is None:
        return EmbeddingSpec(
            pooling.size(model.hidden_size),
            pooling.name,
            pooling.normalizes,
            prompts=dict(texts.prompts),
            default_prompt=texts.default_prompt,
            lowers_case=texts.lowers_case,
            includes_prompt=pooling.includes_prompt,
            kinds=(*(("dense",) if pooling.methods else ()), *(("tokens",) if pooling.gives_tokens else ())),
            token_size=pooling.token_size(model.hidden_size) if pooling.gives_tokens else 0,
            is_encoder=is_encoder,
        )
    names = list(classifier.labels)
    judges, joins = classifier.is_difference, bool(classifier.tokens)
    classes = ClassSpec(names, classifier.activation, classifier.pad_token_id, judges, joins)
    return EmbeddingSpec(
        len(names),
        pooling.name,
        normalized=False,
        classes=classes,
        lowers_case=texts.lowers_case,
        is_encoder=is_encoder,
    )
