"""What a process of ours remembers, with who prepares it, why it may be there, and the test that uses it first."""

from typing import NamedTuple


class State(NamedTuple):
    """Attributes:
    prepared: by whom. why: it may be there. test: the id of one that uses it first in a process of its own.
    """

    prepared: str
    why: str
    test: str


def first(group: str) -> str:
    return f"tests/test_shared_state.py::test_each_is_used_first_in_a_process_of_its_own[{group}]"


_PURE = "its result follows from its key alone"
_MADE = "the call that needs it"
_SIGNALS = "tests/palladio/processes/test_early_signals.py::test_the_server_ends_with_0_whenever_it_is_told"
_CHECKER = "tests/runtime/grammar/test_checker.py::test_small_grammars_that_take_long"
_ENGINE = "tests/runtime/process/test_engine_process.py::test_serves"
_CHILD = "tests/runtime/process/test_engine_process.py::test_a_crash_of_native_code_is_not_taken_for_want_of_memory"
_FORMATS = "tests/test_shared_state.py::test_a_stored_format_is_the_first_thing_that_a_process_loads[{}]"
_OWN_PROCESS = "the process has this one task"
_CACHE = "runtime/execution/compiled/persistent_cache.py"
_DEVICE = "runtime/devices/device_choice.py"
_LIBRARY = "pallas_kernels/cpu_native/library.py"
_READER = "tests/http/response_templates/test_readers.py::test_a_pattern_without_end_is_ended"
_READER_PROCESS = "http/response_templates/reader_process.py"
_CHECK_PROCESS = "runtime/grammar/check_process.py"
_MAIN = "runtime/process/engine_main.py"
_LISTENERS = "runtime/execution/compiled/compile_monitor.py:CompileMonitor.__init__ jax.monitoring.register_event"

