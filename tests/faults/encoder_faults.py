"""Faults of encoders: their attention, embeddings, pooling and steps."""

from tests.faults.fault import Fault

_OP = ("tests/pallas_kernels/test_segment_attention.py",)
_MODEL = ("tests/model/test_encoder.py",)
_ENGINE = ("tests/runtime/core/test_encoder_engine.py",)

ENCODER_FAULTS: tuple[Fault, ...] = (
    Fault(
        "a key of the neighbour behind is seen",
        "pallas_kernels/segment_attention/segments.py",
        "return cls(jnp.where(is_real, bounds[number], 0), jnp.where(is_real, bounds[number + 1], 0))",
        "return cls(jnp.where(is_real, bounds[number], 0), jnp.where(is_real, bounds[number + 1] + 1, 0))",
        _OP,
    ),
    Fault(
        "a window is one token short behind the query",
        "pallas_kernels/segment_attention/segments.py",
        "jnp.minimum(self.stops, token + window + 1)",
        "jnp.minimum(self.stops, token + window)",
        _OP,
    ),
    Fault(
        "what is not finite reaches the neighbours of its block",
        "pallas_kernels/segment_attention/api.py",
        "values = jnp.where(spoilt[:, None, None], 0, v)",
        "values = v",
        _ENGINE,
    ),
    Fault(
        "types of tokens are forgotten",
        "runtime/execution/batch/batch_builder.py",
        "    if not types:\n        return token_ids",
        "    if not types or start == 0:\n        return token_ids",
        _ENGINE,
    ),
    Fault(
        "RoBERTa's positions begin at 0",
        "model/families/roberta.py",
        "first_position=padding + 1",
        "first_position=0",
        _MODEL,
    ),
    Fault(
        "distances before and after the query share their buckets",
        "model/layers/segment_attention.py",
        "np.where(distance > 0, side, 0)",
        "np.where(distance > 0, 0, 0)",
        _MODEL,
    ),
    Fault(
        "a window counts both sides together",
        "model/families/modernbert.py",
        'window = hf.count("local_attention") // 2',
        'window = hf.count("local_attention")',
        _MODEL,
    ),
    Fault(
        "the first token stands for an encoder's text where no file says so",
        "runtime/core/plan/engine_inputs.py",
        'else PoolingSpec(("mean",))',
        'else PoolingSpec(("cls",))',
        _ENGINE,
    ),
    Fault(
        "a mean counts the token behind a text, or the padding behind a step",
        "model/pooling/pool.py",
        "(token < self.ends[:, None])",
        "(token <= self.ends[:, None])",
        _ENGINE,
    ),
    Fault(
        "short texts wait behind a long one that does not fit",
        "runtime/scheduling/policy/kv_budget.py",
        "request = self._waiting.peek() if self._limits.fills_steps else None",
        "request = None",
        _ENGINE,
    ),
)
