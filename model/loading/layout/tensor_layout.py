"""TensorLayout: the layout of heads, MLP, experts and vocabulary that makes each of them divide over its devices."""

import dataclasses
from typing import Self

from jax.sharding import Mesh

from palladio.model.base.sharding import num_expert_parts, num_shards, num_sharing
from palladio.model.config.config import HeadCounts, ModelConfig
from palladio.model.spec.delta_config import DeltaConfig
from palladio.model.spec.experts_config import ExpertsConfig
from palladio.model.spec.layer_spec import DenseSpec
from palladio.model.weights.kinds import WeightKind, round_up

VOCAB_MULTIPLE = 128  # rows of the token table a device holds: whole lanes, and whole words of a mask


@dataclasses.dataclass(frozen=True, slots=True)
class HeadPlace:
    """The content of one place in the grid of heads.

    Attributes:
        kv_head: the checkpoint's kv head; its key and value may be in several places.
        first_query: the first of the checkpoint's query heads here.
        num_queries: the number of consecutive query heads here; all see this kv head.
    """

    kv_head: int
    first_query: int
    num_queries: int


@dataclasses.dataclass(frozen=True, slots=True)
class TensorLayout:
    """The checkpoint's sizes, and the sizes of the parameters, which are padded where they would not divide.

    Padding is zeros: it adds nothing to any sum. Where there are fewer kv heads than devices, each is copied to several
    places, which share its query heads; where their number does not divide, some places stay empty.

    Attributes:
        stored: the model as the checkpoint has it.
        config: the model as laid out: with padded numbers of heads, F, places of experts and V.
        num_shards: devices that share each layer.
        num_expert_parts: parts of these devices that have experts of their own; num_shards / num_expert_parts devices
            share each expert.
        num_sharing: groups of devices that share one set of experts, each with some of them.
        places: the place of each of the config's kv heads; None: padding.
        state_places: the place of each of the config's key heads in layers with states, with value heads instead of
            queries.
    """

    stored: ModelConfig
    config: ModelConfig
    num_shards: int
    num_expert_parts: int
    num_sharing: int
    places: tuple[HeadPlace | None, ...]
    state_places: tuple[HeadPlace | None, ...] = ()

    @classmethod
    def of(cls, model: ModelConfig, num_shards: int, num_expert_parts: int = 1, num_sharing: int = 1) -> Self:
        """Compute the layout of a model over num_shards devices; over one it is the checkpoint's."""
        places = _places(model.num_heads, model.num_kv_heads, num_shards)
        group = max(place.num_queries for place in places if place is not None)
        delta = model.delta
        state_places = () if delta is None else _places(delta.num_value_heads, delta.num_key_heads, num_shards)
        config = dataclasses.replace(
            model,
            delta=delta and _lay_out_states(delta, state_places),
            num_kv_heads=len(places),
            num_heads=len(places) * group,
            head_counts=_head_counts(model, places, group),
            intermediate_size=_cut(model, model.intermediate_size, num_shards if _has_mlp(model) else 1),
            experts=model.experts and _lay_out_experts(model, model.experts, num_shards, num_expert_parts, num_sharing),
            vocab_size=round_up(model.vocab_size, num_shards * VOCAB_MULTIPLE) if num_shards > 1 else model.vocab_size,
        )
        return cls(model, config, num_shards, num_expert_parts, num_sharing, places, state_places)

    @classmethod
    def over(cls, model: ModelConfig, mesh: Mesh) -> Self:
        """Compute the layout over the devices of a group."""
        return cls.of(model, num_shards(mesh), num_expert_parts(mesh), num_sharing(mesh))

    def sizes(self, axis: str) -> tuple[int, int]:
        """Return the size of a logical axis of parameters, except that of heads: in the checkpoint, and as laid out."""
        return _size_along(axis, self.stored), _size_along(axis, self.config)

    def groups(self, axis: str | None, kind: WeightKind) -> tuple[int, int]:
        """Return the number of inputs that share a scale of a weight: as laid out, and on one device.

        Args:
            axis: logical axis of the inputs; None: they are not split.
            kind: a kind with groups.
        """
        assert kind.group is not None
        if axis is None:
            return kind.group, kind.group
        if axis in ("heads", "latent_values", "state_values"):
            latent, delta = self.stored.latent, self.stored.delta
            size = self.stored.head_size if latent is None else latent.value_size
            group = kind.head_group(delta.value_size if delta is not None and axis == "state_values" else size)
            return group, group
        num_parts = self.num_shards // self.num_expert_parts if axis == "expert_ffw" else self.num_shards
        return kind.group_on(_size_along(axis, self.config), num_parts), kind.group

    @property
    def group(self) -> int:
        """Query heads in a place, padding included (G)."""
        return self.config.num_heads // self.config.num_kv_heads

    @property
    def is_plain(self) -> bool:
        """Whether nothing is padded and nothing copied."""
        return self.config == self.stored

    def table(self) -> list[str]:
        """List the sizes that do not divide and the padding of each, a line each, for the log."""
        stored, config = self.stored, self.config
        lines = []
        if stored.latent is not None and self.num_shards > 1:
            whose = "all of a rank's" if self.num_sharing > 1 else "all of it"
            lines.append(f"latent KV cache: {whose} on each of {self.num_shards} devices")
        elif config.num_kv_heads > stored.num_kv_heads:
            copies = sum(place is not None for place in self.places) / stored.num_kv_heads
            how = "the rest are padding"
            if copies > 1:
                how = f"{copies:g} copies of each" if copies == int(copies) else "one or more copies of each"
            lines.append(f"KV heads: {stored.num_kv_heads} stored as {config.num_kv_heads} ({how})")
        padded = [
            ("query heads: {} padded to {}", stored.num_heads, config.num_heads),
            ("MLP: {} columns padded to {}", stored.intermediate_size, config.intermediate_size),
        ]
        if stored.experts is not None and config.experts is not None:
            own, laid_out = stored.experts, config.experts
            shared = (own.shared_intermediate_size or 0, laid_out.shared_intermediate_size or 0)
            padded += [
                ("experts: {} padded to {}", own.num_places, laid_out.num_places),
                ("each expert: {} columns padded to {}", own.intermediate_size, laid_out.intermediate_size),
                ("shared expert: {} columns padded to {}", *shared),
            ]
        if stored.delta is not None and config.delta is not None:
            heads = stored.delta.num_key_heads, config.delta.num_key_heads
            padded.append(("key heads of layers with states: {} stored as {}", *heads))
        padded.append(("vocabulary: {} rows padded to {}", stored.vocab_size, config.vocab_size))
        return lines + [text.format(size, laid) for text, size, laid in padded if laid > size]


