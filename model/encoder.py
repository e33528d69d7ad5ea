"""The encoder: a residual loop over layers whose tokens see both ways, with embeddings and heads of its own."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from palladio.model.base.module import Context, Initializer, Module
from palladio.model.cache.forward_batch import ForwardBatch
from palladio.model.config.config import ModelConfig
from palladio.model.layers.linear import TokenTable
from palladio.model.layers.mlp import GatedMLP, PlainMLP
from palladio.model.layers.norm import Norm
from palladio.model.layers.pooled_head import PooledHead
from palladio.model.layers.segment_attention import DistanceTable, SegmentAttention, SegmentStep
from palladio.model.spec.encoder_spec import TYPE_SHIFT, EncoderSpec
from palladio.model.spec.layer_spec import AttentionSpec, DenseSpec, LayerSpec
from palladio.pallas_kernels.choice import Kernels

_ID_BITS = (1 << TYPE_SHIFT) - 1


class EncoderLayer(Module):
    """Attention and MLP, with norms and residual sums where the layer's spec has them."""

    def __init__(self, context: Context, config: ModelConfig, spec: LayerSpec, kernels: Kernels, mesh: Mesh) -> None:
        assert isinstance(spec.attention, AttentionSpec), "no encoder has another"
        assert isinstance(spec.mlp, DenseSpec), "no encoder has another"
        norm, place = functools.partial(Norm, context, config.hidden_size, spec.norm), spec.norm_placement
        self.attention_norm = norm() if place in ("pre", "sandwich") else None
        self.attention = SegmentAttention(context, config, spec.attention, kernels, mesh)
        self.attention_output_norm = norm() if place in ("sums", "sandwich") else None
        self.mlp_norm = norm() if place in ("pre", "mlp", "sandwich") else None
        self.mlp = (GatedMLP if spec.mlp.is_gated else PlainMLP)(context, config, spec.mlp)
        self.mlp_output_norm = norm() if place in ("sums", "sandwich") else None
        self.norms_sums = place == "sums"

    def __call__(self, x: jax.Array, step: SegmentStep) -> jax.Array:
        """Compute the layer: x [T, D] → [T, D]."""
        attended = self.attention(_normed(x, self.attention_norm), step)
        x = self._add(x, attended, self.attention_output_norm)
        return self._add(x, self.mlp(_normed(x, self.mlp_norm)), self.mlp_output_norm)

    def _add(self, x: jax.Array, out: jax.Array, norm: Norm | None) -> jax.Array:
        """Compute the residual sum."""
        return _normed(x + out, norm) if self.norms_sums else x + _normed(out, norm)


def _normed(x: jax.Array, norm: Norm | None) -> jax.Array:
    return x if norm is None else norm(x)


@functools.partial(jax.jit, static_argnums=0)
def _call_layer(structure: nnx.GraphDef, state: nnx.State, x: jax.Array, step: SegmentStep) -> jax.Array:
    """Compute a layer, as a function of its own: layers of one structure are traced and lowered once."""
    layer: EncoderLayer = nnx.merge(structure, state)
    return layer(x, step)


class Encoder(Module):
    """An encoder of packed texts. It has the interface of `CausalLM`, with a pool of nothing."""

    def __init__(self, config: ModelConfig, context: Context, kernels: Kernels, mesh: Mesh) -> None:
        """Make the modules.

        Args:
            config: the config as laid out over the mesh, see TensorLayout.
        """
        assert config.encoder is not None, "a decoder is a CausalLM"
        D, uniform = config.hidden_size, Initializer("uniform", fan_in=1)
        self.config = config
        self.kernels = kernels
        self.mesh = mesh
        self.spec: EncoderSpec = config.encoder
        rows, num_types, norm = config.learned_positions, self.spec.num_types, self.spec.embedding_norm
        self.embedding = TokenTable(context, config.vocab_size, D)
        self.positions = None if rows is None else context.param((rows, D), (None, None), uniform)
        self.types = context.param((num_types, D), (None, None), uniform) if num_types else None
        self.embedding_norm = None if norm is None else Norm(context, D, norm)
        distances = self.spec.distances
        self.distances = None if distances is None else DistanceTable(context, distances, config.num_heads)
        self.layers = nnx.List(EncoderLayer(context, config, spec, kernels, mesh) for spec in config.layers)
        self.norm = Norm(context, D, config.norm) if self.spec.has_last_norm else None
        classifier, head = config.classifier, self.spec.head
        self.score = None if classifier is None or head is None else PooledHead(context, classifier, head, D)
        self.head_bias = None

    def __call__(self, batch: ForwardBatch, kv_cache: tuple[Any, ...]) -> tuple[jax.Array, tuple[Any, ...]]:
        """Compute one forward step of whole texts.

        Args:
            batch: the step's tokens; bits of their ids from TYPE_SHIFT on are their types.
            kv_cache: nothing.

        Returns:
            [T, D], after the last norm if there is one, and nothing.
        """
        distances = None if self.distances is None else self.distances.of_distances()
        step = SegmentStep.of(batch, self.config, distances)
        x = self.embed(batch)
        for layer in self.layers:
            x = _call_layer(*nnx.split(layer), x, step)
        return _normed(x, self.norm), kv_cache

    def embed(self, batch: ForwardBatch) -> jax.Array:
        """Compute the sum of a token's embeddings, normalized: [T, D]."""
        x = self.embedding.embed(batch.token_ids & _ID_BITS)
        if self.config.embedding_scale != 1.0:
            x *= jnp.asarray(self.config.embedding_scale, x.dtype)
        x = batch.with_embeds(x)
        if self.types is not None:
            types = jnp.minimum(batch.token_ids >> TYPE_SHIFT, self.spec.num_types - 1)
            x += self.types[...][types].astype(x.dtype)
        if self.positions is not None:
            x += self.positions[...][batch.positions + self.spec.first_position].astype(x.dtype)
        return _normed(x, self.embedding_norm)

    @property
    def head(self) -> PooledHead | None:
        """The source of labels' logits; None: the model makes none."""
        return self.score

    def logits(self, hidden: jax.Array, num_valid_tokens: int | None = None) -> jax.Array:
        """Raise: an encoder makes no logits of tokens."""
        raise NotImplementedError("an encoder generates no tokens")

    def classify(self, hidden: jax.Array) -> jax.Array:
        """Compute the logits of labels from pooled rows: [R, D] → f32[R, L]."""
        assert self.score is not None, "the model has labels"
        return self.score.logits(hidden)
