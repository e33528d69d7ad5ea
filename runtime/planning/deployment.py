"""What a model needs on hardware that is not at hand: memory, KV tokens, and the most that bandwidth and matrix units
allow. All from shapes; nothing is loaded, and nothing is compiled."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from palladio.model.base.sharding import make_abstract_mesh
from palladio.model.config.config import ModelConfig
from palladio.model.functional import ModelStructure, flatten_model, unflatten_model
from palladio.model.layers.moe import SparseMLP
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.load_model import abstract_model
from palladio.model.pooling.pooling_spec import PoolingSpec
from palladio.model.weights.kinds import WeightKinds
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.device_shape import abstract_weights, device_shape
from palladio.runtime.core.plan.dtypes import Dtypes
from palladio.runtime.core.plan.kernel_choice import plan_cache
from palladio.runtime.core.plan.memory import DeviceMemory, MemoryPlan
from palladio.runtime.core.plan.memory_needs import needs_of
from palladio.runtime.core.plan.platform_defaults import PlatformDefaults
from palladio.runtime.core.plan.sizing import EngineLimits, check_experts, check_states
from palladio.runtime.core.plan.state_sizing import with_states
from palladio.runtime.execution.programs.program import ProgramDesign, StaticModel
from palladio.runtime.execution.programs.programs import declare_programs
from palladio.runtime.execution.state.device_state import DeviceShape, Weights, bytes_per_device
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.planning.hardware import Slice
from palladio.runtime.planning.workspace_estimate import WorkspaceEstimate
from palladio.runtime.scheduling.batch.buckets import Buckets


class KnownShapes:
    """A model's structure and abstract weights, made once for each number of devices: that takes a second or more."""

    def __init__(self, model: ModelConfig) -> None:
        self._model = model
        self._made: dict[tuple[int, int, int, str, str], tuple[ModelStructure, Weights]] = {}

    def of(
        self, num_shards: int, num_expert_parts: int, num_sharing: int, dtypes: Dtypes
    ) -> tuple[ModelStructure, Weights]:
        """The abstract model and its weights, divided over devices that need not exist.

        Args:
            num_shards: devices that share each layer.
            num_expert_parts: groups of devices with experts of their own.
            num_sharing: ranks that have experts in common.
        """
        names = jnp.dtype(dtypes.activations).name, jnp.dtype(dtypes.weights).name
        key = (num_shards, num_expert_parts, num_sharing, *names)
        if key not in self._made:
            mesh = make_abstract_mesh(num_shards, num_sharing, num_expert_parts, shares_experts=True)
            self._made[key] = abstract_weights(self._model, dtypes, mesh, Kernels("xla"))
        return self._made[key]

    @functools.cached_property
    def num_parameters(self) -> int:
        """Parameters of the model as published, without the scales of quantized weights."""
        dense = dataclasses.replace(self._model, weight_kinds=WeightKinds())
        leaves = flatten_model(abstract_model(dense, dtype=jnp.float32, mesh=make_abstract_mesh(1)))[1]
        return sum(math.prod(leaf.shape) for leaf in leaves)


