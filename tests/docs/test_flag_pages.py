"""Generated pages are up to date, and what README.md and docs/ promise names things that exist."""

import ast
import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest

from palladio import Engine
from palladio.flags.gpu_memory import GPU_MEMORY
from palladio.flags.server_args import own_flags, parse_server_args
from palladio.runtime.interface.config.user_dirs import user_cache_dir, user_data_dir
from palladio.runtime.interface.flags.foreign_flags import load_foreign_flags
from palladio.runtime.interface.flags.sglang_flags import load_sglang_flags

ROOT = Path(__file__).resolve().parents[2]


def pages():
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "tests" / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("gen_flag_docs", ROOT / "scripts" / "pages" / "gen_flag_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_flags_page_is_up_to_date(generator):
    assert generator.PATH.read_text(encoding="utf-8") == generator.render(), "run `make docs`"


def test_pages_for_users_of_other_servers_are_up_to_date(generator):
    for server in generator.SERVERS:
        page = generator.page_of(server)
        assert page.read_text(encoding="utf-8") == generator.render_page(server), f"{page.name}: run `make docs`"


def test_every_flag_of_another_server_is_on_its_page(generator):
    rows = load_foreign_flags()
    assert {server for row in rows for server in row.of} == set(generator.SERVERS)
    for server in generator.SERVERS:
        named = set(re.findall(r"`(--[\w*-]+)`", generator.page_of(server).read_text(encoding="utf-8")))
        options = {row.option for row in rows if server in row.of}
        if server == "SGLang":
            options |= {row.option for row in load_sglang_flags()}
        assert options - named == set(), server


def test_flags_with_the_same_name_are_ours(generator):
    aliases = {name for row in load_sglang_flags() if row.name in own_flags() for name in row.aliases}
    for server in generator.SERVERS:
        names = {*generator.SAME.get(server, ()), *generator.newer(server)} - {"config"}
        assert [name for name in names if name not in own_flags() and name not in aliases] == [], server
        assert not {row.name for row in load_foreign_flags()} & {*names}


def test_metrics_for_users_of_vllm_exist():
    page = (ROOT / "docs" / "migrating" / "vllm.md").read_text(encoding="utf-8")
    named = re.findall(r"\| `(vllm:\w+)` \| `(sglang:\w+)` \|", page)
    assert len(named) > 5
    known = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")  # which a test compares with /metrics
    assert [ours for _, ours in named if f"`{ours}" not in known] == []


def test_help_names_other_flags_as_they_are_typed():
    page = (ROOT / "docs" / "flags.md").read_text(encoding="utf-8")
    fields = {name for name in own_flags() if "_" in name} - {"chat_template"}  # also a field of requests
    assert {word for word in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", page) if word in fields} == set()


def test_pages_tell_what_the_launcher_does():
    page = (ROOT / "docs" / "design" / "start.md").read_text(encoding="utf-8")
    for name, value in GPU_MEMORY.items():
        assert f"{name}={value}" in page
        assert f"{name}={value}" in (ROOT / "docs" / "first-minutes.md").read_text(encoding="utf-8")
        assert f"{name}={value}" in Engine.__doc__


def test_installs_of_the_pages_are_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {name for page in pages() for name in re.findall(r"pip install '\.\[([\w-]+)\]'", page.read_text("utf-8"))}
    assert named == {"tpu", "cuda13", "object-store", "otel", "postgres", "ray", "cache-url"}
    assert named | {"cpu", "cuda12"} == set(extras)


def benchmark_commands(page):
    """Script and words of each command line of a script in benchmarks/."""
    text = page.read_text(encoding="utf-8")
    fenced = re.findall(r"^```.*?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^    (\S.*)", prose, re.MULTILINE)
    lines = [line.split("#")[0] for block in (*fenced, *indented) for line in block.splitlines()]
    for line in (*lines, *re.findall(r"`([^`]+)`", prose), *re.findall(r"<!-- (.*?) -->", prose)):
        words = line.split()
        for place, word in enumerate(words):
            if re.fullmatch(r"benchmarks/(\w+/)?\w+\.(py|sh|c)", word):
                yield word, words[place + 1 :]


def arguments_of(script):
    """What a script in benchmarks/ takes: names of its arguments, and the words that it lets positional ones be."""
    source = (ROOT / script).read_text(encoding="utf-8")
    if script.endswith(".sh"):  # hands over what it does not know to the script of its name
        names, choices = arguments_of(f"benchmarks/gpu/{Path(script).stem}.py")
        return names, choices | set(re.findall(r"^  (\w+)\)", source, re.MULTILINE))
    if "add_server_arguments(" in source:
        source += (ROOT / "benchmarks" / "support" / "server_process.py").read_text(encoding="utf-8")
    names, choices = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names |= {name.value for name in node.args if isinstance(name, ast.Constant)}
            allowed = [keyword.value for keyword in node.keywords if keyword.arg == "choices"]
            choices |= {word.value for one in allowed for word in ast.walk(one) if isinstance(word, ast.Constant)}
    return names, choices


def test_benchmarks_of_the_pages_exist_and_take_the_words_they_are_given():
    results = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    commands = [command for page in (*pages(), *results) for command in benchmark_commands(page)]
    assert ("benchmarks/serving/batches.py", ["latency", "--lines", "5000"]) in commands
    assert ("benchmarks/aot/tpu_schedule.py", ["sweep", "--chip", "v6e", "--write"]) in commands
    assert ("benchmarks/h200.sh", ["smoke"]) in commands
    for script, words in commands:
        assert (ROOT / script).is_file(), script
        names, choices = arguments_of(script)
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= names, f"{script} {words}"
        if words and not words[0].startswith("-") and "/" not in words[0]:  # else a path
            assert words[0] in choices, f"{script} {words}"


def test_readme_of_the_benchmarks_has_every_script():
    folder = ROOT / "benchmarks"
    named = re.findall(r"`((?:\w+/)?\w+\.(?:py|sh|c))`", (folder / "README.md").read_text(encoding="utf-8"))
    files = [file for file in folder.rglob("*") if file.suffix in (".py", ".sh", ".c")]
    assert sorted(named) == sorted(file.relative_to(folder).as_posix() for file in files)


def test_make_targets_of_the_pages_exist():
    makefile = (ROOT / "Makefile").read_text()
    for page in pages():
        for target in re.findall(r"^make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: {target}"


def test_what_a_container_keeps_is_on_volumes():
    """Compiled programs, and what clients have uploaded and stored: else it would end with the container."""
    file = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    environment = dict(
        word.split("=") for line in re.findall(r"^ENV (.*)", file, re.MULTILINE) for word in line.split()
    )
    folders = [str(find(environment)) for find in (user_cache_dir, user_data_dir)]
    (volumes,) = re.findall(r"^VOLUME (.*)", file, re.MULTILINE)
    assert volumes.split() == folders
    folder = ROOT / "deploy" / "kubernetes" / "one-pod"
    manifest = (folder / "deployment.yaml").read_text(encoding="utf-8")
    mounted = re.findall(r"\{name: (\w+), mountPath: (/var/\S+)\}", manifest)
    assert [folder for _, folder in mounted] == folders
    claim = re.search(rf"- name: {mounted[1][0]}\n +persistentVolumeClaim: {{claimName: (\S+)}}", manifest)
    assert claim is not None, "what clients stored outlives the pod"
    text = (folder / "claim.yaml").read_text(encoding="utf-8")
    assert f"kind: PersistentVolumeClaim\nmetadata:\n  name: {claim[1]}\n" in text


def test_a_container_takes_the_model_as_its_first_argument():
    file = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    (entry,) = re.findall(r"^ENTRYPOINT (.*)", file, re.MULTILINE)
    args = parse_server_args([*json.loads(entry)[2:], "/models/mine"]).args
    assert (args.source.model_path, args.http.host) == ("/models/mine", "0.0.0.0")
