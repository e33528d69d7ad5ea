"""Latent attention (MLA): the cache keeps one row a token, which is key and value of all heads.

The computation stays in latents (absorbed): the projection that would make keys of latents is applied to queries, and
the one that would make values to the weighted sum of latents. So nothing is ever expanded, and a step reads one row a
token whatever the number of heads. Each of several devices has some of the heads, and all rows.
"""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from palladio.model.base.module import Context, Initializer, Module
from palladio.model.base.sharding import ShardingRules, on_each_device
from palladio.model.cache.latent_cache import LatentStep
from palladio.model.config.config import ModelConfig
from palladio.model.layers.attention import LayerContext, growth_of
from palladio.model.layers.linear import Linear
from palladio.model.layers.norm import Norm
from palladio.model.spec.layer_spec import LatentSpec
from palladio.pallas_kernels.choice import Kernels


class LatentAttention(Module):
    """Attention of N heads over latents in pages.

    key_up [N, plain, L] and value_up [N, value, L] are the two halves of the projection that would expand a latent.
    They stay dense; those of a quantized checkpoint are dequantized while it loads.
    """

    def __init__(self, context: Context, config: ModelConfig, spec: LatentSpec, kernels: Kernels, mesh: Mesh) -> None:
        """Make the parameters.

        Args:
            config: the config as laid out; it has sizes of latents.
        """
        sizes, D, N = config.latent, config.hidden_size, config.num_heads
        assert sizes is not None
        rank, L = sizes.query_rank, sizes.latent_size
        heads = ((N, sizes.query_size), ("latent_heads", None))
        self.query = Linear(context, (D, *heads[0]), (None, *heads[1]), bias=False) if rank is None else None
        self.query_down = None if rank is None else Linear(context, (D, rank), (None, None), bias=spec.bias)
        self.query_norm = None if rank is None else Norm(context, rank, spec.norm)
        self.query_up = None if rank is None else Linear(context, (rank, *heads[0]), (None, *heads[1]), bias=False)
        self.row = Linear(context, (D, sizes.row_size), (None, None), bias=spec.bias)
        self.row_norm = Norm(context, L, spec.norm)
        by_head, size = ("latent_heads", None, None), sizes.value_size
        self.key_up = context.param((N, sizes.plain_size, L), by_head, Initializer("uniform", fan_in=2))
        self.value_up = context.param((N, size, L), by_head, Initializer("uniform", fan_in=2))
        self.output = Linear(context, (N * size, D), ("latent_values", None), bias=spec.bias)
        self.sizes = sizes
        self.spec = spec
        self.kernels = kernels
        self.mesh = mesh

    def __call__(self, x: jax.Array, by: LayerContext, pages: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Attend: x [T, D], pages [P, S, W] → [T, D] and the cache with this step's rows."""
        sizes, rope = self.sizes, self.spec.rope
        q, row = self._queries(x), self.row(x)  # [T, N, plain + R], [T, L + R]
        if self.spec.query_growth is not None:
            q *= growth_of(self.spec.query_growth, by.positions)[:, None, None].astype(q.dtype)
        latent = self.row_norm(row[:, : sizes.latent_size])
        rotated = by.rotations.rotate(row[:, None, sizes.latent_size :], rope)[:, 0]
        q_rotated = by.rotations.rotate(q[..., sizes.plain_size :], rope)
        key_up, value_up = (param[...].astype(x.dtype) for param in (self.key_up, self.value_up))
        q_latent = jnp.einsum("tnp,npl->tnl", q[..., : sizes.plain_size], key_up)
        rules = ShardingRules()
        own, whole = rules.spec((None, "latent_heads")), rules.spec(())
        attend = on_each_device(
            self._write_and_attend,
            self.mesh,
            in_specs=(own, own, whole, whole, whole, whole),
            out_specs=(own, whole),
        )
        out, pages = attend(q_latent, q_rotated, latent, rotated, by.step, pages)
        values = jnp.einsum("tnl,nvl->tnv", out, value_up)
        return self.output(values.reshape(x.shape[0], -1)), pages

    def _queries(self, x: jax.Array) -> jax.Array:
        if self.query is not None:
            return self.query(x)
        assert self.query_down is not None
        assert self.query_norm is not None
        assert self.query_up is not None
        return self.query_up(self.query_norm(self.query_down(x)))

    def _write_and_attend(
        self,
        q_latent: jax.Array,
        q_rotated: jax.Array,
        latent: jax.Array,
        rotated: jax.Array,
        step: LatentStep,
        pages: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Write to the cache and attend: q_latent [T, N, L], q_rotated [T, N, R], latent [T, L], rotated [T, R], pages
        [P, S, W] → [T, N, L] and the cache."""
        pages = step.write(pages, latent, rotated, self.kernels)
        return step.attend(q_latent, q_rotated, pages, self.spec.scale, self.kernels), pages
