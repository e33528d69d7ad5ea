"""Faults of what routers ask for."""

from tests.faults.fault import Fault

_LOAD, _RENDER = ("tests/http/routes/test_load.py",), ("tests/http/routes/test_render.py",)

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
        "a server sleeps when it does not",
        "http/routes/routes_load.py",
        'context.engine.state == "released"',
        'context.engine.state != "released"',
        _LOAD,
    ),
    Fault(
        "a rendered request may be longer than the context",
        "http/routes/routes_render.py",
        "if most < (params.max_tokens or 1):",
        "if most < 0:",
        _RENDER,
    ),
    Fault(
        "a rendered request has the defaults of the engine, not of the server",
        "http/routes/routes_render.py",
        "params = room.fit(request)",
        "params = request.params",
        _RENDER,
    ),
    Fault(
        "routers see the load of one rank",
        "http/observability/router_metrics.py",
        "one(lambda stats: stats.total.num_running)",
        "one(lambda stats: stats.ranks[0].num_running)",
        ("tests/http/observability/test_metrics.py",),
    ),
)
