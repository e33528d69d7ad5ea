"""Flags of other servers that stand for some of ours, two names of one flag, and several mistakes at once."""

import json

import pytest

from palladio.flags.server_args import parse_server_args
from palladio.runtime.interface.errors import ConfigError, FlagErrors
from palladio.server.launch import read_command


def parse(words: str):
    return parse_server_args(["m", *words.split()])


def changed(words: str) -> dict:
    """Flags of ours that a command sets to other values than their defaults."""
    usual = parse("").args.flags()
    return {name: value for name, value in parse(words).args.flags().items() if value != usual[name]}


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("--max-num-batched-tokens 4096", {"max_prefill_tokens": 4096, "chunked_prefill_size": 4096}),
        ("--max-num-batched-tokens 8k", {"max_prefill_tokens": 8000, "chunked_prefill_size": 8000}),
        ("--device-memory-utilization 0.8", {"mem_fraction_static": 0.8}),
        ("--tp 4 --attn-dp-size 2", {"tp_size": 4, "dp_size": 2, "enable_dp_attention": True}),
        (
            "--attention-data-parallel-size=2 --dp-size 2 --tp 2",
            {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True},
        ),
        ("--attn-dp-size 1", {}),
        ("--enable-priority-scheduling", {"schedule_policy": "priority"}),
        ("--enable-priority-scheduling --schedule-policy fcfs", {"schedule_policy": "priority"}),
        ("--schedule-policy fcfs --enable-priority-scheduling", {"schedule_policy": "priority"}),
        ("--scheduling-policy fcfs", {}),
        (
            "--scheduling-policy priority",
            {"schedule_policy": "priority", "schedule_low_priority_values_first": True},
        ),
        ("--enable-deterministic-inference", {"deterministic": True}),
        ("--no-enable-deterministic-inference", {}),
        ("--stream-response-default-include-usage", {"stream_response_default_include_usage": True}),
        ("--enable-force-include-usage", {"stream_response_default_include_usage": True}),
        ('--limit-mm-per-prompt {"image":0,"video":{"count":0}}', {}),
        ("--limit-mm-per-prompt.image 0", {}),
        ("--dp-schedule-policy cache_aware", {"load_balance_method": "prefix"}),
        ("--dp-schedule-policy min_running_queue", {"load_balance_method": "shortest_queue"}),
        ("--dp-schedule-policy round_robin", {}),
        ("--generation-config auto", {}),
        ("--generation-config vllm", {"sampling_defaults": "openai"}),
        ('--override-generation-config {"top_k":3}', {"preferred_sampling_params": '{"top_k":3}'}),
        ("--override-generation-config.top_k 3", {"preferred_sampling_params": '{"top_k": 3}'}),
        ("--max-logprobs 20 --logprobs-mode raw_logprobs", {}),
        ("--load-format gguf", {}),
        ("--load-format fastsafetensors", {}),
        ("--soft-watchdog-timeout 5", {"soft_watchdog_timeout": 5.0}),
        ("--max-model-len auto", {}),
        ("--max-model-len -1", {}),
        ("--max-model-len 32k", {"context_length": 32000}),
        ("--context-length 2K", {"context_length": 2048}),
        ("--task embed", {"is_embedding": True}),
        ("--task generate --runner auto --convert none", {}),
        ("--runner pooling --convert embed", {"is_embedding": True}),
        ("--disable-precompile", {"compile": "lazy"}),
        ("--precompile-bs-paddings 1 8", {"cuda_graph_bs": (1, 8)}),
        ("--enable-expert-parallel", {}),
        ("--enable-expert-parallel -tp 4", {"tp_size": 4, "ep_size": 4}),
        ("--no-enable-expert-parallel -tp 4", {"tp_size": 4}),
        ("--enable-expert-parallel --no-enable-expert-parallel -tp 4", {"tp_size": 4}),
        ("-tp 4 -ep", {"tp_size": 4, "ep_size": 4}),
        ("--ep 2 --tp 4", {"tp_size": 4, "ep_size": 2}),
        (
            "--enable-expert-parallel -tp 4 -dp 2",
            {"tp_size": 8, "dp_size": 2, "ep_size": 8, "enable_dp_attention": True},
        ),
        ("-q int8 -n 1", {"quantization": "int8", "nnodes": 1}),
        ("--pipeline-parallel-size 1 --disaggregation-mode null --cpu-offload-gb 0 --max-lora-rank 16", {}),
        ("--no-enforce-eager --no-enable-eplb --no-enable-lora", {}),
    ],
)
def test_flags_of_other_servers_that_stand_for_ours(words: str, flags: dict) -> None:
    assert changed(words) == flags


