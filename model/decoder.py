"""The decoder-only language model: the one residual loop that every family shares."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.attention import Attention, PagedStep
from palladio.model.config import ModelConfig
from palladio.model.embedding import TokenTable
from palladio.model.forward_batch import ForwardBatch
from palladio.model.mlp import GatedMLP
from palladio.model.module import Context, Module
from palladio.model.moe import SparseMLP
from palladio.model.norm import RMSNorm
from palladio.model.rope import Rotation, rotation
from palladio.model.sharding import num_shards
from palladio.pallas_kernels.choice import Kernels


class DecoderLayer(Module):
    """Attention and MLP, each with its norm before and its residual around."""

    def __init__(self, context: Context, config: ModelConfig, layer: int, kernels: Kernels, mesh: Mesh) -> None:
        self.attention_norm = RMSNorm(context, config.hidden_size, config.rms_norm_eps, axis=None)
        self.attention = Attention(context, config, layer, kernels, mesh)
        self.mlp_norm = RMSNorm(context, config.hidden_size, config.rms_norm_eps, axis=None)
        is_sparse = config.experts is not None and config.experts.sparse_layers[layer]
        self.mlp = SparseMLP(context, config, kernels, mesh) if is_sparse else GatedMLP(context, config)

    def __call__(
        self, x: jax.Array, by: Rotation, step: PagedStep, kv_pages: jax.Array, num_tokens: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """x [T, D], of which the first num_tokens rows are real, kv_pages [P, K, S, 2·Hp] → both after this layer."""
        attended, kv_pages = self.attention(self.attention_norm(x), by, step, kv_pages)
        x += attended
        normed = self.mlp_norm(x)
        x += self.mlp(normed, num_tokens) if isinstance(self.mlp, SparseMLP) else self.mlp(normed)
        return x, kv_pages


@functools.partial(jax.jit, static_argnums=0)
def _call_layer(
    structure: nnx.GraphDef,
    state: nnx.State,
    x: jax.Array,
    by: Rotation,
    step: PagedStep,
    kv_pages: jax.Array,
    num_tokens: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """A layer as a function of its own: layers of one structure are traced and lowered once, whatever their number."""
    layer: DecoderLayer = nnx.merge(structure, state)
    return layer(x, by, step, kv_pages, num_tokens)


class CausalLM(Module):
    """A decoder-only language model over a paged KV cache."""

    def __init__(
        self, config: ModelConfig, dtype: DTypeLike, kernels: Kernels, mesh: Mesh, rngs: nnx.Rngs | None
    ) -> None:
        """
        Args:
            config: as it is laid out over the mesh, see TensorLayout.
            rngs: see Context.
        """
        context = Context(dtype, rngs)
        self.config = config
        self.kernels = kernels
        self.mesh = mesh
        self.embedding = TokenTable(context, config.vocab_size, config.hidden_size)
        self.layers = nnx.List(DecoderLayer(context, config, i, kernels, mesh) for i in range(config.num_layers))
        self.norm = RMSNorm(context, config.hidden_size, config.rms_norm_eps, axis=None)
        has_table = config.has_head and not config.tie_word_embeddings
        self.lm_head = TokenTable(context, config.vocab_size, config.hidden_size) if has_table else None

    def __call__(self, batch: ForwardBatch, kv_cache: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """One forward step.

        Args:
            batch: the step's tokens.
            kv_cache: [P, K, S, 2·Hp] for each layer; donate it to have it written in place.

        Returns:
            [T, D] after the final norm, and the cache with the step's keys and values.
        """
        x = self.embedding.embed(batch.token_ids)
        by = rotation(self.config.rope, self.config.head_size, batch.positions)
        step = PagedStep.of(batch, self.config, x.dtype, kv_cache[0], self.kernels, num_shards(self.mesh))
        written = []
        for layer, kv_pages in zip(self.layers, kv_cache, strict=True):
            x, kv_pages = _call_layer(*nnx.split(layer), x, by, step, kv_pages, batch.num_tokens)
            written.append(kv_pages)
        return self.norm(x), tuple(written)

    @property
    def head(self) -> TokenTable:
        """The table that logits come from; meaningless if the model has no head."""
        return self.lm_head or self.embedding

    def logits(self, hidden: jax.Array, num_valid_tokens: int | None = None) -> jax.Array:
        """[R, D] → f32[R, V].

        Args:
            hidden: rows after the final norm.
            num_valid_tokens: ids from here on are padding of the vocabulary: the tokenizer does not know them, and
                their logits become -inf; None: all are real.
        """
        logits = self.head.logits(hidden)
        if num_valid_tokens is None or num_valid_tokens >= self.config.vocab_size:
            return logits
        return jnp.where(jnp.arange(self.config.vocab_size) < num_valid_tokens, logits, -jnp.inf)
