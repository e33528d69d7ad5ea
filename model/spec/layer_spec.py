"""Specs of a decoder's layers, as plain values: a model is a tuple of these. ModelConfig has the sizes.

Equal layers have equal specs, so a spec never has a property of one layer alone (its number, say): layers of one spec
are traced and lowered once.
"""

import dataclasses
from typing import Any, Literal

from palladio.model.spec.delta_config import DeltaConfig
from palladio.model.spec.encoder_spec import EncoderSpec
from palladio.model.spec.experts_config import ExpertsConfig
from palladio.model.spec.latent_config import LatentConfig
from palladio.model.spec.norm_spec import NormSpec
from palladio.model.spec.rope_config import RopeConfig

Activation = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"]
"""gelu_tanh is the approximation by tanh, quick_gelu that by a sigmoid; relu2 the square of what is above 0."""

LearnedActivation = Literal["xielu"]
"""Activations whose shape each layer learns; only MLPs without a gate have them."""

NormPlacement = Literal["pre", "post", "sandwich", "parallel", "parallel_own", "sums", "mlp"]
"""Places of a layer's norms: before attention and MLP (pre), after each and before the residual sum (post), both
(sandwich). In parallel, attention and MLP both take the layer's input: after one norm (parallel), or after a norm of
their own each (parallel_own). Encoders alone have norms of both residual sums (sums), or one before the MLP alone
(mlp)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QKNormSpec:
    """The norm of queries and of keys.

    Attributes:
        norm: the norm itself.
        form: head: each head by itself, all with one scale [H]; own_scales: each head by itself, with a scale of its
            own ([N, H] of queries, [K, H] of keys); all_heads: one mean over all heads, scales [N·H] and [K·H].
        after_rotation: they are rotated first.
    """

    norm: NormSpec
    form: Literal["head", "own_scales", "all_heads"] = "head"
    after_rotation: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryGrowth:
    """Queries grow with their position: by 1 + rate · log(1 + ⌊position / length⌋).

    Attributes:
        rate: rate of growth.
        length: tokens of the context before it was made longer.
    """

    rate: float
    length: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """Grouped-query attention.

    Attributes:
        rope: rotary embedding of queries and keys; None: they are not rotated.
        scale: factor on scores.
        window: number of keys that a query sees, its own included; in encoders, that on each side of its own; None: all
            before it, or, in encoders, all of its text.
        soft_cap: scores become soft_cap · tanh(score / soft_cap); None: unchanged.
        has_sinks: each query head has one more score, which is learned: a share of the softmax goes to no key.
        qk_norm: norm of queries and keys; None: there is none.
        query_growth: factor on queries after rotation; None: there is none.
        qkv_bias: the three projections have a bias.
        output_bias: the projection back has a bias.
        has_cache_scales: a float8 cache divides keys by one number, and values by another, as the checkpoint says.
        has_gate: the projection of queries makes as many gates; the results are multiplied with their sigmoids.
    """

    rope: RopeConfig | None
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    has_sinks: bool = False
    qk_norm: QKNormSpec | None = None
    query_growth: QueryGrowth | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    has_cache_scales: bool = False
    has_gate: bool = False

    def for_context(self, length: int) -> "AttentionSpec":
        """Return the spec for sequences of up to `length` tokens: a window that none of them fills becomes None."""
        window = self.window if (self.window or length) < length else None
        return dataclasses.replace(self, rope=self.rope and self.rope.for_context(length), window=window)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentSpec:
    """Latent attention (MLA); ModelConfig.latent has its sizes.

    Attributes:
        rope: rotary embedding of the rotated part of queries and keys.
        scale: factor on scores.
        norm: norm of latents, and of the numbers between the two projections of queries.
        bias: the projections down and the one back have a bias.
        query_growth: factor on queries; None: there is none.
    """

    rope: RopeConfig
    scale: float
    norm: NormSpec
    bias: bool = False
    query_growth: QueryGrowth | None = None

    @property
    def window(self) -> None:
        """None: a query sees all keys before it."""
        return None

    def for_context(self, length: int) -> "LatentSpec":
        """Return the spec for sequences of up to `length` tokens."""
        return dataclasses.replace(self, rope=self.rope.for_context(length))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaSpec:
    """A gated delta rule, which replaces attention and keeps a state of fixed size; ModelConfig.delta has its sizes.

    Attributes:
        norm: norm of each head's results, before they are gated.
    """

    norm: NormSpec

    @property
    def rope(self) -> None:
        """None: nothing is rotated."""
        return None

    @property
    def window(self) -> None:
        """None: nothing leaves the state."""
        return None

    def for_context(self, length: int) -> "DeltaSpec":
        """Return the spec for sequences of up to `length` tokens."""
        return self


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseSpec:
    """An MLP that every token goes through.

    Attributes:
        activation: activation of the gate, or, without one, between the two projections, where it may be a learned one.
        is_gated: down(activation(gate(x)) · up(x)); else down(activation(up(x))).
        bias: all projections have a bias.
        output_bias: whether the projection back has one; None: as the others.
    """

    activation: Activation | LearnedActivation = "silu"
    is_gated: bool = True
    bias: bool = False
    output_bias: bool | None = None

    @property
    def has_output_bias(self) -> bool:
        """Whether the projection back has a bias."""
        return self.bias if self.output_bias is None else self.output_bias


@dataclasses.dataclass(frozen=True, kw_only=True)
class RouterGroups:
    """Groups with the same number of experts each; a token goes to experts of the best groups.

    Attributes:
        number: number of groups.
        kept: number of groups whose experts a token may choose.
        score: score of a group: that of its best expert (best), or the sum of its two best (best_two).
    """

    number: int
    kept: int
    score: Literal["best", "best_two"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RouterSpec:
    """The choice of a token's experts: those with the largest scores, which are their weights as well.

    Attributes:
        renormalize: the weights of a token's experts are divided by their sum.
        score: softmax: shares of all experts; sigmoid: each by itself.
        bias: a bias of each expert is added: to the logits; or only to the scores that choose experts (choice), not to
            the weights; None: there is none.
        groups: experts are chosen from the best groups alone; None: from all.
        scale: final factor on the weights.
    """

    renormalize: bool
    score: Literal["softmax", "sigmoid"] = "softmax"
    bias: Literal["logits", "choice"] | None = None
    groups: RouterGroups | None = None
    scale: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClampedGate:
    """The gate of an expert: gate · sigmoid(sharpness · gate) · (up + 1).

    Attributes:
        sharpness: factor in the sigmoid.
        limit: upper limit of the gate, and limit of up on both sides.
    """

    sharpness: float
    limit: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseSpec:
    """A mixture of experts; ModelConfig.experts has its sizes.

    Attributes:
        router: chooses the experts of a token.
        activation: activation of each expert's gate.
        bias: all projections of experts have a bias.
        shared_expert: one more expert, which every token goes to: behind a gate of its own (gated), or without one
            (plain); None: there is none.
    """

    router: RouterSpec
    activation: Activation | ClampedGate = "silu"
    bias: bool = False
    shared_expert: Literal["gated", "plain"] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """A layer of the decoder.

    Attributes:
        attention: mixes tokens.
        mlp: processes each token by itself.
        norm: every norm of hidden states in this layer.
        norm_placement: the places of these norms.
        residual_scale: factor on what attention and MLP add to the hidden states.
    """

    attention: AttentionSpec | LatentSpec | DeltaSpec
    mlp: DenseSpec | SparseSpec
    norm: NormSpec
    norm_placement: NormPlacement = "pre"
    residual_scale: float = 1.0

    @property
    def keeps_state(self) -> bool:
        """Whether the layer keeps a state of fixed size, not pages."""
        return isinstance(self.attention, DeltaSpec)

    def with_attention(self, **fields: Any) -> "LayerSpec":
        """Return the layer with other values in fields of its attention."""
        return dataclasses.replace(self, attention=dataclasses.replace(self.attention, **fields))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderSpec:
    """A decoder as its family describes it.

    Attributes:
        layers: from the embedding up.
        norm: the last norm, before the head.
        experts: sizes of the layers with a mixture of experts; None: no layer has one.
        latent: sizes of latent attention, which all layers have, or none (None).
        delta: sizes of layers with a gated delta rule; None: no layer has one.
        embedding_scale: factor on embeddings, rounded to the dtype of activations.
        learned_positions: rows of a table of positions, which is added to embeddings: no sequence is longer; None:
            there is no table.
        head_bias: logits have a bias.
        logits_scale: factor on logits.
        logits_soft_cap: then logits become cap · tanh(logit / cap); None: unchanged.
        overflows_float16: activations of published models exceed the range of float16.
        encoder: what an encoder has beside its layers; None: the model is a decoder.
    """

    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    experts: ExpertsConfig | None = None
    latent: LatentConfig | None = None
    delta: DeltaConfig | None = None
    embedding_scale: float = 1.0
    learned_positions: int | None = None
    head_bias: bool = False
    logits_scale: float = 1.0
    logits_soft_cap: float | None = None
    overflows_float16: bool = False
    encoder: EncoderSpec | None = None

    @property
    def has_states(self) -> bool:
        """Whether a layer keeps a state of fixed size, which cannot return to an earlier token."""
        return any(layer.keeps_state for layer in self.layers)

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The rotary embeddings of all layers, each once."""
        return tuple(dict.fromkeys(rope for layer in self.layers if (rope := layer.attention.rope) is not None))
