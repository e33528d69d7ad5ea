"""Which programs an engine can start with, and what it may run while the others are still missing."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palladio.model.base.sharding import make_abstract_mesh
from palladio.model.cache.kv_cache import CacheLayout
from palladio.model.config.config import ModelConfig
from palladio.model.functional import flatten_model
from palladio.model.loading.load_model import abstract_model
from palladio.model.pooling.pooling_spec import PoolingSpec
from palladio.runtime.core.plan.platform_defaults import PlatformDefaults
from palladio.runtime.execution.compiled.program_set import StepPrograms
from palladio.runtime.execution.programs.program import ProgramKey, StaticModel
from palladio.runtime.execution.programs.step_programs import Sample
from palladio.runtime.execution.state.device_state import DeviceShape
from palladio.runtime.execution.state.proposer import NgramProposer
from palladio.runtime.scheduling.batch.buckets import Buckets
from tests.properties import examples
from tests.runtime.tiny_engine import TINY_CONFIG

BUCKETS = Buckets.create(max_running=64, max_step_tokens=1024, growth=4)
MODEL = ModelConfig.from_hf(TINY_CONFIG | {"num_hidden_layers": 1})


class Built:
    """In place of a ProgramCache: what is in `programs` counts as built."""

    def __init__(self):
        self.programs = {}

    def add(self, key, jitted, *args):
        pass

    def __contains__(self, key):
        return key in self.programs


@pytest.fixture(scope="module")
def declare():
    mesh = make_abstract_mesh(1)
    structure, weights = flatten_model(abstract_model(MODEL, dtype=jnp.float32, mesh=mesh))
    static = StaticModel(structure, jax.ShapeDtypeStruct((MODEL.hidden_size,), jnp.float32), MODEL.vocab_size)

    def of(buckets=BUCKETS, num_steps=1, pooling=None, *, checks_cache=False, proposer=None, **more):
        shape = DeviceShape(
            num_slots=buckets.max_requests + 1,
            num_columns=16,
            vocab_size=MODEL.vocab_size,
            num_valid_tokens=MODEL.vocab_size,
            num_decode_steps=num_steps,
            checks_cache=checks_cache,
            dtype=jnp.float32,
            cache=CacheLayout.of(MODEL, page_size=16, dtype=jnp.float32),
            mesh=mesh,
            pooling=pooling,
            proposer=proposer,
            **more,
        )
        return StepPrograms(static, shape.abstract(weights, 4), shape, buckets, Built())

    return of


def opened_by(programs, keys):
    """The buckets that these programs open."""
    programs.built.programs = dict.fromkeys(keys)
    return programs.open_buckets()


def test_names():
    assert str(ProgramKey("forward", 8, 256)) == "forward[bs=8,tok=256]"
    assert str(ProgramKey("sample", 8, tier="full")) == "sample[bs=8,full]"
    assert str(ProgramKey("tables")) == "tables"


@pytest.mark.parametrize("num_steps", [1, 4])
def test_the_first_programs_are_few_and_can_serve(declare, num_steps):
    programs = declare(num_steps=num_steps)
    first = programs.first_keys(splits_prompts=True)
    assert len(first) == len(set(first)) == 6
    opened = opened_by(programs, first)
    assert (opened.max_requests, opened.max_prefill_tokens) == (8, 256)
    assert opened.max_prefill_requests >= opened.max_requests


def test_prompts_that_are_never_split_need_the_largest_step_at_once(declare):
    programs = declare()
    opened = opened_by(programs, programs.first_keys(splits_prompts=False))
    assert opened.max_prefill_tokens == BUCKETS.max_prefill_tokens


def test_small_decode_steps_have_programs_that_sample_and_that_no_step_needs(declare):
    programs = declare(joined_rows=2)
    joined = {key for key in programs.by_key if key.kind == "decode"}
    assert joined == {ProgramKey("decode", size, 0, tier) for size in (1, 2) for tier in ("greedy", "random")}
    assert not joined & set(programs.first_keys(splits_prompts=True))
    assert joined <= set(programs.background_keys(splits_prompts=True)[-len(programs.by_key) // 2 :])
    assert opened_by(programs, set(programs.by_key) - joined) == BUCKETS
    drafting = declare(joined_rows=2, proposer=NgramProposer(3, 1, 1))
    assert all(key.kind != "decode" for key in drafting.by_key)  # `forward` keeps tokens for drafts


def test_one_shape_is_all_or_nothing(declare):
    buckets = Buckets.create_one(max_running=16, max_step_tokens=64)
    programs = declare(buckets)
    assert opened_by(programs, programs.first_keys(splits_prompts=True)) == buckets


def test_embeddings_need_a_prefill_step_and_its_pooling(declare):
    programs = declare(pooling=PoolingSpec(), checks_cache=True)
    first = programs.first_keys(splits_prompts=True)
    sizes = {"num_requests": 64, "num_tokens": 256}
    step = {ProgramKey("forward", **sizes), ProgramKey("pool", **sizes)}
    assert set(first) == {ProgramKey("tables"), ProgramKey("compare"), *step}
    assert opened_by(programs, first) == Buckets((), (BUCKETS.pick_prefill(256, 64),), BUCKETS.sample)
    assert opened_by(programs, programs.by_key) == Buckets((), BUCKETS.prefill, BUCKETS.sample)
    last = {"num_requests": 64, "num_tokens": 1024}
    assert set(programs.largest_keys()) == {ProgramKey("forward", **last), ProgramKey("pool", **last)}


@examples(25)
@given(
    max_running=st.integers(1, 300),
    max_step_tokens=st.integers(1, 9000),
    growth=st.sampled_from([2, 4]),
    num_steps=st.sampled_from([1, 3]),
    splits_prompts=st.booleans(),
)
def test_from_the_first_programs_on_buckets_only_grow_and_always_fit(
    declare, max_running, max_step_tokens, growth, num_steps, splits_prompts
):
    buckets = Buckets.create(max_running=max_running, max_step_tokens=max(max_step_tokens, max_running), growth=growth)
    programs = declare(buckets, num_steps)
    first = programs.first_keys(splits_prompts=splits_prompts)
    order = programs.background_keys(splits_prompts=splits_prompts)
    assert sorted(map(str, [*first, *order])) == sorted(map(str, programs.by_key))
    built = set(first)
    before = opened_by(programs, built)
    for key in order:
        built.add(key)
        opened = opened_by(programs, built)
        assert opened.max_requests >= before.max_requests >= 1
        assert opened.max_prefill_tokens >= before.max_prefill_tokens
        for count in {1, opened.max_requests // 2 + 1, opened.max_requests}:  # every step that is planned has a bucket
            assert opened.pick_decode(count) == opened.pick_sample(count)
            opened.pick_prefill(opened.max_prefill_tokens, min(count, opened.max_prefill_requests))
        before = opened
    assert before == buckets


def test_more_requests_come_before_less_padding_and_cheaper_sampling(declare):
    order = declare().background_keys(splits_prompts=True)
    larger, smaller, cheap = map(
        order.index,
        (ProgramKey("sample", 64, tier="full"), ProgramKey("forward", 1), ProgramKey("sample", 8, tier="greedy")),
    )
    assert larger < smaller < cheap


def test_the_largest_programs(declare):
    largest = {ProgramKey("forward", 64, 1024), ProgramKey("score", 0, 1024), ProgramKey("sample", 64, tier="full")}
    assert set(declare(checks_cache=True).largest_keys()) == largest | {ProgramKey("forward", 64)}
    assert set(declare(num_steps=3).largest_keys()) == largest | {ProgramKey("decode", 64, tier="full")}


def test_drafts_wait_for_their_programs(declare):
    """Until they are built, steps decode without."""
    buckets = BUCKETS.with_drafts(3)
    sizes = {bucket.num_requests: bucket.forward.num_tokens for bucket in buckets.verify}
    assert (tuple(sizes), sizes[1], sizes[8], sizes[64]) == (BUCKETS.sample, 16, 64, 256)
    programs = declare(buckets, proposer=NgramProposer(3, 1, 4))
    first = programs.first_keys(splits_prompts=True)
    assert opened_by(programs, first).verify == ()
    assert opened_by(programs, programs.by_key) == buckets
    last = {ProgramKey("draft", 64), ProgramKey("verify", 64, tier="full")}
    assert last <= set(programs.largest_keys())
    smallest = buckets.verify[0]
    needed = {ProgramKey("draft", smallest.num_requests), ProgramKey("verify", smallest.num_requests, tier="full")}
    chunks = {ProgramKey("forward", 16, 16), ProgramKey("score", 0, 16)}  # all of its prefill step's
    assert opened_by(programs, {*first, *needed, *chunks}).verify == (smallest,)
    assert not {key for key in declare().by_key if key.kind in ("draft", "verify")}


@pytest.mark.parametrize(
    ("built", "wanted", "taken"),
    [
        (["full"], "greedy", "full"),
        (["random", "full"], "greedy", "random"),
        (["greedy", "full"], "random", "full"),
        (["greedy", "random"], "full", "full"),  # it is built when it is called
    ],
)
def test_a_tier_is_replaced_by_one_that_does_more_never_by_one_that_does_less(declare, built, wanted, taken):
    programs = declare()
    programs.built.programs = dict.fromkeys(Sample.key_of(8, tier=tier) for tier in built)
    assert programs.tier(Sample, 8, wanted) == taken


def test_only_a_gpu_has_programs_for_steps_without_filters(declare):
    plain = {ProgramKey("sample", 8, tier="plain"), ProgramKey("decode", 8, tier="plain")}
    assert plain <= declare(num_steps=3, has_plain_tier=True).by_key.keys()
    assert not plain & declare(num_steps=3).by_key.keys()
    assert [PlatformDefaults.of(name).has_plain_tier for name in ("cpu", "tpu", "gpu")] == [False, True, True]
