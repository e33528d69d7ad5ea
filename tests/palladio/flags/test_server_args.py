"""The launch command's flags: ours, SGLang's, and everything else."""

import ast
import collections
import dataclasses
import typing
from pathlib import Path

import pytest

from palladio.flags.default_model import DEFAULT_MODEL_ALIASES, default_model_path
from palladio.flags.server_args import ServerArgs, names_model, own_flags, parse_server_args
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.flags.offline_flags import OfflineFlags
from palladio.runtime.interface.flags.sglang_flags import load_sglang_flags
from tests.source_tree import SOURCES

ROOT = Path(__file__).resolve().parents[3]
FLAGS = load_sglang_flags()
FOREIGN = [flag for flag in FLAGS if flag.name not in own_flags()]
PLANNED = [flag for flag in FOREIGN if flag.verdict in "KP" and not flag.always_on]
BY_NAME = {flag.name: flag for flag in FLAGS}


def parse(*words):
    return parse_server_args(["--model-path", "m", *words])


def choices(name):
    """The values of a flag that is a Literal, else ()."""
    for group in dataclasses.fields(ServerArgs):
        for field in dataclasses.fields(group.type):
            if field.name == name:
                return typing.get_args(field.type) if typing.get_origin(field.type) is typing.Literal else ()
    raise KeyError(name)


def typed(flag, value):
    """The words that set a flag to a value."""
    if flag.kind == "flag":
        return [flag.option]
    return [flag.option, str(value)]


def other(flag):
    """A value that is not the default."""
    return {"int": 77, "ints": 77, "float": 0.77, "floats": 0.77}.get(flag.kind, "something")


def test_the_table_holds_every_flag_of_the_documents():
    assert len(BY_NAME) == len(FLAGS) == 155
    assert collections.Counter(flag.verdict for flag in FLAGS) == {"K": 76, "P": 38, "W": 32, "E": 9}
    names = [name for flag in FLAGS for name in (flag.name, *flag.aliases)]
    assert len(names) == len(set(names))
    for flag in FLAGS:
        assert flag.meaning
        assert flag.reason or flag.verdict in "KP"


def test_a_flag_of_ours_is_never_called_meaningless():
    assert [flag.name for flag in FLAGS if flag.name in own_flags() and flag.verdict in "WE"] == []


@pytest.mark.parametrize("flag", [f for f in FOREIGN if f.verdict == "W"], ids=lambda f: f.name)
def test_flags_without_meaning_warn_once_and_say_why(flag):
    words = typed(flag, other(flag))
    warnings = parse(*words, *words).warnings
    assert len(warnings) == 1
    assert warnings[0] == f"{flag.option} has no effect here: {flag.reason}"


@pytest.mark.parametrize("flag", [f for f in FOREIGN if f.verdict == "E"], ids=lambda f: f.name)
def test_removed_flags_are_refused_with_the_reason(flag):
    with pytest.raises(ConfigError) as error:
        parse(*typed(flag, other(flag)))
    assert flag.option in str(error.value)
    assert flag.reason in str(error.value)


@pytest.mark.parametrize("flag", PLANNED, ids=lambda f: f.name)
def test_planned_flags_are_an_error_unless_at_their_default(flag):
    with pytest.raises(ConfigError, match=f"^{flag.option} is not supported yet"):
        parse(*typed(flag, other(flag)))
    if flag.default is not None and flag.default is not False:
        assert parse(*typed(flag, flag.default)).warnings == ()


@pytest.mark.parametrize("flag", [f for f in FLAGS if f.always_on], ids=lambda f: f.name)
def test_switches_of_what_is_always_on_are_told_so(flag):
    assert (flag.kind, flag.default) == ("flag", False)
    command = parse(flag.option, flag.option)
    assert command.warnings == (f"{flag.option} has no effect: {flag.always_on}",)
    assert f"{flag.name}=True" in command.args.describe()
    assert flag.name not in own_flags()


def test_flags_that_agree_with_what_the_server_does():
    """Their values are those that it has in any case: a command of SGLang's keeps them."""
    agreeing = ["--quantization", "fp8", "--warmups", "a,b", "--enable-tokenizer-batch-encode", "--base-gpu-id", "0"]
    parsed = parse(*agreeing)
    assert parsed.args.engine_config().source.quantization == "fp8"
    assert [warning.split()[0] for warning in parsed.warnings] == ["--warmups", "--enable-tokenizer-batch-encode"]


def test_what_is_always_on():
    always_on = {flag.name for flag in FLAGS if flag.always_on}
    assert always_on == {"enable_metrics", "enable_cache_report", "sleep_on_idle", "enable_nan_detection"}


