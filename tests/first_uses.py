"""What a process of ours remembers, used as the first thing in a process:

    python -m tests.first_uses GROUP

Each use begins with state that nobody has touched, which is looked at, and ends with state that has been: so no row of
`tests/shared_state_table.py` can name a use that does not use it. Where something is kept by a key, two keys are tried
that must not be taken for one another. Prints what has been used, as JSON.
"""

import importlib
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Use = Callable[[], None]


def stop_patterns() -> None:
    from palladio.runtime.text.tokenizers.stop_regex import read_pattern

    assert [read_pattern(text).text for text in ("a+", "a*b", "a+")] == ["a+", "a*b", "a+"]


def templates() -> None:
    """Two that differ in a space alone."""
    from palladio.runtime.text.templates.chat_renderer import render_template

    texts = ("{{ x }}", "{{ x }} ", "{{ x }}")
    assert [render_template(text, [], continue_final_message=False, x=1) for text in texts] == ["1", "1 ", "1"]


def meter() -> None:
    """A template may need it while it is compiled, when nothing is rendered yet: for a filter of constants."""
    from palladio.runtime.text.templates.template_check import check_template
    from palladio.runtime.text.templates.template_meter import current_meter

    assert current_meter.get(None) is None
    check_template("{{ [1, 2] | tojson }}")


def marks() -> None:
    from palladio.runtime.text.tokenizers.stop_strings import Marks

    assert [Marks.of(*given).find("xab", 0) for given in (("ab",), ("b", "a"), ("ab",))] == [
        (1, "ab"),
        (1, "a"),
        (1, "ab"),
    ]


def stop_strings() -> None:
    from palladio.runtime.text.tokenizers.stop_strings import StopStrings

    first, second = StopStrings.of(("ab",)), StopStrings.of(("b", "ab"))
    assert (first.first, second.first) == ({"a"}, {"a", "b"})
    assert StopStrings.of(("ab",)) is first


def harmony_marks() -> None:
    from palladio.http.reasoning import harmony

    assert harmony._HEADER_END.find(f"x{harmony.MESSAGE}", 0) == (1, harmony.MESSAGE)
    assert harmony._BODY_END.find(f"x{harmony.CALL}", 0) == (1, harmony.CALL)


def muse_marks() -> None:
    from palladio.http.reasoning import muse

    assert muse._BODY_END.find(f"x{muse.NEXT}", 0) == (1, muse.NEXT)


def page_files() -> None:
    from palladio.http.pages.page_files import page_files

    assert {"chat.html", "dashboard.html", "icon.svg"} <= page_files().keys()


def full_name() -> None:
    from palladio.http.security.browsers import _full_name

    assert _full_name()


def schemas() -> None:
    from palladio.http.wire.body import _schema_of
    from palladio.http.wire.protocol_chat import ChatRequest
    from palladio.http.wire.protocol_completions import CompletionRequest

    assert "messages" in _schema_of(ChatRequest)["properties"]
    assert "prompt" in _schema_of(CompletionRequest)["properties"]


def integer_fields() -> None:
    from palladio.http.wire.protocol import _integer_fields
    from palladio.http.wire.protocol_chat import ChatRequest
    from palladio.http.wire.protocol_generate import NativeFields

    assert "max_tokens" in _integer_fields(ChatRequest)
    assert "max_tokens" not in _integer_fields(NativeFields)


def objects_of() -> None:
    from palladio.http.wire.protocol import _objects_of
    from palladio.http.wire.protocol_chat import ChatRequest
    from palladio.http.wire.protocol_generate import NativeFields

    assert "stream_options" in _objects_of(ChatRequest)
    assert "stream_options" not in _objects_of(NativeFields)


def fields_of_other_routes() -> None:
    """A request before the modules of all routes are imported; then another one."""
    from palladio.http.wire.protocol_chat import ChatRequest
    from palladio.runtime.interface.errors import InvalidRequestError

    def refusal() -> str:
        request = {"model": "m", "messages": [{"role": "user", "content": "x"}], "previous_response_ids": 1}
        try:
            ChatRequest.parse(request)
        except InvalidRequestError as error:
            return str(error)
        raise AssertionError("an unknown field passes")

    assert "palladio.http.responses.protocol_responses" not in sys.modules
    refusal()
    importlib.import_module("palladio.http.app")
    assert "previous_response_id?" in refusal(), refusal()


