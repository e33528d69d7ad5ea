"""Faults of the server as an application of Ray Serve."""

from tests.faults.fault import Fault

_RAY, _TESTS = "palladio/ray/", "tests/palladio/ray/"
ARGUMENTS, SLICE, SCALING = (
    (_TESTS + "test_ray_arguments.py",),
    (_TESTS + "test_tpu_slice.py",),
    (_TESTS + "test_scaling.py",),
)
SERVED = (_TESTS + "test_served_app.py",)

RAY_FAULTS = (
    Fault(
        "a flag of what Serve does is taken under another name",
        _RAY + "arguments.py",
        "if given.get(name) != defaults.get(name):",
        "if given.get(name) != given.get(name):",
        ARGUMENTS,
    ),
    Fault(
        "several replicas share a folder",
        _RAY + "arguments.py",
        "if self.options.most_replicas > 1 and",
        "if self.options.num_replicas > 1 and",
        ARGUMENTS,
    ),
    Fault(
        "replicas with a database may not share a folder",
        _RAY + "arguments.py",
        "is not None and http.database_url is None:",
        "is not None:",
        ARGUMENTS,
    ),
    Fault(
        "Serve ends a replica before its requests have had their time",
        _RAY + "settings.py",
        "arguments.drain_timeout + _STOP_MARGIN",
        "_STOP_MARGIN",
        ARGUMENTS,
    ),
    Fault(
        "replicas report less often than their figures are averaged over",
        _RAY + "settings.py",
        "min(_REPORT_INTERVAL, options.look_back_period_s / 3)",
        "_REPORT_INTERVAL",
        ARGUMENTS,
    ),
    Fault(
        "the slices of v5p are named by chips",
        _RAY + "tpu_slice.py",
        '"v5p": 2',
        '"v5p": 1',
        SLICE,
    ),
    Fault(
        "every host of a slice asks for its head",
        _RAY + "tpu_slice.py",
        '[{"CPU": 1.0, "TPU": self._chips} for',
        "[self.first_bundle(1.0) for",
        SLICE,
    ),
    Fault(
        "a queue of long requests counts as little as one of short ones",
        _RAY + "scaling.py",
        "return max(by_slots, by_cache)",
        "return by_slots",
        SCALING,
    ),
    Fault(
        "replicas that have just started are not counted",
        _RAY + "scaling.py",
        "max(len(loads), context.current_num_replicas)",
        "len(loads)",
        SCALING,
    ),
    Fault(
        "requests meet a 503 while their replica's engine restarts",
        _RAY + "served_app.py",
        'elif scope["method"] == "POST":',
        'elif scope["method"] == "PUT":',
        SERVED,
    ),
    Fault(
        "a file goes to one of several replicas",
        _RAY + "served_app.py",
        "if not self._has_files and",
        "if self._has_files and",
        SERVED,
    ),
    Fault(
        "an answer has its id twice",
        _RAY + "served_app.py",
        'header[0].lower() != b"x-request-id"',
        'header[0].lower() != b"x-request"',
        SERVED,
    ),
    Fault(
        "a dead engine is healthy",
        _RAY + "served_app.py",
        'if self._engine.state == "dead":',
        'if self._engine.state == "starting":',
        SERVED,
    ),
    Fault(
        "requests are told of a dead engine before the replica ends",
        "runtime/front/async_engine.py",
        """        self._dead.set()
        self._streams.fail_all(EngineDeadError(failure.message))
""",
        """        self._streams.fail_all(EngineDeadError(failure.message))
        self._dead.set()
""",
        ("tests/runtime/process/test_restarts.py",),
    ),
)