def test_every_flag_of_ours_is_read_somewhere():
    """A flag that nothing reads would be a silent parameter; one that has a single value has nothing to be read."""
    kinds = ("config", "cache_config", "execution_config", "parallel_config", "scheduler_config", "survival_config")
    definitions = {
        *(f"runtime/interface/config/{kind}.py" for kind in kinds),
        "http/settings/http_config.py",
        "palladio/flags/server_args.py",
    }
    read = set()
    for source in SOURCES:
        if source.path not in definitions:  # a property of a config that reads a field is read under its own name
            read |= {node.attr for node in ast.walk(source.tree) if isinstance(node, ast.Attribute)}
    through = {"api_key": "api_keys", "admin_api_key": "admin_api_keys"}
    through |= {"default_chat_template_kwargs": "template_kwargs", "preferred_sampling_params": "preferred_defaults"}
    through |= {"start_check": "checks_start"}
    unread = [name for name in own_flags() if name not in read and through.get(name, "") not in read]
    assert [name for name in unread if len(choices(name)) != 1] == []


def test_dashes_underscores_equals_signs_and_the_last_one_wins():
    args = parse("--max_total_tokens", "64", "--page-size=8", "--page_size", "32", "--log-level", "debug").args
    assert (args.cache.max_total_tokens, args.cache.page_size, args.http.log_level) == (64, 32, "debug")


@pytest.mark.parametrize("name", ["--tp", "--tp-size", "--tensor-parallel-size", "--tensor_parallel_size"])
def test_aliases(name):
    assert parse(name, "2").args.engine_config().parallel.tp_size == 2
    assert parse_server_args(["--model", "x"]).args.source.model_path == "x"


@pytest.mark.parametrize("name", ["--stream-output", "--incremental-streaming-output"])
def test_streams_of_what_is_new(name):
    assert parse(name).args.http.stream_output is True


@pytest.mark.parametrize("name", ["--pp-size", "--pipeline-parallel-size", "--pipeline_parallel_size"])
def test_errors_name_the_flag_as_typed(name):
    with pytest.raises(ConfigError, match=f"^{name} is not supported yet"):
        parse(name, "2")
    with pytest.raises(ConfigError, match=f"^{name} takes an integer, got 'x'"):
        parse(f"{name}=x")


@pytest.mark.parametrize("name", ["--ep", "--ep-size", "--expert-parallel-size"])
def test_parts_with_experts_of_their_own(name):
    assert parse(name, "2", "--tp", "4").args.engine_config().parallel.ep_size == 2
    with pytest.raises(ConfigError, match="--ep-size 3 must divide --tp-size 4"):
        parse(name, "3", "--tp", "4").args.engine_config()


@pytest.mark.parametrize("name", ["--dp", "--dp-size", "--data-parallel-size"])
def test_groups_of_devices(name):
    parallel = parse(name, "2", "--load-balance-method", "shortest_queue").args.engine_config().parallel
    assert (parallel.dp_size, parallel.load_balance_method) == (2, "shortest_queue")
    parsed = parse("--load-balance-method", "total_tokens")
    assert parsed.args.parallel.load_balance_method == "round_robin"
    assert "shortest_queue balances by tokens" in parsed.warnings[0]


@pytest.mark.parametrize("name", ["--cuda-graph-bs", "--cuda_graph_bs_decode", "--cudagraph-capture-sizes"])
def test_batch_sizes_to_compile(name):
    parsed = parse(name, "1", "8", "64", "--cuda-graph-max-bs", "32")
    config = parsed.args.engine_config()
    assert (config.execution.cuda_graph_bs, config.execution.cuda_graph_max_bs) == ((1, 8, 64), 32)
    assert parsed.warnings == ()
    assert EngineConfig.from_flags({"model_path": "m", "cuda_graph_bs": [1, 8]}).execution.cuda_graph_bs == (1, 8)
    with pytest.raises(ConfigError, match="--cuda-graph-bs must be at least 1, got 0"):
        parse(name, "0", "8").args.engine_config()
    with pytest.raises(ConfigError, match="--cuda-graph-max-bs must be at least 1, got 0"):
        parse("--cuda-graph-max-bs", "0").args.engine_config()
    for other, reason in (("--deterministic", "all steps in one shape"), ("--is-embedding", "no decode steps")):
        with pytest.raises(ConfigError, match=f"{other} .*{reason}: leave --cuda-graph-bs out"):
            parse(other, name, "8").args.engine_config()