def _num_values(leaf: Any) -> int:
    """Values of an array on one device."""
    return math.prod(leaf.sharding.shard_shape(leaf.shape))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A model on a slice; memory is of one device.

    Attributes:
        place: the slice.
        num_shards: devices that share each layer (--tp-size).
        num_ranks: data-parallel ranks (--dp-size).
        num_sharing: ranks that have experts in common (--enable-dp-attention); 1: each has all.
        num_expert_parts: groups of these devices, with experts of their own (--ep-size).
        model: as published. layout: over the devices.
        limits, buckets, dtypes: as the engine would choose.
        shape: the shape of the device's state. structure, weights: abstract.
        num_parameters: parameters of the published model.
        num_table_parameters: how many of them each table of tokens has.
    """

    place: Slice
    num_shards: int
    num_ranks: int
    num_sharing: int
    num_expert_parts: int
    model: ModelConfig
    layout: TensorLayout
    limits: EngineLimits
    buckets: Buckets
    dtypes: Dtypes
    shape: DeviceShape
    structure: ModelStructure
    weights: Weights
    num_parameters: int
    num_table_parameters: int

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        model: ModelConfig,
        place: Slice,
        mesh: Mesh | None = None,
        kernels: Kernels = Kernels("xla"),
        known: "KnownShapes | None" = None,
    ) -> "Deployment":
        """
        Args:
            config: flags; of the model, only what belongs to no directory.
            mesh: of compile-only devices; None: nothing will be compiled.
            known: of the same model, for several plans; None: this is the only one.

        Raises:
            ConfigError: a flag is wrong.
        """
        parallel = config.parallel
        check_experts(parallel, model)
        check_states(config, model)
        num_shards, num_ranks, num_expert_parts = parallel.rank_size, parallel.dp_size, parallel.rank_parts
        num_sharing = num_ranks if parallel.enable_dp_attention else 1
        defaults = PlatformDefaults.of(place.chip.platform, place.chip.name)
        limits = EngineLimits.of(config, model, defaults)
        model = model.for_context(limits.context_length)
        dtypes = Dtypes.of(config, Target(place.chip.platform), model)
        layout = TensorLayout.of(model, num_shards, num_expert_parts, num_sharing)
        over: Mesh = (
            mesh
            if mesh is not None
            else make_abstract_mesh(
                num_shards, num_ranks, num_expert_parts, shares_experts=parallel.enable_dp_attention
            )
        )
        pooling = PoolingSpec() if config.source.is_embedding else None  # other methods keep more of each request
        shape = device_shape(config, layout, limits, dtypes, over, model.vocab_size, pooling)
        shapes = KnownShapes(model) if known is None else known
        if mesh is None:
            structure, weights = shapes.of(num_shards, num_expert_parts, num_sharing, dtypes)
        else:
            structure, weights = abstract_weights(model, dtypes, mesh, kernels)
        needs = needs_of(config, place.chip.platform, limits, shape, weights)
        memory = DeviceMemory(place.chip.memory, place.chip.memory)
        limits, shape = with_states(config, model, defaults, (limits, shape), memory, needs)
        return cls(
            place=place,
            num_shards=num_shards,
            num_ranks=num_ranks,
            num_sharing=num_sharing,
            num_expert_parts=num_expert_parts,
            model=model,
            layout=layout,
            limits=limits,
            buckets=limits.buckets(config, defaults),
            dtypes=dtypes,
            shape=shape,
            structure=structure,
            weights=weights,
            num_parameters=shapes.num_parameters,
            num_table_parameters=model.vocab_size * model.hidden_size,
        )

    def plan(self, config: EngineConfig, workspace: int) -> MemoryPlan:
        """Divide the memory of a device, of which the programs need `workspace` bytes.

        Raises:
            ConfigError: it does not fit; the message says what would.
        """
        platform = self.place.chip.platform
        needs = needs_of(config, platform, self.limits, self.shape, self.weights, self.buckets)
        memory = self.place.chip.memory
        attention = "gpu_triton" if self.place.chip.platform == "gpu" else "tpu"  # on a GPU for all caches of 8 bits
        return plan_cache(attention, self.shape, DeviceMemory(memory, memory), needs, workspace)

    def estimated_workspace(self) -> int:
        """Bytes that the programs need in addition to their arguments."""
        return self.workspace_estimate().total

    def workspace_estimate(self) -> WorkspaceEstimate:
        """What the programs need, and for what."""
        config = self.layout.config
        num_tables = 1 if config.tie_word_embeddings or not config.has_head else 2
        tables = num_tables * config.vocab_size * config.hidden_size // self.num_shards
        design = ProgramDesign(self.static_model, len(self.weights), self.shape, self.buckets)
        return WorkspaceEstimate.of(
            self.place.chip.platform,
            config,
            self.buckets,
            self.dtypes.activations,
            num_shards=self.num_shards,
            num_expert_parts=self.num_expert_parts,
            num_sharing=self.num_sharing,
            programs=declare_programs(design),
            layer_weights=(sum(map(_num_values, self.weights)) - tables) // config.num_layers,
            memory_share=self.weight_bytes / self.place.chip.memory,
            context=self.shape.num_columns * self.shape.page_size,
        )

    @property
    def static_model(self) -> StaticModel:
        hidden = jax.ShapeDtypeStruct((self.model.hidden_size,), self.shape.dtype)
        return StaticModel(self.structure, hidden, self.shape.num_valid_tokens)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of one device."""
        return bytes_per_device(self.weights)

    @property
    def expert_bytes(self) -> float:
        """Bytes of one device's weights that belong to experts which the router chooses from."""
        mixtures = (layer.mlp for layer in unflatten_model(self.structure, self.weights).layers)
        weights = [(mlp.gate, mlp.up, mlp.down) for mlp in mixtures if isinstance(mlp, SparseMLP)]
        return float(bytes_per_device(jax.tree.leaves([nnx.state(weight) for each in weights for weight in each])))

    @property
    def table_bytes(self) -> int:
        """Bytes of the input's embedding table on one device."""
        return bytes_per_device(jax.tree.leaves(nnx.state(unflatten_model(self.structure, self.weights).embedding)))

    @property
    def num_active_parameters(self) -> int:
        """Parameters of the published model that a token is multiplied with or looked up in."""
        experts = self.model.experts
        if experts is None:
            return self.num_parameters
        idle = experts.num_experts - experts.num_chosen
        one = 3 * self.model.hidden_size * experts.intermediate_size
        return self.num_parameters - self.model.num_sparse_layers * idle * one

    @property
    def bytes_per_token(self) -> float:
        """Bytes of KV cache on one device for a token that all layers keep."""
        return self.cache_bytes(1)

    def cache_bytes(self, context: int) -> float:
        """Bytes of KV cache on one device that a query reads after `context` tokens."""
        groups, spec = self.shape.cache.groups.groups, self.shape.cache.spec
        kept = sum(sum(map(len, one.tables)) * min(context, one.window or context) for one in groups)
        return kept * bytes_per_device(spec.array(1, self.shape.mesh)) / spec.page_size

    @property
    def state_bytes(self) -> float:
        """Bytes on one device of the states that layers keep of a request."""
        cache = self.shape.cache
        num_slots = self.shape.num_slots + self.shape.num_snapshots
        return bytes_per_device(cache.states(cache.abstract(1, self.shape.mesh))) / num_slots

    def num_requests(self, context: int, memory: MemoryPlan) -> int:
        """How many requests of `context` tokens each fit in the KV cache of a data-parallel rank."""
        return (memory.num_pages - 1) // self.shape.page_groups.num_held(context)