STATES: dict[str, State] = {
    "http/pages/page_files.py:page_files": State(_MADE, "files of the package, which do not change", first("http")),
    "http/security/browsers.py:_full_name": State(_MADE, "asking takes as long as DNS does", first("http")),
    "http/wire/body.py:_schema_of": State(_MADE, _PURE, first("http")),
    "http/wire/protocol.py:_integer_fields": State(_MADE, _PURE, first("http")),
    "http/wire/protocol.py:_objects_of": State(_MADE, _PURE, first("http")),
    "http/wire/protocol.py:_fields_elsewhere.below": State(
        "http.app, which imports the modules of all routes",
        "routes lie above the room that refuses unknown fields; it is asked anew for each request",
        first("http"),
    ),
    "http/reasoning/harmony.py:_HEADER_END": State("its module", "it never changes", first("text")),
    "http/reasoning/harmony.py:_BODY_END": State("its module", "it never changes", first("text")),
    "http/reasoning/muse.py:_BODY_END": State("its module", "it never changes", first("text")),
    "runtime/text/templates/chat_renderer.py:compile_template": State(_MADE, _PURE, first("text")),
    "runtime/text/tokenizers/stop_strings.py:Marks.of": State(_MADE, _PURE, first("text")),
    "runtime/text/tokenizers/stop_regex.py:read_pattern": State(_MADE, _PURE, first("text")),
    "runtime/text/tokenizers/stop_strings.py:StopStrings.of": State(_MADE, _PURE, first("text")),
    "runtime/text/templates/template_meter.py:current_meter": State(
        "each rendering, for its own context", "jinja2 hands filters no argument of ours", first("text")
    ),
    "pallas_kernels/narrow_matmul/config.py:_table": State(_MADE, "a file of the package by its name", first("device")),
    "pallas_kernels/ragged_paged_attention/tpu/tpu_config.py:_table": State(
        _MADE, "a file of the package by its name", first("device")
    ),
    "pallas_kernels/narrow_matmul/tuning.py:_wide": State(_MADE, "jax keeps it by shapes and dtypes", first("device")),
    "model/loading/load_model.py:_mover": State(_MADE, "one compilation for all layers", first("device")),
    "model/loading/read_back.py:_reader": State(_MADE, "one compilation for all arrays of a shape", first("device")),
    "model/loading/orbax_weights.py:_placer": State(
        _MADE, "one compilation for all layers", _FORMATS.format("converted to int4")
    ),
    "model/loading/orbax_weights.py:_unpacker": State(
        _MADE, "one compilation for all layers", _FORMATS.format("converted to int4")
    ),
    "model/decoder.py:_call_layer": State(
        _MADE, "jax keeps it by structure, shapes and dtypes", _FORMATS.format("AWQ")
    ),
    "model/encoder.py:_call_layer": State(
        _MADE, "jax keeps it by structure, shapes and dtypes", _FORMATS.format("AWQ")
    ),
    f"{_LIBRARY}:_loaded": State(
        "kernel_choice, by the flags", "XLA knows a call's name once a process", first("native")
    ),
    f"{_LIBRARY}:_register ctypes.CDLL": State("kernel_choice", "as _loaded", first("native")),
    f"{_LIBRARY}:_register jax.ffi.register_ffi_target": State("kernel_choice", "as _loaded", first("native")),
    f"{_DEVICE}:choose_device jax.config.update": State(
        "each engine, which takes it back",
        "jax knows no other way to say which devices it is to look for",
        first("device"),
    ),
    f"{_CACHE}:use_persistent_cache jax.config.update": State(
        "each engine, before it compiles", "jax's cache of programs is one a process", first("device")
    ),
    f"{_CACHE}:use_persistent_cache compilation_cache.reset_cache": State("each engine", "as above", first("device")),
    f"{_LISTENERS}_listener": State("each engine", "jax tells of compilations in no other way", first("device")),
    f"{_LISTENERS}_duration_secs_listener": State("each engine", "as above", first("device")),
    "runtime/telemetry/process_memory.py:give_back ctypes.CDLL": State(
        "the C library", "it is the process's own", _FORMATS.format("AWQ")
    ),
    "runtime/telemetry/process_memory.py:leave_zeros ctypes.CDLL": State(
        "the C library", "it is the process's own", _FORMATS.format("AWQ")
    ),
    "runtime/text/tokenizers/tokenizer.py:Tokenizer.load addFilter": State(
        "each load, before transformers is imported",
        "transformers says that torch is missing; the same filter twice is one",
        "tests/palladio/processes/test_without_torch.py::test_transformers_does_not_see_torch_and_others_do",
    ),
    "runtime/text/tokenizers/stop_regex.py:StopPattern.__init__ warnings.catch_warnings": State(
        _MADE, "Python's parser of patterns warns in no other way; what was there comes back", first("text")
    ),
    "runtime/text/tokenizers/stop_regex.py:StopPattern.__init__ warnings.simplefilter": State(
        _MADE, "as above", first("text")
    ),
    "palladio/processes/without_torch.py:hide_torch_from_transformers sys.meta_path.insert": State(
        "the command line, before anything is imported",
        "transformers asks for torch while it is imported; the finder takes itself out",
        "tests/palladio/processes/test_without_torch.py::test_transformers_does_not_see_torch_and_others_do",
    ),
    "palladio/processes/hidden_modules.py:explain_hidden_modules sys.excepthook": State(
        "the main program, before its other imports",
        "what nobody handles is said in one line, and the process ends",
        "tests/palladio/processes/test_hidden_modules.py::test_a_file_that_hides_a_module_is_one_line",
    ),
    f"{_DEVICE}:_listening addFilter": State(
        "an engine's choice of a device",
        "the filter goes when the choice is made",
        first("device"),
    ),
    f"{_DEVICE}:_listening setLevel": State(
        "an engine's choice of a device",
        "the filter goes when the choice is made",
        first("device"),
    ),
    "palladio/processes/early_signals.py:_handle signal.signal": State("the command line", _OWN_PROCESS, _SIGNALS),
    "palladio/processes/child.py:_signals_wait signal.signal": State(
        "a command that starts a worker",
        "handlers come back once the child is known",
        "tests/palladio/processes/test_early_signals.py::test_ctrl_c_while_a_worker_imports_prints_no_traceback",
    ),
    "palladio/commands/offline/convert_worker.py:main setLevel": State(
        "its main program",
        _OWN_PROCESS,
        "tests/palladio/commands/offline/test_convert.py::test_a_converted_model_is_served_as_it_was",
    ),
    "palladio/ray/served_app.py:ServedApp.start gc.freeze": State(
        "each start in a replica",
        "what is loaded stays",
        "tests/integration/test_ray_serve.py::test_the_configuration_of_the_docs_runs",
    ),
    "http/listening.py:Stop.on_signals signal.signal": State("a server, for its life", "handlers come back", _SIGNALS),
    "http/server.py:_run_engine gc.freeze": State(
        "a server that is ready",
        "what is loaded stays",
        "tests/http/test_server.py::test_it_sleeps_while_nobody_asks_and_ctrl_c_drains_and_a_second_signal_ends_it_at_once",
    ),
    "runtime/telemetry/logs.py:configure_logging logging.basicConfig": State(
        "the command line; an offline engine with log_level",
        "Python's log is one a process",
        "tests/palladio/test_logs.py::test_our_lines_stay_as_they_are_beside_the_http_servers",
    ),
    "runtime/telemetry/logs.py:set_log_level setLevel": State(
        "the command line, and an operator's request",
        "Python's log is one a process",
        "tests/palladio/test_logs.py::test_our_lines_stay_as_they_are_beside_the_http_servers",
    ),
    "runtime/telemetry/process_settings.py:configure_process gc.freeze": State(
        "an operator's request",
        "what is loaded stays",
        "tests/http/routes/test_process.py::test_objects_of_a_process_are_frozen",
    ),
    "runtime/telemetry/watchdog.py:Watchdog._run faulthandler.dump_traceback_later": State(
        "an engine with a process of its own, alone",
        "it needs no lock of Python's",
        "tests/runtime/process/test_restarts.py::test_a_step_that_keeps_pythons_lock_is_ended_too",
    ),
    "runtime/front/offline/offline_engine.py:Engine._start atexit.register": State(
        "each offline engine, and shutdown takes it back",
        "jax ends first otherwise",
        "tests/runtime/front/offline/test_offline_engine.py::test_leaving_without_shutdown_while_busy",
    ),
    "runtime/front/offline/loop_thread.py:_process_with_engines": State(
        "the first offline engine of a process",
        "a process made by fork has to know that jax ran in the one that it was made of",
        "tests/runtime/front/offline/test_offline_engine.py::test_leaving_without_shutdown_while_busy",
    ),
    "runtime/multihost/bootstrap.py:_initialize jax.distributed.initialize": State(
        "an engine over several hosts, before jax looks for devices",
        "jax's meeting of hosts is one a process",
        "tests/integration/test_several_hosts.py::test_too_few_devices_are_named_on_both",
    ),
    "runtime/process/event_publisher.py:EventPublisher.__init__ Context.instance": State(
        "the first publisher", "ZeroMQ's threads, for all sockets of a process", first("text")
    ),
    f"{_MAIN}: signal.signal": State(
        "its main program",
        _OWN_PROCESS,
        "tests/runtime/process/test_engine_process.py::test_child_ignores_the_terminals_signals",
    ),
    f"{_MAIN}:main faulthandler.enable": State("its main program", _OWN_PROCESS, _CHILD),
    f"{_MAIN}:main.create gc.freeze": State("its main program", _OWN_PROCESS, _ENGINE),
    f"{_MAIN}:main.create gc.set_threshold": State("its main program", _OWN_PROCESS, _ENGINE),
    f"{_READER_PROCESS}:main signal.signal": State("its main program", _OWN_PROCESS, _READER),
    f"{_READER_PROCESS}:main signal.setitimer": State("its main program", _OWN_PROCESS, _READER),
    f"{_READER_PROCESS}:main os.nice": State("its main program", _OWN_PROCESS, _READER),
    f"{_READER_PROCESS}:_read_in_child resource.setrlimit": State("a fork for one sample", _OWN_PROCESS, _READER),
    f"{_READER_PROCESS}:_read_in_child signal.setitimer": State("a fork for one sample", _OWN_PROCESS, _READER),
    f"{_CHECK_PROCESS}:main signal.signal": State("its main program", _OWN_PROCESS, _CHECKER),
    f"{_CHECK_PROCESS}:main gc.freeze": State("its main program", _OWN_PROCESS, _CHECKER),
    f"{_CHECK_PROCESS}:main os.nice": State("its main program", _OWN_PROCESS, _CHECKER),
    f"{_CHECK_PROCESS}:_limit resource.setrlimit": State("a fork for one grammar", _OWN_PROCESS, _CHECKER),
    f"{_CHECK_PROCESS}:_limit signal.signal": State("a fork for one grammar", _OWN_PROCESS, _CHECKER),
    f"{_CHECK_PROCESS}:_limit signal.setitimer": State("a fork for one grammar", _OWN_PROCESS, _CHECKER),
}

BESIDE: frozenset[str] = frozenset(("model/config/architectures.py:ARCHITECTURES",))
"""Used first as well, though nothing changes it: its modules are imported by what asks for them."""
