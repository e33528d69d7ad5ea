"""Flags of other servers: each is another name of one of ours, changes nothing, or is refused with what to use."""

import dataclasses
import re

import pytest

from palladio.flags.server_args import own_flags, parse_server_args
from palladio.runtime.interface.errors import ConfigError, UnsupportedFlagError
from palladio.runtime.interface.flags.foreign_flags import load_foreign_flags
from palladio.runtime.interface.flags.peer_flags import load_peer_flags
from palladio.runtime.interface.flags.sglang_flags import load_sglang_flags

FLAGS = load_foreign_flags()
VALUES = {"json_model_override_args": '{"a": 1}', "log_level_http": "error", "root_path": "/x", "model_path": "m"}
VALUES |= {"preferred_sampling_params": '{"top_k": 3}', "quantization": "int8", "mem_fraction_static": "0.7"}
VALUES |= {"node_rank": "0", "speculative_config": '{"method": "ngram"}', "drain_timeout": "7.0"}
SWITCHES = {"disable_radix_cache", "disable_overlap_schedule", "log_requests", "deterministic"}
SWITCHES |= {"stream_response_default_include_usage"}
OF_TYPE = {"int": "7", "size": "7", "float": "0.3", "json": "{}", "ints": "7", "floats": "0.3", "str": "x", "strs": "x"}


def parse(*words: str):
    return parse_server_args(["m", *words])


def by(verdict: str) -> list:
    return [flag for flag in FLAGS if flag.verdict == verdict]


def typed(flag) -> str:
    return flag.option.replace("*", "x")


def declared(flag) -> list:
    tables = load_peer_flags()
    return [tables[server][flag.name] for server in flag.of if server in tables and flag.name in tables[server]]


def value_of(flag) -> list[str]:
    """Words that a flag takes, of the type that its server gives it; other than its default."""
    kinds = [one.kind for one in declared(flag)]
    return [OF_TYPE[kinds[0]]] if kinds and kinds[0] in OF_TYPE else []


def test_every_flag_is_in_one_table_and_names_flags_that_are_there() -> None:
    names = [flag.name for flag in FLAGS]
    assert len(names) == len(set(names)) > 200
    assert not {*own_flags(), *(name for flag in load_sglang_flags() for name in (flag.name, *flag.aliases))} & {*names}
    known = own_flags().keys() | {"config"}
    for flag in FLAGS:
        texts = (flag.here, flag.otherwise, flag.note, *(flag.values or {}).values())
        named = {word for text in texts for word in re.findall(r"--([a-z-]+)", text)}
        named |= {flag.here} if flag.verdict == "alias" else set()
        assert {name.replace("-", "_") for name in named} <= known, flag
        assert flag.of


@pytest.mark.parametrize("flag", by("alias"), ids=lambda flag: flag.name)
def test_another_name_sets_our_flag(flag) -> None:
    value = None if flag.here in SWITCHES else VALUES.get(flag.here, "7")
    words = [flag.option] if value is None else [flag.option, value]
    parsed = parse_server_args(words if flag.here == "model_path" else ["m", *words])
    found = {group.name: vars(vars(parsed.args)[group.name]) for group in dataclasses.fields(parsed.args)}
    (given,) = (values[flag.here] for values in found.values() if flag.here in values)
    wanted = "(7,)" if flag.here == "cuda_graph_bs" else "True" if value is None else value
    assert str(given) == wanted
    ours = " ".join(("--" + flag.here.replace("_", "-"), *([] if value is None else [value])))
    assert parsed.warnings == ((f"{flag.option} sets {ours}: {flag.note}",) if flag.note else ())


def test_what_changes_nothing_is_said_once() -> None:
    flags = [flag for flag in by("accepted") if flag.least is None]
    words = [word for flag in flags for word in (typed(flag), *value_of(flag))]
    warnings = parse(*words, *words).warnings
    assert warnings == tuple(f"{typed(flag)} has no effect: {flag.here}" for flag in flags)
    with pytest.raises(ConfigError, match=r"^--enable-chunked-prefill False is not supported: long prompts"):
        parse("--enable-chunked-prefill", "False")


