"""Every flag and variable of SGLang, vLLM and SGLang-JAX has a verdict: their names stand in files of their own."""

import importlib.util
import json
import sys
import zipfile
from pathlib import Path

import pytest

from palladio.flags.server_args import own_flags
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.flags.foreign_flags import ForeignFlags, load_foreign_flags
from palladio.runtime.interface.flags.peer_flags import SERVERS, PeerFlag, load_peer_flags, read_size
from palladio.runtime.interface.flags.sglang_flags import load_sglang_flags

ROOT = Path(__file__).resolve().parents[3]
FILES = {
    path.stem: json.loads(path.read_text("utf-8")) for path in (ROOT / "runtime/interface/flags/peers").glob("*.json")
}
TABLE = {name: flag for flag in load_sglang_flags() for name in (flag.name, *flag.aliases)}
OTHERS = ForeignFlags(load_foreign_flags())
LEAST = {"SGLang": 530, "vLLM": 315, "SGLang-JAX": 160}


@pytest.fixture(scope="module")
def script():
    folder = ROOT / "scripts" / "peers"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("peer_flags", folder / "peer_flags.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules["peer_flags"] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(folder))


@pytest.mark.parametrize("server", SERVERS.values())
def test_every_flag_has_a_verdict(server: str) -> None:
    flags = load_peer_flags()[server]
    assert len(flags) > LEAST[server]
    missing = []
    for name in flags:
        row = OTHERS.find(name)
        if name not in own_flags() and name not in TABLE and name != "config" and (row is None or server not in row.of):
            missing.append(name)
    assert missing == []


def test_rows_of_servers_with_a_file_are_in_it_or_were_in_an_earlier_version() -> None:
    """A row names a server that has the flag; what releases took away stays, for those who still type it."""
    tables = load_peer_flags()
    wrong = [
        (flag.name, server)
        for server, names in tables.items()
        for flag in load_foreign_flags()
        if not flag.name.endswith("*") and flag.name in names and server not in flag.of
    ]
    assert wrong == []


@pytest.mark.parametrize("name", ["attention_backend"])
def test_values_that_name_libraries_of_other_servers_are_accepted(name: str) -> None:
    known = set(TABLE[name].foreign_values)
    choices = {
        str(choice).lower()
        for file in FILES.values()
        for flag in file["flags"]
        if flag["name"] == name
        for choice in flag.get("choices", ())
    }
    assert len(choices) > 30
    assert choices - known - {"custom"} == set()


def test_files_name_their_versions() -> None:
    assert {name: file["version"] for name, file in FILES.items()} == {
        "sglang": "0.5.23",
        "vllm": "0.32.0",
        "tpu-inference": "0.32.0",
        "sglang-jax": "cddbf6f1",
    }
    assert len(FILES["sglang"]["environment"]) > 700
    assert all(file["environment"] for file in FILES.values())


def test_a_server_is_read_without_running_it(script, tmp_path: Path) -> None:
    """The three forms of declarations, from a wheel whose import would fail."""
    choices = 'NAMES = ["a", "b"]\nraise SystemExit("imported")\n'
    fields = (
        "class Model:\n"
        '    model_path: A[str, Arg(help="x", aliases=["--model"])]\n'
        '    policy: A[Optional[str], Arg(choices=NAMES + ["c"])] = "a"\n'
        "    tokens: A[int, Arg(type_parser=human_readable_int)] = 4 * 1024\n"
        '    quiet: A[bool, "x"] = False\n'
        "    hidden: A[bool, Arg(no_cli=True)] = False\n"
        '    sizes: A[Optional[List[int]], "x"] = None\n'
    )
    files = {
        "sglang/srt/arg_groups/choices.py": choices,
        "sglang/srt/arg_groups/fields/model.py": fields,
        "sglang/srt/parser/reasoning_parser_names.py": "",
        "sglang/srt/function_call/parser_names.py": "",
        "sglang/srt/server_args.py": 'parser.add_argument("--old", "-o", action="store_true", help="x")\n',
        "sglang/srt/environ.py": "class Envs:\n    SGLANG_A = EnvBool(False)\n",
    }
    wheel = tmp_path / "sglang-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    found = script.read_peer("sglang", wheel)
    assert found["environment"] == ["SGLANG_A"]
    assert found["flags"] == [
        {"name": "model_path", "kind": "str", "default": None, "aliases": ["model"]},
        {"name": "policy", "kind": "str", "default": "a", "choices": ["a", "b", "c"]},
        {"name": "tokens", "kind": "size", "default": 4096},
        {"name": "quiet", "kind": "flag", "default": False},
        {"name": "sizes", "kind": "ints", "default": None},
        {"name": "old", "kind": "flag", "default": False, "aliases": ["o"]},
    ]


def test_keywords_of_configs_are_found_where_argparse_takes_them(script, tmp_path: Path) -> None:
    files = {
        "vllm/config/cache.py": (
            'Kind: TypeAlias = Literal["x", "y"]\n'
            "class CacheConfig:\n"
            '    kind: Kind = "x"\n'
            "    share: float = Field(default=0.5, gt=0)\n"
            "    eager: bool = True\n"
            "    extra: dict[str, Any] | None = None\n"
        ),
        "vllm/engine/arg_utils.py": (
            "def add(parser):\n"
            "    kwargs = get_kwargs(CacheConfig)\n"
            '    parser.add_argument("--kind", "-k", **kwargs["kind"])\n'
            '    parser.add_argument("--share", **{**kwargs["share"], "help": "x"})\n'
            '    one = kwargs["eager"]\n'
            '    parser.add_argument("--eager", **one)\n'
            '    parser.add_argument("--extra", **kwargs["extra"])\n'
        ),
        "vllm/entrypoints/launchers/cli_args.py": "class FrontendArgs:\n    port: int = 8000\n",
        "vllm/v1/attention/backends/registry.py": "",
        "vllm/envs.py": 'environment_variables = {"VLLM_A": lambda: 1}\n',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = script.read_peer("vllm", tmp_path)
    assert found["environment"] == ["VLLM_A"]
    assert found["flags"] == [
        {"name": "kind", "kind": "str", "default": "x", "choices": ["x", "y"], "aliases": ["k"]},
        {"name": "share", "kind": "float", "default": 0.5},
        {"name": "eager", "kind": "switch", "default": True},
        {"name": "extra", "kind": "json", "default": None},
        {"name": "port", "kind": "int", "default": 8000},
    ]


@pytest.mark.parametrize(
    ("text", "number"), [("32768", 32768), ("32k", 32000), ("32K", 32768), ("1.5m", 1_500_000), ("-1", -1)]
)
def test_integers_with_units(text: str, number: int) -> None:
    assert read_size("--x", text) == number


@pytest.mark.parametrize("text", ["", "k", "32kk", "many", "1e3", "9" * 400 + "e"])
def test_what_is_no_integer_with_a_unit(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--x takes an integer"):
        read_size("--x", text)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("flag", ["yes"], "takes no value, got 'yes'"),
        ("int", ["x"], "takes an integer, got 'x'"),
        ("float", ["x"], "takes a number, got 'x'"),
        ("int", [], "needs a value"),
        ("int", ["1", "2"], "takes one value, got '1 2'"),
        ("json", ["{"], "is not valid JSON"),
        ("ints", ["1", "x"], "takes an integer, got 'x'"),
    ],
)
def test_values_of_the_wrong_type_are_named(kind: str, values: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^--x {message}"):
        PeerFlag(name="x", kind=kind).check("--x", values)
