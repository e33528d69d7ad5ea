"""Faults of what routers ask for."""

from tests.faults.fault import Fault

_LOAD, _RENDER = ("tests/http/routes/test_load.py",), ("tests/http/routes/test_render.py",)
_EVENTS = ("tests/runtime/scheduling/cache/test_tree_events.py",)
_VLLM = ("tests/http/routes/test_vllm_control.py",)

ROUTER_FAULTS = (
    Fault(
        "requests whose grammar is compiled wait twice in the load's queues",
        "http/routes/routes_load.py",
        "waiting = part.num_waiting - grammar",
        "waiting = part.num_waiting",
        _LOAD,
    ),
    Fault(
        "sections that nobody asked for are in the load",
        "http/routes/routes_load.py",
        'if "memory" in asked:',
        'if "memory" in _SECTIONS:',
        _LOAD,
    ),
    Fault(
        "the load of who names no section is a part of it",
        "http/routes/routes_load.py",
        'include: str = "all"',
        'include: str = "core"',
        _LOAD,
    ),
    Fault(
        "a server sleeps when it does not",
        "http/routes/routes_load.py",
        'engine.state == "released" or',
        'engine.state != "released" or',
        _LOAD,
    ),
    Fault(
        "a rendered request may be longer than the context",
        "http/generation/rendered.py",
        "if most < (params.max_tokens or 1):",
        "if most < 0:",
        _RENDER,
    ),
    Fault(
        "a rendered request has the defaults of the engine, not of the server",
        "http/generation/rendered.py",
        "params = room.fit(request)",
        "params = request.params",
        _RENDER,
    ),
    Fault(
        "a refused sleep leaves the engine paused",
        "http/routes/routes_vllm_control.py",
        "if not was_paused:",
        "if was_paused:",
        _VLLM,
    ),
    Fault(
        "generation goes on while the cache is still released",
        "http/routes/routes_vllm_control.py",
        "if not model.released:",
        "if model.released is not None:",
        _VLLM,
    ),
    Fault(
        "who aborts one request aborts all",
        "http/routes/routes_vllm_control.py",
        "context.running.engine_ids(caller, body.request_ids or None)",
        "context.running.engine_ids(caller, None)",
        _VLLM,
    ),
    Fault(
        "conversations of a batch have one id",
        "http/routes/routes_chat_batch.py",
        "messages=body.messages[position], rid=rid)",
        "messages=body.messages[position], rid=name)",
        ("tests/http/routes/test_chat_batch.py",),
    ),
    Fault(
        "bits of an embedding say which numbers are positive",
        "http/generation/vector_forms.py",
        "np.packbits(vectors >= 0, axis=-1).tolist()",
        "np.packbits(vectors < 0, axis=-1).tolist()",
        ("tests/http/routes/test_pooling.py",),
    ),
    Fault(
        "routers see the load of one rank",
        "http/observability/metrics/router_metrics.py",
        "one(lambda stats: stats.total.num_running)",
        "one(lambda stats: stats.ranks[0].num_running)",
        ("tests/http/observability/metrics/test_metrics.py",),
    ),
    Fault(
        "a scheduler looks for adapters and finds none told",
        "http/observability/metrics/router_metrics.py",
        '{"max_lora": "0", ',
        '{"max_loras": "0", ',
        ("tests/http/observability/metrics/test_scheduler_rules.py",),
    ),
    Fault(
        "a repeated id is served beside the first request",
        "http/security/callers.py",
        "if key in self._requests:",
        "if key in self._requests and not name:",
        ("tests/http/routes/test_router_retries.py",),
    ),
    Fault(
        "routers are not told of the pages that are evicted",
        "runtime/scheduling/cache/radix_cache.py",
        "self._events.remove(leaf, kept)",
        "self._events.remove(leaf, len(leaf.keys))",
        _EVENTS,
    ),
    Fault(
        "routers believe in a cache that was flushed",
        "runtime/scheduling/cache/radix_cache.py",
        "self._events is not None and not self._filled_roots",
        "self._events is not None and self._filled_roots",
        _EVENTS,
    ),
    Fault(
        "cached pages of salted prompts are told as those of others",
        "runtime/scheduling/cache/tree_events.py",
        "if begins and before != _NO_NAMESPACE:",
        "if not begins and before != _NO_NAMESPACE:",
        _EVENTS,
    ),
    Fault(
        "routers hear of exchanged weights at the next step only",
        "runtime/scheduling/cache/tree_events.py",
        """            self._pending = [AllBlocksCleared()]
            self.send()""",
        """            self._pending = [AllBlocksCleared()]""",
        ("tests/runtime/core/weights/test_weight_updates.py",),
    ),
    Fault(
        "batches that were dropped cannot be replayed",
        "runtime/process/event_publisher.py",
        "if number >= first]",
        "if number > first]",
        ("tests/runtime/process/test_event_publisher.py",),
    ),
    Fault(
        "a slow subscriber's lost batches are lost to all",
        "runtime/process/event_publisher.py",
        "self._events.setsockopt(zmq.XPUB_NODROP, 0)",
        "self._events.setsockopt(zmq.XPUB_NODROP, 0)\n            return",
        ("tests/runtime/process/test_event_publisher.py",),
    ),
)
