"""Trials cover what kernels take: each parameter of an op, and each field of the values that it gets."""

import dataclasses
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio import pallas_kernels
from palladio.pallas_kernels.block_matmul import block_matmul
from palladio.pallas_kernels.expert_routing import Groups, Routing, route_experts, sum_experts
from palladio.pallas_kernels.grouped_matmul import Scales, grouped_matmul
from palladio.pallas_kernels.head_rotation import rotate_heads
from palladio.pallas_kernels.kv_cache_update import CacheWrites, kv_cache_update
from palladio.pallas_kernels.latent_attention import latent_attention, latent_cache_update
from palladio.pallas_kernels.latent_attention.layout import LatentOptions
from palladio.pallas_kernels.ragged_paged_attention import (
    AttentionMetadata,
    AttentionShape,
    ScaledPages,
    ragged_paged_attention,
)
from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionOptions
from palladio.pallas_kernels.segment_attention import segment_attention
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.trials import (
    attention_cases,
    expert_cases,
    kernels_in_use,
    latent_cases,
    product_cases,
    segment_cases,
    write_cases,
)
from palladio.runtime.core.trials.attention_cases import AttentionLayer
from palladio.runtime.core.trials.case import PORTABLE, Case
from palladio.runtime.core.trials.expert_cases import ExpertSum, Rotation, Router
from palladio.runtime.core.trials.latent_cases import LatentLayer
from palladio.runtime.core.trials.product_cases import BlockProduct, GroupedProduct
from palladio.runtime.core.trials.segment_cases import SegmentLayer
from palladio.runtime.core.trials.write_cases import CacheWrite

CHOSEN = {"backend", "target"}  # by the trial itself
V6E = Target("tpu", "v6e")
PAGE = 32
SIZES = AttentionShape(4, 2, 64, PAGE, 8, 0, jnp.dtype("float32"), jnp.dtype("float32"))
SMALL = AttentionLayer(SIZES, 0.1, None, None, has_sinks=False, has_cache_scales=False)
PAGES = jax.ShapeDtypeStruct((2, 2, 16, 128), jnp.float32)
SCALED = ScaledPages(jax.ShapeDtypeStruct((2, 2, 16, 128), jnp.int8), jax.ShapeDtypeStruct((2, 1, 128), jnp.float32))
ROUTING = Routing(2, 4, renormalize=True, scale=2.0, score="sigmoid", has_bias=True, groups=Groups(2, 1, best_two=True))


def attention() -> Iterator[Case]:
    int8 = dataclasses.replace(SIZES, kv_dtype=jnp.dtype("int8"))
    more = AttentionLayer(int8, 0.1, 20, 5.0, has_sinks=True, has_cache_scales=True)
    for layer in (SMALL, more):
        yield from layer.cases("tpu", V6E)


def latents() -> Iterator[Case]:
    layer = LatentLayer(4, 128, 64, 16, 8, jnp.float32, jnp.float32, 0.1)
    yield from layer.cases("tpu", V6E)


def writes() -> Iterator[Case]:
    rows = ((2, 64), (2, 64))
    yield from CacheWrite(PAGES, rows, jnp.float32, has_cache_scales=True).cases()
    yield from CacheWrite(SCALED, rows, jnp.float32).cases()


def latent_writes() -> Iterator[Case]:
    pages = jax.ShapeDtypeStruct((2, 16, 256), jnp.float32)
    yield from CacheWrite(pages, ((128,), (64,)), jnp.float32).cases()


def products() -> Iterator[Case]:
    yield from GroupedProduct(4, 256, 128, jnp.float32, jnp.int4, 128, has_zeros=True, is_float4=True).cases()
    yield from GroupedProduct(1, 256, 128, jnp.float32, jnp.float32).cases()


def segments() -> Iterator[Case]:
    yield from SegmentLayer(4, 2, 64, jnp.float32, 0.1, None, has_bias=True).cases()
    yield from SegmentLayer(4, 4, 80, jnp.float32, 0.1, 20).cases()


def routes() -> Iterator[Case]:
    yield Router(ROUTING, 8, 16, jnp.float32).case(8)


# Op → the module whose name for it trials call, and cases with every feature.
OPS: dict[str, tuple[Callable[..., Any], Any, Callable[[], Iterable[Case]]]] = {
    "ragged_paged_attention": (ragged_paged_attention, attention_cases, attention),
    "latent_attention": (latent_attention, latent_cases, latents),
    "segment_attention": (segment_attention, segment_cases, segments),
    "kv_cache_update": (kv_cache_update, write_cases, writes),
    "latent_cache_update": (latent_cache_update, write_cases, latent_writes),
    "grouped_matmul": (grouped_matmul, product_cases, products),
    "block_matmul": (block_matmul, product_cases, lambda: BlockProduct(256, 128, jnp.float32, 128).cases()),
    "route_experts": (route_experts, expert_cases, routes),
    "sum_experts": (sum_experts, expert_cases, lambda: [ExpertSum(2, 16, jnp.float32, jnp.float32).case(8)]),
    "rotate_heads": (rotate_heads, expert_cases, lambda: [Rotation(2, 2, 128, jnp.float32).case(8)]),
}


