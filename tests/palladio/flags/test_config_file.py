"""--config FILE: YAML as both peers write it, beside the command line; what is wrong names its line."""

import json
from pathlib import Path

import pytest

from palladio.flags.server_args import names_model, parse_server_args
from palladio.runtime.interface.errors import ConfigError, FlagErrors
from palladio.server.launch import read_command


@pytest.fixture
def config(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "serve.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_a_file_of_sglang(config) -> None:
    path = config(
        "model-path: org/m\ntp-size: 2\nmem-fraction-static: 0.80\nenable-metrics: true\nlog-requests: false\n"
    )
    command = parse_server_args(["--config", path])
    flags = command.args.flags()
    assert (flags["model_path"], flags["tp_size"], flags["mem_fraction_static"]) == ("org/m", 2, 0.8)
    assert [line.split()[0] for line in command.warnings] == ["--enable-metrics"]
    assert names_model(["--config", path])


def test_a_file_of_vllm(config) -> None:
    path = config(
        "# as in its documentation\nmodel: org/m\nhost: 127.0.0.1\nport: 6379\nuvicorn-log-level: info\n"
        "max_model_len: 32k\nserved-model-name: [a, b]\nhf-overrides: {rope_theta: 1000, x: [1, true, null]}\n"
        "enable-expert-parallel: false\nseed: null\n"
    )
    flags = parse_server_args([f"--config={path}"]).args.flags()
    assert (flags["port"], flags["context_length"], flags["served_model_name"]) == (6379, 32000, ("a", "b"))
    assert flags["json_model_override_args"] == '{"rope_theta": 1000, "x": [1, true, null]}'
    assert flags["random_seed"] is None


@pytest.mark.parametrize(
    ("written", "number"),
    [(".7", 0.7), ("1.", 1.0), ("1_0", 10), ("0x10", 16), ("+3", 3), ("-2", -2), ("1.5e+3", 1500.0), ("'1'", "1")],
)
def test_numbers_within_an_object_are_yaml_s(config, written: str, number: object) -> None:
    path = config(f"model: m\nhf-overrides: {{x: {written}, y: [{written}]}}\n")
    found = json.loads(parse_server_args(["--config", path]).args.source.json_model_override_args)
    assert found == {"x": number, "y": [number]}
    assert type(found["x"]) is type(number)


def test_the_command_line_wins_whatever_the_names(config) -> None:
    path = config("model: org/m\ntensor-parallel-size: 2\nserved-model-name: a\ndeterministic: true\n")
    words = ["org/other", "--tp", "4", "--no-deterministic"]
    for argv in ([*words, "--config", path], ["org/other", "--config", path, *words[1:]]):
        flags = parse_server_args(argv).args.flags()
        assert (flags["model_path"], flags["tp_size"], flags["deterministic"]) == ("org/other", 4, False)
        assert flags["served_model_name"] == ("a",)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("model: m\n\nno_such_flag_zzz: 1\n", 3, "unknown flag --no-such-flag-zzz"),
        ("model: m\ntp_size: 2\ntp-size: 4\n", 3, "tp-size is there already, in line 2"),
        ("model: m\nhf-overrides:\n  a: 1\n  a: 2\n", 4, "a is there twice"),
        ("model: m\ntp-size: many\n", 2, "--tp-size takes an integer, got 'many'"),
        ("model: m\ntp-size: [1, 2]\n", 2, "--tp-size takes one value"),
        ("model: m\nconfig: other.yaml\n", 2, "names no other one"),
        ("model: m\nenable-lora: true\n", 2, "LoRA is not supported"),
        ("model: [\n", 2, "expected the node content"),
        ("model: m\n? [a, b]\n: 1\n", 2, "a key must be a word"),
        ("base: &b {x: 1}\nmodel: m\nhf-overrides:\n  <<: *b\n", 4, "a key must be a word"),
        ("model: m\nhf-overrides:\n  x: .inf\n", 3, "'.inf' is not a number"),
        ("model: m\nhf-overrides:\n  x: !!int ab\n", 3, "'ab' is not a number"),
        ("model: m\nhf-overrides:\n  x: !!int ''\n", 3, "'' is not a number"),
        ("model: m\nx: &a [*a]\n", 2, "an alias leads into itself"),
    ],
)
def test_what_is_wrong_names_its_line(config, text: str, line: int, words: str) -> None:
    path = config(text)
    with pytest.raises(ConfigError) as error:
        parse_server_args(["--config", path])
    assert f"--config {path}, line {line}: " in str(error.value)
    assert words in str(error.value)


