"""The decoder-only language model: the one residual loop that every family shares."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from palladio.model.base.module import Context, Initializer, Module
from palladio.model.base.sharding import num_ranks, num_shards
from palladio.model.cache.forward_batch import ForwardBatch
from palladio.model.cache.groups import CacheGroups
from palladio.model.cache.kv_cache import plan_steps
from palladio.model.config.config import ModelConfig
from palladio.model.layers.attention import Attention, LayerContext
from palladio.model.layers.delta_net import DeltaNet
from palladio.model.layers.divided_tokens import DividedTokens
from palladio.model.layers.latent_attention import LatentAttention
from palladio.model.layers.linear import ClassHead, HeadBias, TokenTable
from palladio.model.layers.mlp import GatedMLP, PlainMLP
from palladio.model.layers.moe import SparseMLP
from palladio.model.layers.norm import Norm
from palladio.model.layers.rope import Rotations
from palladio.model.spec.layer_spec import AttentionSpec, DeltaSpec, DenseSpec, LatentSpec, LayerSpec, SparseSpec
from palladio.pallas_kernels.choice import Kernels


class DecoderLayer(Module):
    """Attention and MLP, with norms and residual sums where the layer's spec has them."""

    def __init__(self, context: Context, config: ModelConfig, spec: LayerSpec, kernels: Kernels, mesh: Mesh) -> None:
        norm = functools.partial(Norm, context, config.hidden_size, spec.norm)
        has_inner, has_outer = spec.norm_placement != "post", spec.norm_placement in ("post", "sandwich")
        self.attention_norm = norm() if has_inner else None
        self.attention = _attention(context, config, spec.attention, kernels, mesh)
        self.attention_output_norm = norm() if has_outer else None
        self.mlp_norm = norm() if has_inner and spec.norm_placement != "parallel" else None
        self.mlp = _mlp(context, config, spec.mlp, kernels, mesh)
        self.mlp_output_norm = norm() if has_outer else None
        self.is_parallel = spec.norm_placement in ("parallel", "parallel_own")
        self.residual_scale = spec.residual_scale
        self.tokens = DividedTokens.of(config, kernels.target, mesh)

    def __call__(self, x: jax.Array, by: LayerContext, kept: Any) -> tuple[jax.Array, Any]:
        """Compute the layer: x [T, D], and its cache, see the kinds of attention → both after this layer."""
        attended, kept = self.attend(x, by, kept)
        return self.feed(x if self.is_parallel else attended, attended, by), kept

    def attend(self, x: jax.Array, by: LayerContext, kept: Any) -> tuple[jax.Array, Any]:
        """Compute the first half, attention.

        Returns:
            [T, D], the first residual sum, and the layer's cache.
        """
        normed = x if self.attention_norm is None else self.attention_norm(x)
        attended, kept = self.attention(self.tokens.gather(normed), by, kept)
        return self._add(x, attended, self.attention_output_norm), kept

    @property
    def input_norm(self) -> Norm | None:
        """The norm before the MLP; None: there is none."""
        return self.attention_norm if self.is_parallel and self.mlp_norm is None else self.mlp_norm

    def feed(self, x: jax.Array, residual: jax.Array, by: LayerContext) -> jax.Array:
        """Compute the second half, the MLP.

        Args:
            x: [T, D], the MLP's input before its norm.
            residual: [T, D]; the result is added to it.

        Returns:
            [T, D], the second residual sum.
        """
        normed = x if self.input_norm is None else self.input_norm(x)
        out = self.mlp(normed, by.num_tokens) if isinstance(self.mlp, SparseMLP) else self.mlp(normed)
        return self._add(residual, out, self.mlp_output_norm)

    def _add(self, x: jax.Array, out: jax.Array, norm: Norm | None) -> jax.Array:
        """Compute the residual sum."""
        if norm is not None:
            out = norm(out)
        return x + (out if self.residual_scale == 1.0 else out * self.residual_scale)


def _attention(
    context: Context, config: ModelConfig, spec: AttentionSpec | LatentSpec | DeltaSpec, kernels: Kernels, mesh: Mesh
) -> Attention | LatentAttention | DeltaNet:
    if isinstance(spec, DeltaSpec):
        return DeltaNet(context, config, spec, mesh)
    if isinstance(spec, LatentSpec):
        return LatentAttention(context, config, spec, kernels, mesh)
    return Attention(context, config, spec, kernels, mesh)


def _mlp(
    context: Context, config: ModelConfig, spec: DenseSpec | SparseSpec, kernels: Kernels, mesh: Mesh
) -> GatedMLP | PlainMLP | SparseMLP:
    if isinstance(spec, SparseSpec):
        return SparseMLP(context, config, spec, kernels, mesh)
    tokens = DividedTokens.of(config, kernels.target, mesh)
    return (GatedMLP if spec.is_gated else PlainMLP)(context, config, spec, tokens)


def _compute_layer(
    structure: nnx.GraphDef, state: nnx.State, x: jax.Array, by: LayerContext, kept: Any
) -> tuple[jax.Array, Any]:
    layer: DecoderLayer = nnx.merge(structure, state)
    return layer(x, by, kept)


