"""Gated DeltaNet: instead of keys and values, a layer keeps one matrix for each value head, whatever the length.

Queries, keys and values first pass through a short convolution over tokens. Each of several devices has some of the
heads, and their states.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from palladio.model.base.module import Context, Initializer, Module
from palladio.model.base.sharding import ShardingRules, on_each_device
from palladio.model.cache.state_cache import DeltaState, StateStep
from palladio.model.config.config import ModelConfig
from palladio.model.layers.attention import LayerContext
from palladio.model.layers.linear import Linear
from palladio.model.layers.norm import Norm
from palladio.model.spec.layer_spec import DeltaSpec
from palladio.pallas_kernels.gated_delta import gated_delta, short_convolution

_NORM_EPS = 1e-6  # of queries and keys, whatever rms_norm_eps says


class DeltaNet(Module):
    """K heads of queries and keys, each with R heads of values.

    `keys` is [D, K, 2·dk], each head's query and key; `values` [D, K, R, 2·dv], each value head's values and the gates
    of its results; `rates` [D, K, R, 2], the inputs of beta (share of change) and of the decay.
    """

    def __init__(self, context: Context, config: ModelConfig, spec: DeltaSpec, mesh: Mesh) -> None:
        """Make the parameters.

        Args:
            config: the config as laid out; it has sizes of states.
        """
        sizes, D = config.delta, config.hidden_size
        assert sizes is not None
        K, R, dk, dv, W = sizes.num_key_heads, sizes.group, sizes.key_size, sizes.value_size, sizes.width
        heads, uniform = ("state_heads", "state_group"), Initializer("uniform")
        self.keys = Linear(context, (D, K, 2 * dk), (None, "state_heads", None), bias=False)
        self.values = Linear(context, (D, K, R, 2 * dv), (None, *heads, None), bias=False)
        self.rates = context.param((D, K, R, 2), (None, *heads, None), uniform)
        last = Initializer("uniform", fan_in=-1)
        self.key_filter = context.param((K, 2 * dk, W), ("state_heads", None, None), last)
        self.value_filter = context.param((K, R, dv, W), (*heads, None, None), last)
        self.log_decay = context.param((K, R), heads, Initializer("zeros"), jnp.float32)
        self.decay_bias = context.param((K, R), heads, Initializer("ones"), jnp.float32)
        self.norm = Norm(context, dv, spec.norm)
        self.back = Linear(context, (K * R * dv, D), ("state_values", None), bias=False)
        self.mesh = mesh

    def __call__(self, x: jax.Array, by: LayerContext, state: DeltaState) -> tuple[jax.Array, DeltaState]:
        """Mix tokens: x [T, D] → [T, D], and the states after this step."""
        values, gates = jnp.split(self.values(x), 2, axis=-1)  # [T, K, R, dv] each
        rates = jnp.einsum("td,dkrn->tkrn", x, self.rates[...].astype(x.dtype)).astype(jnp.float32)
        params = self.key_filter[...], self.value_filter[...], self.log_decay[...], self.decay_bias[...]
        rules = ShardingRules()
        own, whole, heads = rules.spec((None, "state_heads")), rules.spec(()), rules.spec(("state_heads",))
        remember = on_each_device(
            self._remember, self.mesh, in_specs=((own,) * 3, (heads,) * 4, own, whole), out_specs=(own, own)
        )
        out, state = remember((self.keys(x), values, rates), params, state, by.step)
        out = self.norm(out).astype(jnp.float32) * jax.nn.silu(gates.astype(jnp.float32))
        return self.back(out.astype(x.dtype).reshape(x.shape[0], -1)), state

    def _remember(
        self, projected: tuple[jax.Array, ...], params: tuple[jax.Array, ...], state: DeltaState, step: StateStep
    ) -> tuple[jax.Array, DeltaState]:
        """Run the convolution and the delta rule.

        Args:
            projected: keys [T, K, 2·dk], values [T, K, R, dv] and rates f32[T, K, R, 2].

        Returns:
            [T, K, R, dv], and the states after this step.
        """
        keys, values, rates = projected
        key_filter, value_filter, log_decay, decay_bias = params
        T, K, R, dv = values.shape
        channels = jnp.concatenate([keys, values.reshape(T, K, -1)], axis=-1)
        filters = jnp.concatenate([key_filter, value_filter.reshape(K, R * dv, -1)], axis=1)
        seen, tokens = short_convolution(channels, filters, state.tokens, step.rows)
        seen = jax.nn.silu(seen).astype(values.dtype)
        dk = keys.shape[-1] // 2
        q, k = _unit(seen[..., :dk]) * dk**-0.5, _unit(seen[..., dk : 2 * dk])
        v = seen[..., 2 * dk :].reshape(T, K, R, dv)
        beta, decay = jax.nn.sigmoid(rates[..., 0]), -jnp.exp(log_decay) * jax.nn.softplus(rates[..., 1] + decay_bias)
        out, memory = gated_delta(q, k, v, decay, beta, state.memory, step.rows)
        return out, DeltaState(tokens, memory)


def _unit(x: jax.Array) -> jax.Array:
    """Scale vectors to length 1 along the last dimension, in float32."""
    wide = x.astype(jnp.float32)
    return wide * lax.rsqrt(jnp.sum(jnp.square(wide), axis=-1, keepdims=True) + _NORM_EPS)