def test_a_value_out_of_range_names_its_line_too(config) -> None:
    path = config("model: m\nport: 99999\nmax-num-seqs: 0\n")
    with pytest.raises(FlagErrors) as error:
        read_command(["--config", path], {})
    port, running = error.value.sentences
    assert f"{path}, line 2" in port
    assert f"{path}, line 3" in running
    assert "--max-num-seqs" in running


def test_two_names_of_one_flag_in_a_file(config) -> None:
    path = config("model: m\ncontext-length: 64\nmax-model-len: 128\n")
    with pytest.raises(ConfigError, match=r"--context-length 64 and --max-model-len 128"):
        parse_server_args(["--config", path])


def test_aliases_that_explode_are_refused(config) -> None:
    """A billion values in a few lines: none of them is made."""
    lines = ["model: m", "a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
    with pytest.raises(ConfigError, match=r"its aliases stand for more than 10000 values"):
        parse_server_args(["--config", config("\n".join(lines) + "\n")])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"- a\n- b\n", "must hold flags as `name: value`"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"model: \x01\n", "is not valid YAML"),
        (b"[" * 5000, "is not valid YAML"),
        (b"x: 1\n" * 300_000, "is larger than"),
        (b"a: 1\n---\nb: 2\n", "line 2"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        parse_server_args(["m", "--config", str(path)])
    assert words in str(error.value)


def test_an_empty_file_and_one_that_is_not_there(config, tmp_path: Path) -> None:
    assert parse_server_args(["m", "--config", config("# nothing\n")]).args.source.model_path == "m"
    for words in (["--config", str(tmp_path / "none.yaml")], ["--config"], ["--config", "a", "--config", "b"]):
        with pytest.raises(ConfigError, match="--config"):
            parse_server_args(["m", *words])


def test_no_python_is_made_of_a_tag(config, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = config(f"model: m\nserved-model-name: !!python/object/apply:os.mkdir ['{mark}']\n")
    parse_server_args(["--config", path])
    assert not mark.exists()


@pytest.mark.parametrize(
    ("text", "words", "flags"),
    [
        ("enable-prefix-caching: false", "--enable-prefix-caching", {}),
        ("disable-radix-cache: true", "--enable-prefix-caching", {}),
        ("max-model-len: 64", "--max-model-len auto", {}),
        ("context-length: 64", "--max-model-len -1", {}),
        ("max-model-len: auto", "--context-length 64", {"context_length": 64}),
        ("task: embed", "--task generate", {}),
        ("task: embed", "--runner generate", {}),
        ("runner: pooling", "--runner auto", {}),
        ("runner: pooling", "--convert none", {"is_embedding": True}),
        ("runner: generate", "--is-embedding", {"is_embedding": True}),
        ("attn-dp-size: 2", "--attn-dp-size 1", {}),
        ("attention-data-parallel-size: 2", "--attn-dp-size 1", {}),
        ("enable-priority-scheduling: true", "--no-enable-priority-scheduling", {}),
        ("schedule-policy: lpm", "--no-enable-priority-scheduling", {"schedule_policy": "lpm"}),
        ("enable-log-requests: true", "--no-enable-log-requests", {}),
        ("log-requests: true", "--no-enable-log-requests", {}),
        ("async-scheduling: false", "--async-scheduling", {}),
        ("attention-backend: xla", "--attention-backend fa3", {}),
        ("enable-lora: true", "--no-enable-lora", {}),
        ("enable-expert-parallel: true", "--tp 4 --ep-size 2", {"tp_size": 4, "ep_size": 2}),
        ("ep-size: 2", "--tp 4 --enable-expert-parallel", {"tp_size": 4, "ep_size": 4}),
    ],
)
def test_the_command_line_wins_where_its_value_stands_for_the_default(config, text: str, words: str, flags) -> None:
    usual = parse_server_args(["m"]).args.flags()
    found = parse_server_args(["m", "--config", config(text + "\n"), *words.split()]).args.flags()
    assert {name: value for name, value in found.items() if value != usual[name]} == flags
