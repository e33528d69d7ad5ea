"""Keywords of `Engine`: what the command line says of a flag holds for the keyword, by the same tables."""

import dataclasses

import pytest

from palladio.flags.server_args import own_flags, parse_server_args
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.flags.foreign_flags import load_foreign_flags
from palladio.runtime.interface.flags.offline_flags import OfflineFlags
from palladio.runtime.interface.flags.sglang_flags import load_sglang_flags

FLAGS = load_sglang_flags()
SERVER = {field.name for config in (HttpConfig, ObservabilityConfig) for field in dataclasses.fields(config)}
NEITHER = [flag for flag in FLAGS if flag.name not in own_flags()]


def read(**keywords: object) -> OfflineFlags:
    return OfflineFlags.read({"model_path": "m", **keywords})


def other(flag):
    """A value that is not SGLang's default, as a keyword and on the command line."""
    kinds = {"flag": True, "int": 77, "ints": [77], "float": 0.77, "floats": [0.77], "str": "x", "strs": ["x"]}
    value = kinds[flag.kind]
    words = [] if value is True else [str(item) for item in (value if isinstance(value, list) else [value])]
    return value, [flag.option, *words]


def _told(ask) -> list[str]:
    """The warnings, or the error."""
    try:
        return list(ask())
    except ConfigError as error:
        return [str(error)]


def test_what_people_set_offline() -> None:
    given = read(log_level="error", disable_cuda_graph=True, attention_backend="flashinfer", tp=2, page_size=None)
    assert given.log_level == "error"
    assert [warning.split(" here")[0] for warning in given.warnings] == [
        "disable_cuda_graph has no effect",
        "attention_backend='flashinfer' has no effect",
    ]
    assert given.config == EngineConfig.from_flags({"model_path": "m", "tp_size": 2})


@pytest.mark.parametrize("flag", NEITHER, ids=lambda flag: flag.name)
def test_a_keyword_has_the_verdict_of_the_command_line(flag) -> None:
    value, words = other(flag)
    on_command_line = _told(lambda: parse_server_args(["--model-path", "m", *words]).warnings)
    expected = [line.replace(flag.option, flag.name, 1) for line in on_command_line]
    assert _told(lambda: read(**{flag.name: value}).warnings) == expected
    assert read(**{flag.name: flag.default}).warnings == ()  # SGLang's default asks for nothing


def test_a_flag_of_the_server_says_what_it_is_offline() -> None:
    """SGLang's flags of its HTTP server are keywords of its Engine, too."""
    for flag in FLAGS:
        is_told = bool(flag.offline) + bool(flag.not_offline)
        assert is_told == (flag.name in SERVER and flag.name != "log_level"), flag.name
        if flag.offline:
            warnings = read(**{flag.name: other(flag)[0]}).warnings
            assert warnings == (f"{flag.name} has no effect offline: {flag.offline}",)
        elif flag.not_offline:
            with pytest.raises(ConfigError, match=f"^{flag.name} is not supported offline: "):
                read(**{flag.name: other(flag)[0]})


def test_values_that_mean_something_in_sglang_alone() -> None:
    for flag in FLAGS:
        for value in flag.foreign_values:
            given = read(**{flag.name: value})
            assert given.config == read().config
            assert given.warnings == (f"{flag.name}={value!r} has no effect here: {flag.reason}",)


def test_every_field_of_sglang_at_its_default_asks_for_nothing() -> None:
    """`Engine(**dataclasses.asdict(server_args))`, as tools call it; what is ours keeps our meaning."""
    ours = EngineConfig.from_flags({"model_path": "m"}).flags()
    given = read(**{flag.name: flag.default for flag in FLAGS if flag.name not in ours})
    assert (given.warnings, given.config, given.log_level) == ((), read().config, "info")


def test_flags_of_other_servers() -> None:
    assert read(max_model_len=64).config.source.context_length == 64
    assert read(enforce_eager=True).warnings[0].startswith("enforce_eager has no effect: ")
    for flag in load_foreign_flags():
        if flag.verdict == "refused":
            with pytest.raises(ConfigError, match=r"is a .* flag: "):
                read(**{flag.name.replace("*", "x"): 17})
    with pytest.raises(ConfigError, match=r"^enable_chunked_prefill=False is not supported: long prompts"):
        read(enable_chunked_prefill=False)
    assert read(tokenizer_worker_num=1).warnings == ()
    assert read(tokenizer_worker_num=2).warnings[0].startswith("tokenizer_worker_num 2 has no effect: one process")
    for value, message in ((0, "must be at least 1, got 0"), ("x", "must be an integer, got 'x'")):
        with pytest.raises(ConfigError, match=f"^api_server_count {message}"):
            read(api_server_count=value)


def test_keywords_that_stand_for_ours() -> None:
    config = read(max_num_batched_tokens=512, tp=2, attn_dp_size=2, enable_priority_scheduling=True).config
    assert (config.scheduler.max_prefill_tokens, config.scheduler.chunked_prefill_size) == (512, 512)
    assert (config.parallel.dp_size, config.parallel.enable_dp_attention) == (2, True)
    assert config.scheduler.schedule_policy == "priority"
    assert read(enable_deterministic_inference=True).config.execution.deterministic is True
    assert read(enable_deterministic_inference=False, enable_expert_parallel=False).config == read().config
    assert read(max_model_len="auto", load_format="gguf", task="generate").config == read().config
    given = read(gpu_memory_utilization=0.5)
    assert given.config.cache.mem_fraction_static == 0.5
    assert given.warnings[0].startswith("gpu_memory_utilization sets mem_fraction_static: ")
    for keywords, message in (
        ({"enable_force_include_usage": True}, "is not supported offline: it sets --stream-response-default"),
        ({"scheduling_policy": "fast"}, "scheduling_policy must be one of fcfs, priority, got 'fast'"),
        ({"enable_expert_parallel": True}, "enable_expert_parallel: give ep_size"),
        ({"attn_dp_size": 2, "dp_size": 4}, "attn_dp_size and dp_size are the same option"),
    ):
        with pytest.raises(ConfigError, match=message):
            read(**keywords)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"page_sise": 3}, "unknown engine option 'page_sise'; did you mean page_size"),
        ({"no_such_thing_at_all": 3}, "unknown engine option 'no_such_thing_at_all'; docs/flags.md lists all"),
        ({"tp": 2, "tp_size": 2}, "tp and tp_size are the same option: give one of them"),
        ({"context_length": 8, "max_model_len": 8}, "context_length and max_model_len are the same option"),
        ({"log_level": "loud"}, "log_level must be one of .*debug.*, got 'loud'"),
        ({"disable_cuda_graph": "yes"}, "disable_cuda_graph must be True or False, got 'yes'"),
        ({"attention_backend": "magic"}, "--attention-backend must be one of"),
        ({"cpu_offload_gb": True}, "cpu_offload_gb is not supported yet"),
    ],
)
def test_mistakes_are_named(keywords: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**keywords)
    with pytest.raises(ConfigError, match="model_path is required"):
        OfflineFlags.read({})
