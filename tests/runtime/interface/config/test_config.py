"""The engine's configuration: what may be said, what is refused, and where caches lie."""

import dataclasses
import json
from pathlib import Path

import pytest

from palladio.runtime.interface.config.cache_config import CacheConfig
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.execution_config import ExecutionConfig
from palladio.runtime.interface.config.field_checks import check_fields
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.config.scheduler_config import SchedulerConfig
from palladio.runtime.interface.config.speculative_config import SpeculativeConfig
from palladio.runtime.interface.config.user_dirs import user_cache_dir
from palladio.runtime.interface.errors import ConfigError


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("schedule_policy", "sjf", "--schedule-policy must be one of fcfs, lpm, dfs-weight, random, "),
        ("load_format", "pt", "--load-format must be one of auto, safetensors, orbax, dummy, got 'pt'"),
        ("dtype", "bf16", "--dtype must be one of auto, half, float16, bfloat16, float, float32, got 'bf16'"),
        ("dtype", ["auto"], "--dtype must be one of "),
        ("context_length", 1.5, "--context-length must be an integer or None, got 1.5"),
        ("page_size", "16", "--page-size must be an integer or None, got '16'"),
        ("page_size", True, "--page-size must be an integer or None, got True"),
        ("tp_size", None, "--tp-size must be an integer, got None"),
        ("mem_fraction_static", "0.5", "--mem-fraction-static must be a number or None, got '0.5'"),
        ("trust_remote_code", 1, "--trust-remote-code must be True or False, got 1"),
        ("model_path", Path("m"), "--model-path must be a string, got "),
        ("compilation_cache_dir", Path("m"), "--compilation-cache-dir must be a string or None, got "),
        ("schedule_conservativeness", float("nan"), "--schedule-conservativeness must be ≥ 0, got nan"),
        ("mem_fraction_static", 1.01, "--mem-fraction-static must be in (0, 1], got 1.01"),
        (
            "priority_scheduling_preemption_threshold",
            -1,
            "--priority-scheduling-preemption-threshold must be ≥ 0 (below it, requests of equal priority would "
            "preempt each other forever), got -1",
        ),
        ("random_seed", -1, "--random-seed must be in 0 … "),
        ("random_seed", 2**63, "--random-seed must be in 0 … "),
        ("max_engine_restarts", -1, "--max-engine-restarts must be ≥ 0, got -1"),
        ("watchdog_timeout", -1.0, "--watchdog-timeout must be a number of seconds ≥ 0 (0: off), got -1.0"),
        ("watchdog_timeout", float("nan"), "--watchdog-timeout must be a number of seconds ≥ 0 (0: off), got nan"),
        ("crash_dump_folder", "", "--crash-dump-folder must not be empty"),
        ("max_prefill_tokens", 0, "--max-prefill-tokens must be at least 1, got 0"),
        ("page_sise", 3, "unknown engine option 'page_sise'; known: attention_backend, "),
    ],
)
def test_what_is_refused_is_named(flag, value, message):
    with pytest.raises(ConfigError) as error:
        EngineConfig.from_flags({"model_path": "m", flag: value})
    assert str(error.value).startswith(message)


HOSTS = {"nnodes": 2, "node_rank": 1, "dist_init_addr": "10.0.0.1:8478"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tp_size": 0}, "--tp-size must be at least 1, got 0"),
        ({"nnodes": 0}, "--nnodes must be at least 1, got 0"),
        ({**HOSTS, "dist_timeout": 0}, "--dist-timeout must be at least 1, got 0"),
        ({**HOSTS, "node_rank": 2}, "--node-rank 2: with --nnodes 2, hosts are numbered 0 … 1"),
        ({"node_rank": 1}, "--node-rank 1: with --nnodes 1, hosts are numbered 0 … 0"),
        ({**HOSTS, "node_rank": None}, "--nnodes 2 needs --node-rank and --dist-init-addr HOST:PORT of host 0"),
        ({**HOSTS, "dist_init_addr": None}, "--nnodes 2 needs --node-rank and --dist-init-addr HOST:PORT of host 0"),
        ({**HOSTS, "dist_init_addr": "10.0.0.1"}, "--dist-init-addr must be host:port, got '10.0.0.1'"),
        ({**HOSTS, "dist_init_addr": "10.0.0.1:65536"}, "--dist-init-addr must be host:port, got '10.0.0.1:65536'"),
        ({**HOSTS, "dist_init_addr": "10.0.0.1:65535"}, "--dist-coordinator-port must be another port than "),
        ({**HOSTS, "dist_coordinator_port": 65536}, "--dist-coordinator-port must be another port than "),
        ({**HOSTS, "dist_coordinator_port": -1}, "--dist-coordinator-port must be another port than "),
        (
            {**HOSTS, "dist_coordinator_port": 8478},
            "--dist-coordinator-port must be another port than that of --dist-init-",
        ),
        ({**HOSTS, "compiled_dir": "/p"}, "--compiled-dir has programs for one host"),
    ],
)
def test_what_cannot_be_of_hosts_is_named(flags, message):
    with pytest.raises(ConfigError) as error:
        EngineConfig.from_flags({"model_path": "m", **flags})
    assert str(error.value).startswith(message)


def vllm(**keys):
    return {"speculative_config": json.dumps({"method": "ngram", "num_speculative_tokens": 5, **keys})}