@functools.partial(jax.jit, static_argnums=0)
def _call_layer(
    structure: nnx.GraphDef, state: nnx.State, x: jax.Array, by: LayerContext, kept: Any
) -> tuple[jax.Array, Any]:
    """Compute a layer, as a function of its own: layers of one structure are traced and lowered once."""
    return _compute_layer(structure, state, x, by, kept)


class CausalLM(Module):
    """A decoder-only language model over the pool of its layers' caches: pages of a KV cache, and states."""

    def __init__(self, config: ModelConfig, context: Context, kernels: Kernels, mesh: Mesh) -> None:
        """Make the modules.

        Args:
            config: the config as laid out over the mesh, see TensorLayout.
        """
        self.config = config
        self.kernels = kernels
        self.mesh = mesh
        self.tokens = DividedTokens.of(config, kernels.target, mesh)
        self.places = tuple(CacheGroups.of(config).places)
        self.embedding = TokenTable(context, config.vocab_size, config.hidden_size)
        rows, uniform = config.learned_positions, Initializer("uniform", fan_in=1)
        self.positions = None if rows is None else context.param((rows, config.hidden_size), (None, None), uniform)
        self.layers = nnx.List(DecoderLayer(context, config, spec, kernels, mesh) for spec in config.layers)
        self.norm = Norm(context, config.hidden_size, config.norm)
        has_table = config.has_head and not config.tie_word_embeddings
        self.lm_head = TokenTable(context, config.vocab_size, config.hidden_size) if has_table else None
        self.head_bias = HeadBias(context, config.vocab_size) if config.has_head and config.head_bias else None
        classifier = config.classifier
        self.score = None if classifier is None else ClassHead(context, classifier, config.hidden_size)

    def __call__(self, batch: ForwardBatch, kv_cache: tuple[Any, ...]) -> tuple[jax.Array, tuple[Any, ...]]:
        """Compute one forward step.

        Args:
            batch: the step's tokens.
            kv_cache: the pool, see CacheLayout; donate it to have it written in place.

        Returns:
            [T, D] after the final norm, and the cache after the step.
        """
        x = self.embedding.embed(batch.token_ids)
        if self.config.embedding_scale != 1.0:
            x *= jnp.asarray(self.config.embedding_scale, x.dtype)
        x = batch.with_embeds(x)
        if self.positions is not None:
            x += self.positions[...][batch.positions].astype(x.dtype)
        x = self.tokens.divide(x)
        by = batch.positions if batch.rotary_positions is None else batch.rotary_positions
        rotations = Rotations.of(self.config.ropes, self.config.head_size, by)
        steps = plan_steps(batch, self.config, x.dtype, kv_cache, self.kernels, num_shards(self.mesh))
        by_step = [LayerContext(batch.positions, rotations, step, batch.num_tokens) for step in steps]
        written = list(kv_cache)
        # In ranks of several devices, the experts' computation over devices is within that over ranks, and XLA's
        # partitioner (libtpu 0.0.42) aborts where such a function is called twice: each layer is lowered by itself.
        has_ranks = num_ranks(self.mesh) > 1 and num_shards(self.mesh) > 1
        is_nested = has_ranks and self.config.experts is not None
        call: Callable[..., tuple[jax.Array, Any]] = _compute_layer if is_nested else _call_layer
        for layer, (step, number) in zip(self.layers, self.places, strict=True):
            x, written[number] = call(*nnx.split(layer), x, by_step[step], written[number])
        return self.tokens.gather(self.norm(x)), tuple(written)

    @property
    def head(self) -> TokenTable | ClassHead | None:
        """The source of logits, of tokens or of labels; None: the model makes none."""
        if not self.config.has_head:
            return self.score
        return self.lm_head or self.embedding

    def logits(self, hidden: jax.Array, num_valid_tokens: int | None = None) -> jax.Array:
        """Compute logits: [R, D] → f32[R, V].

        Args:
            hidden: rows after the final norm.
            num_valid_tokens: ids from here on are padding of the vocabulary: the tokenizer does not know them, and
                their logits become -inf; None: all are real.
        """
        logits = self._head_logits(hidden)
        if num_valid_tokens is None or num_valid_tokens >= self.config.vocab_size:
            return logits
        return jnp.where(jnp.arange(self.config.vocab_size) < num_valid_tokens, logits, -jnp.inf)

    def classify(self, hidden: jax.Array) -> jax.Array:
        """Compute the logits of labels from rows after the final norm: [R, D] → f32[R, L]."""
        classifier = self.config.classifier
        assert classifier is not None
        if not classifier.tokens:
            assert self.score is not None
            return self.score.logits(hidden)
        logits = self._head_logits(hidden)
        return logits[:, 1:] - logits[:, :1] if classifier.is_difference else logits

    def _head_logits(self, hidden: jax.Array) -> jax.Array:
        """Compute the head's logits, scaled and capped as the language model's."""
        assert self.head is not None
        logits = self.head.logits(hidden)
        if self.head_bias is not None:
            logits += self.head_bias.bias[...]
        if self.config.logits_scale != 1.0:
            logits *= self.config.logits_scale
        if (cap := self.config.logits_soft_cap) is not None:
            logits = cap * jnp.tanh(logits / cap)
        return logits