def _lay_out_states(delta: DeltaConfig, places: tuple[HeadPlace | None, ...]) -> DeltaConfig:
    group = max(place.num_queries for place in places if place is not None)
    return dataclasses.replace(delta, num_key_heads=len(places), num_value_heads=len(places) * group)


def _has_mlp(model: ModelConfig) -> bool:
    return any(isinstance(layer.mlp, DenseSpec) for layer in model.layers)


def _head_counts(model: ModelConfig, places: tuple[HeadPlace | None, ...], group: int) -> HeadCounts | None:
    if len(places) == model.num_kv_heads and len(places) * group == model.num_heads:
        return None
    heads = [None if place is None else place.kv_head for place in places]
    counts = (head is not None and head not in heads[:number] for number, head in enumerate(heads))
    queries = (query < (place.num_queries if place else 0) for place in places for query in range(group))
    return HeadCounts(
        num_heads=model.num_heads, num_kv_heads=model.num_kv_heads, counts=tuple(counts), is_query=tuple(queries)
    )


def _cut(model: ModelConfig, size: int, num_parts: int) -> int:
    """Return the columns of an MLP, which are the inputs of its projection back, with padding."""
    kind = model.weight_kinds.kind
    return round_up(size, num_parts) if kind is None else kind.cut(size, num_parts)[0]


def _lay_out_experts(
    model: ModelConfig, experts: ExpertsConfig, num_shards: int, num_expert_parts: int, num_sharing: int
) -> ExpertsConfig:
    shared = experts.shared_intermediate_size
    return dataclasses.replace(
        experts,
        num_places=round_up(experts.num_experts, num_expert_parts * num_sharing),
        intermediate_size=_cut(model, experts.intermediate_size, num_shards // num_expert_parts),
        shared_intermediate_size=None if shared is None else _cut(model, shared, num_shards),
    )


def _size_along(axis: str, model: ModelConfig) -> int:
    sizes = {"vocab": model.vocab_size, "ffw": model.intermediate_size}
    if model.latent is not None:
        sizes |= {"latent_heads": model.num_heads, "latent_values": model.num_heads * model.latent.value_size}
    if model.experts is not None:
        sizes |= {"experts": model.experts.num_places, "expert_ffw": model.experts.intermediate_size}
        sizes["shared_ffw"] = model.experts.shared_intermediate_size or 0
    return sizes[axis]


def _places(num_heads: int, num_kv_heads: int, num_shards: int) -> tuple[HeadPlace | None, ...]:
    group = num_heads // num_kv_heads
    if num_kv_heads >= num_shards:
        places: list[HeadPlace | None] = [HeadPlace(head, head * group, group) for head in range(num_kv_heads)]
        return (*places, *[None] * (round_up(num_kv_heads, num_shards) - num_kv_heads))
    copies, left = divmod(num_shards, num_kv_heads)
    places = []
    for head in range(num_kv_heads):
        num_copies = copies + (head < left)
        share = -(-group // num_copies)
        for start in range(0, num_copies * share, share):
            count = min(share, group - start)
            places.append(HeadPlace(head, head * group + start, count) if count > 0 else None)
    return tuple(places)