NGRAM, VLLM = {"speculative_algorithm": "NGRAM"}, vllm()


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ({}, None),
        (NGRAM, (3, 1, 12)),
        (VLLM, (5, 5, 5)),
        (vllm(prompt_lookup_max=4), (5, 4, 4)),
        (vllm(prompt_lookup_min=2, prompt_lookup_max=4), (5, 2, 4)),
        ({"speculative_config": '{"model": "[ngram]", "num_speculative_tokens": 1}'}, (1, 5, 5)),
    ],
)
def test_drafts_by_the_flags_of_sglang_and_by_those_of_vllm(flags, settings):
    config = EngineConfig.from_flags({"model_path": "m", **flags}).speculative
    assert config.ngram == settings
    assert config.num_drafts == (settings[0] if settings else 0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"speculative_algorithm": "EAGLE3"}, "--speculative-algorithm must be one of NGRAM or None, got 'EAGLE3'"),
        ({"speculative_num_draft_tokens": 1}, "--speculative-num-draft-tokens must be in 2 … 32 (the newest token is"),
        ({**NGRAM, "speculative_num_draft_tokens": 33}, "--speculative-num-draft-tokens must be in 2 … 32"),
        ({"speculative_ngram_min_match_window_size": 0}, "--speculative-ngram-min-match-window-size and "),
        ({**NGRAM, "speculative_ngram_min_match_window_size": 13}, "--speculative-ngram-min-match-window-size and "),
        ({"speculative_num_draft_tokens": 5}, "--speculative-num-draft-tokens needs --speculative-algorithm NGRAM"),
        ({**NGRAM, "num_continuous_decode_steps": 2}, "--speculative-algorithm and --num-continuous-decode-steps both"),
        ({**NGRAM, "is_embedding": True}, "--is-embedding has no decode steps: leave --speculative-algorithm out"),
        ({**VLLM, **NGRAM}, "--speculative-algorithm is given by --speculative-config already"),
        ({**VLLM, "is_embedding": True}, "--is-embedding has no decode steps: leave --speculative-config out"),
        ({**VLLM, "num_continuous_decode_steps": 2}, "--speculative-config and --num-continuous-decode-steps both"),
        ({"speculative_config": "ngram"}, "--speculative-config must be a JSON object, got 'ngram': Expecting"),
        ({"speculative_config": "[1]"}, "--speculative-config must be a JSON object, got '[1]'"),
        ({"speculative_config": '{"method": "eagle3"}'}, "--speculative-config: method must be ngram, got 'eagle3'"),
        (vllm(draft_tensor_parallel_size=2), "--speculative-config: draft_tensor_parallel_size is not supported"),
        ({"speculative_config": '{"method": "ngram"}'}, "--speculative-config: num_speculative_tokens is missing"),
        (vllm(num_speculative_tokens=32), "--speculative-config: num_speculative_tokens must be in 1 … 31, got 32"),
        (vllm(prompt_lookup_min=True), "--speculative-config: prompt_lookup_min must be in 1 … 64, got True"),
        (vllm(prompt_lookup_min=3, prompt_lookup_max=2), "--speculative-config: prompt_lookup_min must not be over"),
    ],
)
def test_what_cannot_be_of_drafts_is_named(flags, message):
    with pytest.raises(ConfigError) as error:
        EngineConfig.from_flags({"model_path": "m", **flags})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "kind", [ModelSource, CacheConfig, SchedulerConfig, ExecutionConfig, ParallelConfig, SpeculativeConfig]
)
def test_every_part_checks_every_field_by_itself(kind):
    required = {"model_path": "m"} if kind is ModelSource else {}
    for field in dataclasses.fields(kind):
        with pytest.raises(ConfigError, match="--" + field.name.replace("_", "-")):
            kind(**required | {field.name: object()})


def test_a_part_of_the_wrong_kind_is_refused():
    with pytest.raises(ConfigError, match="--cache must be a CacheConfig"):
        EngineConfig(source=ModelSource(model_path="m"), cache={"page_size": 4})


def test_checks_know_tuples():
    @dataclasses.dataclass
    class Names:
        names: tuple[str, ...] | None

    check_fields(Names(("a", "b")))
    check_fields(Names(None))
    with pytest.raises(ConfigError, match="--names must be a tuple, each item a string or None, got 'a'"):
        check_fields(Names("a"))


def test_integers_are_numbers():
    assert EngineConfig.from_flags({"model_path": "m", "mem_fraction_static": 1}).cache.mem_fraction_static == 1


def test_flags_build_the_same_config_again():
    config = EngineConfig.from_flags({"model_path": "m", "page_size": 8, "schedule_conservativeness": 2, "tp_size": 1})
    assert EngineConfig.from_flags(config.flags()) == config
    groups = [group for group in vars(config).values() if dataclasses.is_dataclass(group)]
    assert list(config.flags()) == [field.name for group in groups for field in dataclasses.fields(group)]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PALLADIO_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/palladio"),
        ({"XDG_CACHE_HOME": ""}, "/home/me/.cache/palladio"),
    ],
)
def test_cache_directory(environment, expected, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert str(user_cache_dir(environment)) == expected
    assert str(ExecutionConfig().cache_path(environment)) == f"{expected}/xla"


def test_a_given_compilation_cache_wins_and_an_empty_one_is_none(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("PALLADIO_CACHE_DIR", "/never read here")
    environment = {"PALLADIO_CACHE_DIR": "/a"}
    assert ExecutionConfig().cache_path() == Path("/home/me/.cache/palladio/xla")
    assert ExecutionConfig(compilation_cache_dir="~/x").cache_path(environment) == Path("/home/me/x")
    assert ExecutionConfig(compilation_cache_dir="").cache_path(environment) is None
    url = ExecutionConfig(compilation_cache_dir="gs://bucket/x")
    assert (url.cache_path(environment), url.cache_url) == (ExecutionConfig().cache_path(environment), "gs://bucket/x")
    assert ExecutionConfig(compilation_cache_dir="/a/gs:").cache_url is None


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    def no_home(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(ConfigError, match="PALLADIO_CACHE_DIR"):
        user_cache_dir({})