def event_publisher() -> None:
    from palladio.runtime.interface.config.kv_events_config import KVEventsSettings
    from palladio.runtime.process.event_publisher import EventPublisher

    for _ in range(2):  # the second one finds what the first one has left
        publisher = EventPublisher(KVEventsSettings("tcp://127.0.0.1:*", None, topic=""), 0)
        assert publisher.endpoint
        publisher.close()


def device_choice() -> None:
    """The first engine's choice is not the second one's."""
    import jax

    from palladio.runtime.devices.device_choice import choose_device

    before, log = dict(jax.config.values), logging.getLogger("jax._src.xla_bridge")
    assert log.filters == []
    assert choose_device("cpu").platform == choose_device("auto").platform == "cpu"
    assert jax.config.values["jax_platforms"] == before["jax_platforms"]
    assert jax.config.values["jax_cuda_visible_devices"] == before["jax_cuda_visible_devices"]
    assert log.filters == []


def compile_counts() -> None:
    import jax

    from palladio.runtime.execution.compiled.compile_monitor import CompileMonitor

    monitor = CompileMonitor()
    jax.jit(lambda x: x + 1)(1.0)
    assert monitor.count_here().compiles >= 1


def persistent_cache() -> None:
    """Use a process that has compiled without one; then an engine with another directory; then one without."""
    import tempfile

    import jax

    from palladio.runtime.execution.compiled.persistent_cache import use_persistent_cache

    with tempfile.TemporaryDirectory() as folder:
        jax.jit(lambda x: x + 2)(1.0)
        sizes = []
        for number, name in enumerate(("one", "two", None)):
            directory = None if name is None else Path(folder) / name
            use_persistent_cache(directory)
            jax.jit(lambda x, number=number: x * (number + 3))(1.0)
            sizes.append([len(list(Path(folder).glob(f"{each}/*-cache"))) > 0 for each in ("one", "two")])
        assert sizes == [[True, False], [True, True], [True, True]], sizes


def tuned_products() -> None:
    from palladio.pallas_kernels.narrow_matmul import NarrowProducts
    from palladio.pallas_kernels.target import Target

    found = [NarrowProducts.of(Target("cpu", kind, is_native=True)) for kind in ("no-such-kind", "avx2")]
    assert found[0] == NarrowProducts() != found[1]


def tuned_attention() -> None:
    from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_config import _table

    assert _table("v4") != _table("7x") != _table("no-such-kind") == {}


def moved_weights() -> None:
    """Two layouts of one device and size."""
    import jax
    from jax.experimental.layout import Format, Layout

    from palladio.model.loading.load_model import _mover

    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    array = jax.numpy.arange(6.0).reshape(2, 3)
    for order in ((0, 1), (1, 0)):
        moved: Any = _mover(Format(Layout(order), sharding))(array)
        assert moved.format.layout.major_to_minor == order


def weights_read_back() -> None:
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from palladio.model.base.sharding import make_mesh
    from palladio.model.loading.read_back import Place, ReadBack

    for size in (5, 6):
        part, place, check = np.arange(float(size), dtype=np.float32), Place.of("a", (size,)), ReadBack()
        array = jax.device_put(part, NamedSharding(make_mesh(1), PartitionSpec()))
        check.note("a", place, {array.addressable_shards[0].device: place.take(part)})
        check.check({"a": array})


def tuning() -> None:
    import jax.numpy as jnp

    from palladio.pallas_kernels.narrow_matmul.tuning import _wide

    assert float(_wide(jnp.ones((1, 2)), jnp.ones((2, 2)), jnp.ones((2, 2))).sum()) == 8.0


def families() -> None:
    """Their modules are imported by what asks for them."""
    from palladio.model.config.architectures import ARCHITECTURES
    from palladio.model.config.registry import find_family

    assert all(find_family(name) for name in ARCHITECTURES)


def native_library() -> None:
    """Load the library without its products of int8, and then with them: an earlier engine had none."""
    import jax
    import jax.numpy as jnp
    import pytest

    from palladio.pallas_kernels.cpu_native import calls, library
    from tests import compile_cache

    rows, ones = jnp.ones((1, 64)), jnp.ones(32)
    library.load(compile_cache.native_folder(), int8=False)
    product = calls.rows_times_bfloat16(rows, jnp.ones((32, 64), jnp.bfloat16))
    assert float(product[0, 0]) == 64.0
    matrix = jnp.ones((32, 64), jnp.int8)
    with pytest.raises(jax.errors.JaxRuntimeError, match="products of int8 are not loaded"):
        calls.rows_times_int8(rows, matrix, ones).block_until_ready()
    library.load(compile_cache.native_folder())
    assert abs(float(calls.rows_times_int8(rows, matrix, ones)[0, 0]) - 64.0) < 0.01