@pytest.mark.parametrize("name", ["--api-server-count", "--tokenizer_worker_num"])
def test_more_than_one_front_is_one_front_and_one_warning(name: str) -> None:
    assert parse(name, "1").warnings == ()
    (warning,) = parse(name, "3", f"{name}=3").warnings
    assert warning.startswith(f"{name} 3 has no effect: one process speaks HTTP, and writes 60,000 to 80,000 stream")
    assert "run several servers behind a router" in warning
    for values, message in (
        (("0",), "must be at least 1, got 0"),
        (("x",), "takes an integer, got 'x'"),
        ((), "needs a value"),
        (("2", "3"), "takes one value, got '2 3'"),
    ):
        with pytest.raises(ConfigError, match=f"^{name} {message}"):
            parse(name, *values)


def test_what_is_refused_says_what_to_use() -> None:
    for flag in by("refused"):
        name = typed(flag).replace("-", "_").replace("__", "--", 1)
        with pytest.raises(UnsupportedFlagError) as error:
            parse(name, "17")
        assert str(error.value) == f"{name} is a {flag.servers} flag: {flag.here}"
        assert error.value.feature == flag.here


def test_flags_that_two_servers_have_name_both() -> None:
    for words, servers in (
        ("--enable-lora", "vLLM, SGLang and SGLang-JAX"),
        ("--max-lora-rank 8", "vLLM, SGLang and SGLang-JAX"),
        ("--lora-target-modules all", "vLLM, SGLang and SGLang-JAX"),
        ("--tool-server demo", "vLLM and SGLang"),
        ('--model-loader-extra-config {"a":1}', "vLLM, SGLang and SGLang-JAX"),
    ):
        with pytest.raises(ConfigError, match=rf"^{words.split()[0]} is a {servers} flag: "):
            parse(*words.split())


def test_flags_of_windows_and_states_name_ours() -> None:
    """Whatever else a server calls by such a name."""
    for words, flag in (
        ("--max-mamba-cache-size 4", "--state-snapshot-bytes"),
        ("--mamba-anything 1", "--state-snapshot-interval"),
        ("--calculate-kv-scales", "--kv-cache-dtype"),
        ("--disable-hybrid-kv-cache-manager", "--context-length"),
        ("--h11-max-incomplete-event-size 9", "--max-request-bytes"),
    ):
        with pytest.raises(ConfigError, match=flag):
            parse(*words.split())
    for words, flag in (
        ("--swa-full-tokens-ratio 0.5", "--max-total-tokens"),
        ("--mamba-full-memory-ratio 0.4", "--state-snapshot-bytes"),
    ):
        assert flag in parse(*words.split()).warnings[0]
    assert "has no effect: attention always computes" in parse("--ragged-mha", "True").warnings[0]


def test_a_wrong_value_tells_whose_other_name_it_is() -> None:
    with pytest.raises(ConfigError, match=r"^--max-model-len takes an integer, got 'many'$"):
        parse("--max-model-len", "many", "--page-size", "16")
    command = parse("--gpu-memory-utilization", "1.5")
    with pytest.raises(ConfigError) as error:
        command.args.engine_config()
    assert "--gpu-memory-utilization is an alias of --mem-fraction-static" in str(command.explained(error.value))
    with pytest.raises(ConfigError, match="--override-generation-config is an alias of --preferred-sampling-params"):
        parse("--override-generation-config", '{"no_such_thing": 1}')


def test_a_command_of_vllm() -> None:
    words = "--tensor-parallel-size 2 --max-model-len 4096 --max-num-seqs 8 --enforce-eager --enable-prefix-caching"
    parsed = parse(*words.split(), "--served-model-name", "a", "--root-path", "/x", "-O3")
    flags = parsed.args.flags()
    assert (flags["tp_size"], flags["context_length"], flags["max_running_requests"]) == (2, 4096, 8)
    assert len(parsed.warnings) == 3