def test_a_flag_that_is_not_quite_the_same_says_so_once() -> None:
    (line,) = parse("--gpu-memory-utilization 0.9 --gpu-memory-utilization 0.9").warnings
    assert line.startswith("--gpu-memory-utilization sets --mem-fraction-static 0.9: ")
    assert parse("--mem-fraction-static 0.9").warnings == ()


@pytest.mark.parametrize(
    "words",
    [
        "--moe-backend fused",
        "--swa-full-tokens-ratio 0.5",
        "--attention-backend fa",
        "--attention-backend FLASH_ATTN",
        "--attention-backend flex_attention",
        "--linear-attn-backend flashinfer",
        "--gdn-prefill-impl chunked_jax",
        "--dsa-decode-backend x",
        "--cuda-graph-mode full",
        "--compilation-config.mode 3",
        "-O3",
        "-O.level=2",
        "--precompile-token-paddings 1024 2048",
        "--enable-multimodal",
        "--multimodal",
        "--language-only",
        "--model-impl vllm",
    ],
)
def test_what_xla_decides_is_accepted_with_one_warning(words: str) -> None:
    assert changed(words) == {}
    assert len(parse(words).warnings) == 1


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("--tp 2 --tensor-parallel-size 4", ("--tp 2", "--tensor-parallel-size 4")),
        ("--context-length 64 --max-model-len 128", ("--context-length 64", "--max-model-len 128")),
        ("--schedule-policy lpm --enable-priority-scheduling", ("--schedule-policy lpm", "--enable-priority-sched")),
        ("--enable-priority-scheduling --schedule-policy lpm", ("--enable-priority-sched", "--schedule-policy lpm")),
        ("--max-num-batched-tokens 64 --chunked-prefill-size 32", ("--max-num-batched-tokens 64", "--chunked-prefill")),
        ("--enable-expert-parallel --tp 4 --ep-size 2", ("--enable-expert-parallel", "--ep-size 2")),
        ("--no-enable-prefix-caching --no-disable-radix-cache", ("--no-enable-prefix-caching", "--no-disable-radix")),
    ],
)
def test_two_names_of_one_flag_with_different_values_are_an_error_that_names_both(words: str, names: tuple) -> None:
    with pytest.raises(ConfigError) as error:
        parse(words)
    for name in names:
        assert name in str(error.value)


@pytest.mark.parametrize(
    "names",
    [
        ("--max-model-len auto", "--context-length 64"),
        ("--task generate", "--runner pooling"),
        ("--task embed", "--runner generate"),
        ("--runner generate", "--is-embedding"),
        ("--attn-dp-size 1", "--dp-size 2"),
        ("--enable-prefix-caching", "--disable-radix-cache"),
    ],
)
def test_a_value_that_stands_for_the_default_contradicts_another_name_too(names: tuple) -> None:
    for order in (names, names[::-1]):
        with pytest.raises(ConfigError) as error:
            parse(" ".join(order))
        assert all(name in str(error.value) for name in names)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("--max-model-len 64 --max-model-len auto", {}),
        ("--max-model-len auto --max-model-len 64", {"context_length": 64}),
        ("--enable-lora --no-enable-lora", {}),
        ("--no-enable-prefix-caching --enable-prefix-caching", {}),
        ("--runner auto --convert none --is-embedding", {"is_embedding": True}),
    ],
)
def test_the_last_of_two_spellings_wins_also_where_it_stands_for_the_default(words: str, flags: dict) -> None:
    assert changed(words) == flags


def test_a_typing_mistake_stays_one_under_a_later_value() -> None:
    with pytest.raises(ConfigError, match="--tp takes an integer, got 'many'"):
        parse("--tp many --tp 4")


def test_two_names_of_one_flag_with_the_same_value_are_none() -> None:
    assert changed("--tp 2 --tensor-parallel-size 2 --tp-size=2") == {"tp_size": 2}
    assert changed("--tp 2 --tp 4") == {"tp_size": 4}