_CACHE = "runtime/execution/compiled/persistent_cache.py:use_persistent_cache"
_MONITOR = "runtime/execution/compiled/compile_monitor.py:CompileMonitor.__init__ jax.monitoring"
_LIBRARY = "pallas_kernels/cpu_native/library.py"
GROUPS: dict[str, dict[str, Use]] = {
    "text": {
        "runtime/text/tokenizers/stop_regex.py:read_pattern": stop_patterns,
        "runtime/text/tokenizers/stop_regex.py:StopPattern.__init__ warnings.catch_warnings": stop_patterns,
        "runtime/text/tokenizers/stop_regex.py:StopPattern.__init__ warnings.simplefilter": stop_patterns,
        "runtime/text/templates/chat_renderer.py:compile_template": templates,
        "runtime/text/templates/template_meter.py:current_meter": meter,
        "runtime/text/tokenizers/stop_strings.py:Marks.of": marks,
        "runtime/text/tokenizers/stop_strings.py:StopStrings.of": stop_strings,
        "runtime/process/event_publisher.py:EventPublisher.__init__ Context.instance": event_publisher,
        "http/reasoning/harmony.py:_HEADER_END": harmony_marks,
        "http/reasoning/harmony.py:_BODY_END": harmony_marks,
        "http/reasoning/muse.py:_BODY_END": muse_marks,
    },
    "http": {
        "http/wire/protocol.py:_fields_elsewhere.below": fields_of_other_routes,
        "http/pages/page_files.py:page_files": page_files,
        "http/security/browsers.py:_full_name": full_name,
        "http/wire/body.py:_schema_of": schemas,
        "http/wire/protocol.py:_integer_fields": integer_fields,
        "http/wire/protocol.py:_objects_of": objects_of,
    },
    "device": {
        f"{_MONITOR}.register_event_listener": compile_counts,
        f"{_MONITOR}.register_event_duration_secs_listener": compile_counts,
        f"{_CACHE} jax.config.update": persistent_cache,
        f"{_CACHE} compilation_cache.reset_cache": persistent_cache,
        "runtime/devices/device_choice.py:choose_device jax.config.update": device_choice,
        "runtime/devices/device_choice.py:_listening addFilter": device_choice,
        "runtime/devices/device_choice.py:_listening setLevel": device_choice,
        "pallas_kernels/narrow_matmul/config.py:_table": tuned_products,
        "pallas_kernels/ragged_paged_attention/tpu/tpu_config.py:_table": tuned_attention,
        "model/loading/load_model.py:_mover": moved_weights,
        "model/loading/read_back.py:_reader": weights_read_back,
        "pallas_kernels/narrow_matmul/tuning.py:_wide": tuning,
        "model/config/architectures.py:ARCHITECTURES": families,
    },
    "native": {
        f"{_LIBRARY}:_loaded": native_library,
        f"{_LIBRARY}:_register ctypes.CDLL": native_library,
        f"{_LIBRARY}:_register jax.ffi.register_ffi_target": native_library,
    },
}


def _num_kept(place: str) -> int | None:
    """Count the entries of a cache, a jitted function or a table; None: it is none of these."""
    path, _, name = place.partition(":")
    if " " in name or "<" in name:
        return None
    found: Any = importlib.import_module(f"palladio.{path.removesuffix('.py').replace('/', '.')}")
    for part in name.split("."):
        found = vars(found).get(part)
        found = found.__func__ if isinstance(found, classmethod) else found
    if hasattr(found, "cache_info"):
        return int(found.cache_info().currsize)
    if hasattr(found, "_cache_size"):
        return int(found._cache_size())
    return len(found) if type(found) is dict else None


def main(group: str) -> None:
    done: dict[Use, str] = {}
    for place, use in GROUPS[group].items():
        if use not in done:
            before = _num_kept(place)
            assert before in (0, None), f"{place} was used before"
            use()
            assert _num_kept(place) != 0, f"{place} is not used by {use.__name__}"
        done[use] = place
    print(json.dumps(list(GROUPS[group])))


if __name__ == "__main__":
    main(sys.argv[1])