def calls_of(op: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each call that trials make, by name."""
    function, module, cases = OPS[op]
    signature, found = inspect.signature(function), []

    def record(*args: Any, **kwargs: Any) -> Any:
        found.append(dict(signature.bind(*args, **kwargs).arguments))
        return jnp.zeros(())

    monkeypatch.setattr(module, op, record)
    for case in cases():
        jax.eval_shape(lambda *args, case=case: case.call("tpu", V6E, *args), *case.abstract())
    return found


@pytest.mark.parametrize("op", OPS)
def test_each_parameter_has_a_case(op, monkeypatch):
    calls = calls_of(op, monkeypatch)
    for name, parameter in inspect.signature(OPS[op][0]).parameters.items():
        if name in CHOSEN:
            continue
        values = [call.get(name, parameter.default) for call in calls]
        used = [value for value in values if value is not parameter.default and value is not None]
        assert used, f"no trial of {op} gives `{name}`: add a case to runtime/core/trials"


@dataclasses.dataclass(frozen=True)
class Seen:
    """What trials give of one kind of value, on the host."""

    values: list[Any]

    def differ(self, name: str) -> bool:
        """Whether a field takes several values, or is an array in some and None in others."""
        return len({repr(getattr(value, name)) for value in self.values}) > 1


def given(cases: Iterator[Case], kind: type) -> Seen:
    arguments = [argument for case in cases for inputs in case.inputs for argument in inputs.make()]
    return Seen([argument for argument in arguments if isinstance(argument, kind)])


def test_steps_of_attention_vary_in_every_field(monkeypatch):
    seen = given(attention(), AttentionMetadata)
    planned = [call["metadata"] for call in calls_of("ragged_paged_attention", monkeypatch)]
    for field in dataclasses.fields(AttentionMetadata):
        values = Seen(planned) if field.name == "chunks" else seen
        assert values.differ(field.name), f"all trials of attention have the same `{field.name}`"
    for kind in ("decode", "prefill"):
        steps = [one for one in seen.values if one.kind == kind]
        assert any(one.num_requests == 0 for one in steps), kind  # empty rows alone
        assert any(0 < one.num_requests < len(one.kv_len) for one in steps), kind  # and after others
        assert {1, PAGE - 1, PAGE, PAGE + 1} <= {int(size) for one in steps for size in one.kv_len}, kind
    mixed = [one for one in seen.values if one.kind == "prefill" and 0 < one.num_decodes < one.num_requests]
    assert mixed, "no step has chunks and single tokens"


def test_options_of_attention_are_those_that_the_op_takes():
    """A new option reaches kernels by this value alone."""
    parameters = set(inspect.signature(ragged_paged_attention).parameters)
    own = {"row_scales"}  # those of a cache of int8, which has cases
    assert {field.name for field in dataclasses.fields(AttentionOptions)} - own <= parameters
    assert any(isinstance(leaf, ScaledPages) for case in attention() for leaf in case.abstract())
    assert {field.name for field in dataclasses.fields(LatentOptions)} == {"size", "rotated", "scale", "target"}


def test_cache_writes_vary_in_every_field(monkeypatch):
    seen = given(writes(), CacheWrites)
    planned = Seen([call["writes"] for call in calls_of("kv_cache_update", monkeypatch)])
    for field in dataclasses.fields(CacheWrites):
        if field.name == "runs":
            continue  # planned where a backend wants them
        assert seen.differ(field.name), f"all trials of writes have the same `{field.name}`"
    assert planned.values
    page_size = 16
    rows = {int(row) for one in seen.values for row in np.asarray(one.page_offsets)}
    assert {0, page_size - 1} <= rows


def test_scales_and_routers_have_every_field():
    scales = Scales(jnp.zeros(()), 1)
    assert {field.name for field in dataclasses.fields(scales)} == {"values", "group", "zeros", "is_float4"}
    assert {field.name for field in dataclasses.fields(GroupedProduct)} >= {"group", "has_zeros", "is_float4"}
    default = Routing(2, 4, renormalize=False)
    names = [field.name for field in dataclasses.fields(Routing)]
    same = [name for name in names if getattr(default, name) == getattr(ROUTING, name)]
    assert same == ["num_chosen", "num_here"], "the router above lacks a feature"


@pytest.mark.parametrize("op", OPS)
def test_shapes_are_those_of_the_inputs(op):
    for case in OPS[op][2]():
        for inputs in case.inputs:
            made = tuple(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs.make()))
            assert jax.tree.leaves(made) == jax.tree.leaves(case.abstract()), (case.name, inputs.name)


def test_every_op_with_a_kernel_is_tried():
    """But those that have kernels for CPUs alone."""
    tried = {value for name, value in vars(kernels_in_use).items() if name.isupper() and isinstance(value, str)}
    for module in pkgutil.iter_modules(pallas_kernels.__path__):
        if not module.ispkg:
            continue
        try:
            api = __import__(f"palladio.pallas_kernels.{module.name}.api", fromlist=["api"])
        except ModuleNotFoundError:
            continue
        names = set(vars(api).get("BACKENDS", {})) - {*PORTABLE, "cpu_native"}
        assert not names or module.name in tried, f"{module.name} has {names}, which no trial covers"