def test_every_missing_feature_has_one_sentence() -> None:
    with pytest.raises(FlagErrors) as error:
        parse(
            "--speculative-algorithm EAGLE3 --speculative-draft-model-path d --speculative-num-steps 3 --enable-lora "
            "--lora-paths a=b --no-such-flag-zzz --disaggregation-mode prefill --tp many"
        )
    sentences = error.value.sentences
    assert len(sentences) == 5
    for sentence, words in zip(
        sentences,
        (
            ["--speculative-algorithm EAGLE3", "--speculative-draft-model-path", "--speculative-num-steps", "NGRAM"],
            ["--enable-lora", "--lora-paths", "LoRA is not supported"],
            ["unknown flag --no-such-flag-zzz"],
            ["--disaggregation-mode", "disaggregation is not supported"],
            ["--tp takes an integer, got 'many'"],
        ),
        strict=True,
    ):
        assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ('--enable-lora --speculative-config {"method":"eagle3","model":"x"}', ("LoRA", "draft models")),
        ("--enable-lora --quantization bitsandbytes", ("LoRA", "--quantization bitsandbytes")),
        ("--enable-lora --tool-call-parser beam", ("LoRA", "--tool-call-parser beam")),
        ("--tool-call-parser beam --port 99999", ("--tool-call-parser beam", "--port")),
        ("--quantization bitsandbytes --page-size 0", ("--page-size", "--quantization bitsandbytes")),
        ("--tp many --ep-size 4 --enable-lora", ("--tp takes an integer", "LoRA")),
    ],
)
def test_what_a_config_refuses_is_told_with_what_a_flag_refuses(words: str, parts: tuple) -> None:
    with pytest.raises(FlagErrors) as error:
        read_command(["m", *words.split()], {})
    assert len(error.value.sentences) == len(parts)
    assert all(part in str(error.value) for part in parts)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--runner draft", "--runner draft is not supported: draft models"),
        ("--task paint", "--task must be one of .*embed.*, got 'paint'"),
        ("--generation-config /models/x", "use --preferred-sampling-params"),
        ("--max-logprobs 100", "the limit is 20"),
        ("--logprobs-mode processed_logprobs", "raw logits"),
        ("--scheduling-policy lpm", "--scheduling-policy must be one of fcfs, priority, got 'lpm'"),
        ("--enable-priority-scheduling yes", "--enable-priority-scheduling takes no value, got 'yes'"),
        ("--attn-dp-size", "--attn-dp-size needs a value"),
        ("--attn-dp-size two", "--attn-dp-size takes an integer, got 'two'"),
        ("--max-model-len long", "--max-model-len takes an integer, got 'long'"),
        ("--swa-full-tokens-ratio half", "--swa-full-tokens-ratio takes a number, got 'half'"),
        ("--limit-mm-per-prompt image=1", "only text models"),
        ("--soft-watchdog-timeout soon", "--soft-watchdog-timeout takes a number, got 'soon'"),
        ("--x.a 1 --x.a 2", r"--x.a is given twice"),
    ],
)
def test_wrong_values_name_the_flag_as_typed(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(words)


def test_a_flag_of_pictures_is_remembered_for_the_check_of_the_model() -> None:
    assert parse("--enable-multimodal").asks_pictures == "--enable-multimodal"
    assert parse("--language-only").asks_pictures == ""


def test_dotted_flags_become_one_object() -> None:
    given = changed("--override-generation-config.temperature 0.5 --override-generation-config.top_k 3")
    assert json.loads(given["preferred_sampling_params"]) == {"temperature": 0.5, "top_k": 3}


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            "--generation-config auto --sampling-defaults openai",
            "--generation-config auto and --sampling",
        ),
        ("--max-model-len 8k --context-length 64", "--max-model-len 8k and --context-length 64"),
        (
            "--enable-priority-scheduling --schedule-policy lpm",
            "--enable-priority-scheduling and --schedule-policy lpm",
        ),
    ],
)
def test_an_error_shows_the_values_that_were_typed(words: str, shown: str) -> None:
    with pytest.raises(ConfigError, match=shown):
        parse(words)