def test_several_names_negative_numbers_and_switches():
    args = parse(
        *("--served-model-name", "a", "b", "--chunked-prefill-size", "-1", "--trust-remote-code"),
        *("--skip-tokenizer-init", "--no-skip-tokenizer-init", "--api-key=-k"),
    ).args
    assert args.http.served_model_name == ("a", "b")
    assert args.scheduler.chunked_prefill_size == -1
    assert (args.source.trust_remote_code, args.source.skip_tokenizer_init) == (True, False)
    assert args.http.api_key == "-k"


def test_keys_on_the_command_line():
    assert parse("--api-key", "a,b").args.http.api_keys == ("a", "b")
    assert parse("--api-key", "a", "b", "--admin-api-key", "c").args.http.api_keys == ("a", "b")
    assert parse("--admin-api-key=-c", "--api_key_file", "f").args.http.admin_api_keys == ("-c",)
    secrets = ["--api-key", "s3cret1", "s3cret2", "--admin-api-key", "s3cret3", "--ssl-certfile", "c"]
    secrets += ["--database-url", "postgresql://u:s3cret5@db/p?sslpassword=s3cret6"]
    line = parse(*secrets, "--ssl-keyfile-password", "s3cret4").args.describe()
    assert "database_url='postgresql://u:***@db/p?sslpassword=***'" in line
    assert "s3cret" not in line
    assert line.count("'***'") == 3


@pytest.mark.parametrize(
    "url",
    ["host=db password=s3cret7", "PGPASSWORD = s3cret7", r"password='s3cret7 \' s3cret7'", r"sslpassword=a\ s3cret7"],
)
def test_a_password_in_a_database_url_that_is_none_is_not_told(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse("--database-url", url)
    assert "--database-url must be" in str(error.value)
    assert "s3cret7" not in str(error.value)


def test_backends_of_other_platforms_mean_auto_and_warn():
    command = parse("--attention-backend", "fa3")
    assert command.args.execution.attention_backend == "auto"
    assert "--attention-backend fa3 has no effect here" in command.warnings[0]
    assert parse("--attention-backend", "xla").args.execution.attention_backend == "xla"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--quantisation", "awq"], "unknown flag --quantisation; did you mean --quantization"),
        (["--max-modle-len", "8"], "unknown flag --max-modle-len; did you mean --max-model-len?"),
        (["--no-such-thing-at-all-zzz"], r"unknown flag --no-such-thing-at-all-zzz \(`palladio"),
        (["--enable-such-a-schedule"], r"unknown flag --enable-such-a-schedule \(`palladio"),  # no misleading hint
        (["--enable-torch-compile", "yes"], "--enable-torch-compile takes no value"),
        (["--cpu-offload-gb"], "--cpu-offload-gb needs a value"),
        (["--cpu-offload-gb", "many"], "--cpu-offload-gb takes an integer"),
        (["--cpu-offload-gb", "1", "2"], "--cpu-offload-gb takes one value"),
        (["--api-key", "a:k1", "--api_key=b:k2"], "--api_key is given more than once: write all"),
        (["--admin-api-key", "a", "--admin-api-key", "b"], "--admin-api-key is given more than once"),
    ],
)
def test_mistakes_are_named(words, message):
    with pytest.raises(ConfigError, match=message):
        parse(*words)


