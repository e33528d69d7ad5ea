"""Launch lines of other servers' documentation, as flags and values: a line starts as far as the missing model, or has
one sentence for each feature that it needs and that is not here.

launch_lines.json has each line once: its server, the variables in front of it, its flags in the order of their names,
and the features that it needs. Names of models and folders are replaced.
"""

import collections
import json
import re
from pathlib import Path

import pytest

from palladio.commands.migrate import Launch, migrated
from palladio.model.base.errors import ConfigError
from palladio.runtime.interface.errors import FlagErrors
from palladio.server.launch import read_command

ROOT = Path(__file__).resolve().parents[3]
LINES = json.loads((Path(__file__).parent / "launch_lines.json").read_text("utf-8"))
PAGES = {"SGLang": "sglang", "SGLang-JAX": "sglang-jax", "tpu-inference": "vllm"}
ABSENT = "/there/is/no/such/model"
# A word of the sentence about each feature that is missing. A feature that comes needs no row here any more.
WORDS = {
    "prefill servers": "disaggregation",
    "draft models": "draft model",
    "pictures": "only text models",
    "diffusion": "make pictures and videos",
    "plug-ins": "a plug-in of vLLM",
    "formats in a file": "formats by module",
    "tools of the server": "runs no tools",
    "code of clients": "only model families are loaded from outside",
    "host cache": "kept in device memory only",
}


def words_of(line: dict) -> list[str]:
    flags = [
        (name, [ABSENT if value == "MODEL" else value for value in values]) for name, values in line["flags"].items()
    ]
    return [word for name, values in flags for word in (f"--{name}", *values)]


def name(line: dict) -> str:
    return f"{line['server']}-{LINES.index(line)}"


@pytest.mark.parametrize("line", [line for line in LINES if not line["needs"]], ids=name)
def test_a_line_whose_features_are_here_starts_as_far_as_the_missing_model(line: dict) -> None:
    with pytest.raises(ConfigError) as error:
        read_command([*words_of(line), *([] if names_model(line) else ["--model", ABSENT])], line["variables"])
    assert f"--model-path {ABSENT}" in str(error.value)
    assert migrated(launch(line)).missing == []


def names_model(line: dict) -> bool:
    return bool({"model", "model-path"} & line["flags"].keys())


def launch(line: dict) -> Launch:
    return Launch({"tpu-inference": "vLLM"}.get(line["server"], line["server"]), line["variables"], words_of(line))


@pytest.mark.parametrize("line", [line for line in LINES if line["needs"]], ids=name)
def test_any_other_line_fails_with_one_sentence_for_each_missing_feature(line: dict) -> None:
    with pytest.raises(ConfigError) as error:
        read_command(words_of(line), line["variables"])
    sentences = error.value.sentences if isinstance(error.value, FlagErrors) else (str(error.value),)
    assert len(sentences) == len(line["needs"])
    for feature in line["needs"]:
        assert sum(WORDS[feature] in sentence for sentence in sentences) == 1, sentences
    assert len(migrated(launch(line)).missing) == len(line["needs"])


def test_every_line_is_there_once_and_every_feature_is_needed() -> None:
    assert len(LINES) > 70
    assert len({json.dumps(line, sort_keys=True) for line in LINES}) == len(LINES)
    assert {feature for line in LINES for feature in line["needs"]} == WORDS.keys()
    assert {line["server"] for line in LINES} == PAGES.keys()


@pytest.mark.parametrize("server", PAGES)
def test_the_pages_have_the_measured_share(server: str) -> None:
    page = (ROOT / "docs" / "migrating" / f"{PAGES[server]}.md").read_text("utf-8")
    counts = collections.Counter(bool(line["needs"]) for line in LINES if line["server"] == server)
    (found,) = re.findall(r"Of the (\d+) launch lines .*?, (\d+) start", " ".join(page.split()))
    assert found == (str(counts.total()), str(counts[False]))


def test_a_line_that_was_migrated_is_understood_here() -> None:
    for line in LINES:
        if not line["needs"]:
            text = migrated(launch(line)).line
            flags = re.findall(r" (--[a-z-]+)", text)
            assert len(flags) == len(set(flags)), text