@dataclasses.dataclass(frozen=True, slots=True)
class Roofline:
    """The highest speed of a model on a slice, if no computation overlaps the sums over devices. Attention's own
    operations and the sampler are left out."""

    deployment: Deployment

    def decode_seconds(self, num_requests: int, context: int) -> float:
        """Seconds of a decode step: all weights and all cached tokens are read once, states are read and written, and
        each layer adds up twice. Only experts that tokens go to are read."""
        one, chip = self.deployment, self.deployment.place.chip
        unread = one.table_bytes if self._num_tables == 2 else 0  # of the input's table, a few rows
        read = one.weight_bytes - unread + num_requests * (one.cache_bytes(context) + 2 * one.state_bytes)
        num_others = (one.num_sharing - 1) * (num_requests if num_requests > 1 else 0)  # a single one is alone
        read -= self._idle_share(num_requests + num_others) * one.expert_bytes
        multiplied = one.num_active_parameters - (self._num_tables - 1) * one.num_table_parameters
        operations = 2 * multiplied * num_requests / one.num_shards
        return max(read / chip.bandwidth, operations / chip.flops) + self._sums(num_requests)

    def decode_rate(self, num_requests: int, context: int) -> float:
        """Tokens per second, of all requests of a data-parallel rank."""
        return num_requests / self.decode_seconds(num_requests, context)

    def prefill_rate(self) -> float:
        """Prompt tokens per second of all groups; only the last of a prompt needs logits."""
        one = self.deployment
        tokens, multiplied = (
            one.limits.max_step_tokens,
            one.num_active_parameters - self._num_tables * one.num_table_parameters,
        )
        compute = 2 * multiplied * tokens / one.num_shards / one.place.chip.flops
        return one.num_ranks * tokens / (compute + self._sums(tokens))

    @property
    def _num_tables(self) -> int:
        """Tables of the input and of the output, which may be one."""
        model = self.deployment.model
        return 2 if model.has_head and not model.tie_word_embeddings else 1

    def _idle_share(self, num_tokens: int) -> float:
        """The share of experts that none of `num_tokens` tokens goes to, if the router favours no expert."""
        experts = self.deployment.model.experts
        return 0.0 if experts is None else (1 - experts.num_chosen / experts.num_experts) ** num_tokens

    def _sums(self, num_tokens: int) -> float:
        """Seconds of the all-reduces: each device sends and gets (n - 1) / n of an array twice. Ranks with the same
        experts gather the rows of all, and scatter the sums, in each sparse layer."""
        one, shards = self.deployment, self.deployment.num_shards
        array = num_tokens * one.model.hidden_size * jnp.dtype(one.dtypes.activations).itemsize
        volume = (2 * one.model.num_layers + 1) * 2 * (shards - 1) / shards * array
        volume += one.model.num_sparse_layers * 2 * (one.num_sharing - 1) * array
        return volume / one.place.chip.link