def test_the_model_may_stand_alone():
    args = parse_server_args(["org/m", "--port", "1"]).args
    assert (args.source.model_path, args.http.port) == ("org/m", 1)
    args = parse_server_args(["--host=0.0.0.0", "org/m", "--served-model-name", "a", "b"]).args
    assert (args.source.model_path, args.http.host, args.http.served_model_name) == ("org/m", "0.0.0.0", ("a", "b"))
    with pytest.raises(ConfigError, match="--model-path is required"):
        parse_server_args([])
    with pytest.raises(ConfigError, match="unexpected argument 'b': the model is already 'a'"):
        parse_server_args(["a", "b"])
    with pytest.raises(ConfigError, match="the model is given twice: as 'a' and with --model"):
        parse_server_args(["a", "--model", "b"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--port many", "--port takes an integer, got 'many'"),
        ("--port 99999", "--port must be in 0 … 65535, got 99999"),
        ("--port", "--port needs a value"),
        ("--port 1 2", "--port takes one value, got '1 2'"),
        ("--cuda-graph-bs 1 x", "--cuda-graph-bs takes an integer, got 'x'"),
        ("--schedule-conservativeness much", "--schedule-conservativeness takes a number, got 'much'"),
        ("--deterministic maybe", "--deterministic takes no value, got 'maybe'"),
        ("--context-length 32kk", "--context-length takes an integer, such as 32768 or 32k, got '32kk'"),
    ],
)
def test_values_of_the_wrong_type_are_one_line_that_names_the_flag(words, message):
    with pytest.raises(ConfigError) as error:
        parse(*words.split())
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_help_lists_our_flags(capsys):
    with pytest.raises(SystemExit) as exit_info:
        parse_server_args(["--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    for name in own_flags():
        assert "--" + name.replace("_", "-") in text


def test_the_boot_line_tells_everything_but_secrets():
    line = parse("--served-model-name", "n", "--api-key", "hunter2", "--max-running-requests", "3").args.describe()
    call = ast.parse(line, mode="eval").body
    shown = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    assert call.func.id == "ServerArgs"
    assert line.startswith("ServerArgs(model_path='m', tokenizer_path='m', tokenizer_mode='auto', ")
    assert set(shown) == set(BY_NAME) | set(own_flags())
    assert (shown["served_model_name"], shown["max_running_requests"], shown["api_key"]) == ("n", 3, "***")
    assert (shown["quantization"], shown["disaggregation_mode"]) == (None, "null")
    assert "hunter2" not in line


def test_the_boot_line_is_true_of_this_server():
    """What log parsers read of SGLang's own libraries: none of them is here."""
    call = ast.parse(parse().args.describe(), mode="eval").body
    shown = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    foreign = {flag.name: shown[flag.name] for flag in FLAGS if flag.name not in own_flags()}
    assert shown["sampling_backend"] == "xla"
    assert shown["triton_attention_reduce_in_fp32"] is True
    assert {name: value for name, value in foreign.items() if isinstance(value, str) and value} == {
        "sampling_backend": "xla",
        "tokenizer_mode": "auto",
        "impl": "auto",
        "init_expert_location": "trivial",
        "disaggregation_mode": "null",
    }


def test_names_model():
    assert names_model(["--model", "x"])
    assert names_model(["--port", "1", "--model_path=x"])
    assert names_model(["org/m", "--port", "1"])
    assert names_model(["--model-id", "x"])
    assert names_model(["--help"])
    assert not names_model(["--port", "1"])


def test_a_model_that_a_flag_has_taken_for_a_value_is_told_of(tmp_path):
    model = str(tmp_path)
    with pytest.raises(ConfigError, match="was parsed as a value of --served-model-name; if it is the model"):
        names_model(["--served-model-name", "foo", model])
    assert names_model(["--served-model-name=foo", model])
    assert names_model([model, "--served-model-name", "foo", model])
    assert not names_model(["--served-model-name", "foo", "bar"])
    assert not names_model(["--file-storage-path", model])


def test_the_embedded_model_has_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in DEFAULT_MODEL_ALIASES:
        args = parse_server_args([name]).args
        assert (args.source.model_path, args.http.served_model_name) == (
            str(default_model_path()),
            DEFAULT_MODEL_ALIASES[:1],
        )
    assert parse_server_args(["--model", "default", "--served-model-name", "x"]).args.http.served_model_name == ("x",)
    with pytest.raises(ConfigError, match=r"--model-path Palladio-defualt: .* did you mean palladio-default \(the emb"):
        parse_server_args(["Palladio-defualt"])
    assert parse_server_args(["org/default"]).args.source.model_path == "org/default"
    (tmp_path / "default").mkdir()
    assert parse_server_args(["default"]).args.source.model_path == "default"  # what is here, first


@pytest.mark.parametrize("value", ["EAGLE3", "EAGLE", "NEXTN", "eagle3"])
def test_a_value_that_is_planned_has_the_sentence_of_planned_flags(value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--speculative-algorithm {value} is not supported yet; there is NGRAM"):
        parse_server_args(["m", "--speculative-algorithm", value])
    with pytest.raises(ConfigError, match=rf"^speculative_algorithm='{value}' is not supported yet; there is NGRAM"):
        OfflineFlags.read({"model_path": "m", "speculative_algorithm": value})


def test_one_of_several_names_is_an_error_in_one_line() -> None:
    for words, expected in (
        ("--load-format pt", "--load-format must be one of auto, "),
        ("--schedule_policy routing-key", "--schedule_policy must be one of "),
        ("--compile sometimes", "--compile must be one of "),
        ("--dtype int3", "--dtype must be one of auto, half, "),
    ):
        with pytest.raises(ConfigError, match=f"^{expected}.*, got '{words.split()[1]}'$"):
            parse_server_args(["m", *words.split()])
    assert parse_server_args(["m", "--speculative-algorithm", "None"]).args.speculative.speculative_algorithm is None
    assert parse_server_args(["m", "--speculative-algorithm=NGRAM"]).args.speculative.speculative_algorithm == "NGRAM"
