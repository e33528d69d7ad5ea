"""Response templates: what the process that reads by them says, however the text is cut and whatever a pattern does."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palladio.http.response_templates.readers import SampleReader, TemplateReaders, read_whole
from palladio.http.response_templates.spec import ResponseSpec
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.http.response_templates.templates import CALL, PLAIN, TAGGED, TOOLS, with_template

PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def spec_of(template: dict[str, Any]) -> ResponseSpec:
    return ResponseSpec(json.dumps(template), None, calls_are_json=True)


@pytest.fixture(scope="module")
def readers() -> Iterator[TemplateReaders]:
    """For PLAIN: another template would be another process, which takes a second to start."""
    with contextlib.closing(TemplateReaders()) as found:
        yield found


@pytest.fixture(scope="module")
def tagged_readers() -> Iterator[TemplateReaders]:
    with contextlib.closing(TemplateReaders()) as found:
        yield found


@pytest.fixture(scope="module")
def endless_readers() -> Iterator[TemplateReaders]:
    with contextlib.closing(TemplateReaders(cpu_seconds=0.3)) as found:
        yield found


def joined(events: list[Any]) -> tuple[str, str, list[tuple[str, dict[str, Any]]]]:
    texts = {kind: "".join(event[1] for event in events if event[0] == kind) for kind in ("reasoning", "content")}
    calls = [(event[1], json.loads(event[2])) for event in events if event[0] == "call"]
    return texts["reasoning"], texts["content"], calls


async def read_pieces(reader: SampleReader, text: str, size: int) -> list[Any]:
    events = []
    for at in range(0, len(text), size):
        events += await reader.feed(text[at : at + size])
    return events + await reader.finish()


@pytest.mark.parametrize(
    ("template", "prompt", "text", "expected"),
    [
        (PLAIN, PROMPT, f"<think>\nHm.\n</think>\n\nYes. {CALL}\n{CALL} So.",
         ("Hm.", "Yes.So.", [("get_weather", {"city": "Paris"})] * 2)),
        (PLAIN, PROMPT + "<think>\n", "Hm.</think>Yes.<|im_end|>", ("Hm.", "Yes.", [])),
        (PLAIN, PROMPT, "1 < 2 <tool", ("", "1 < 2 <tool", [])),
        (PLAIN, PROMPT, "<think>cut", ("cut", "", [])),
        (TAGGED, PROMPT, "Yes.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
         "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
         ("", "Yes.", [("get_weather", {"city": "Paris", "days": 3})])),
    ],
    ids=["calls", "opened by the prompt", "no call", "cut off", "typed values"],
)  # fmt: skip
def test_reads(
    readers: TemplateReaders, tagged_readers: TemplateReaders, template: Any, prompt: str, text: str, expected: Any
) -> None:
    if template is TAGGED:
        readers = tagged_readers

    async def read(size: int) -> list[Any]:
        return await read_pieces(readers.reader(spec_of(template), prompt, TOOLS), text, size)

    for size in (len(text), 7, 1):
        assert joined(asyncio.run(read(size))) == expected


def test_text_comes_as_it_is_written(readers: TemplateReaders) -> None:
    async def read() -> list[list[Any]]:
        reader = readers.reader(spec_of(PLAIN), PROMPT, TOOLS)
        found = [await reader.feed(text) for text in ("<think>Let", " me", "</think>So", " it")]
        reader.close()
        return found

    assert asyncio.run(read()) == [
        [("reasoning", "Let")],
        [("reasoning", " me")],
        [("content", "So")],
        [("content", " it")],
    ]


@pytest.mark.parametrize("text", ['<tool_call>\n{"name": oops}\n</tool_call>\nYes.', "<tool_call>[1]</tool_call> Yes."])
def test_what_is_no_call_is_content(readers: TemplateReaders, text: str) -> None:
    _, content, calls = joined(asyncio.run(read_whole(readers.reader(spec_of(PLAIN), PROMPT, TOOLS), "So: " + text)))
    assert calls == []
    assert content.startswith("So:")
    assert "Yes." in content
    assert "oops" in content or "[1]" in content


ENDLESS = PLAIN | {"fields": PLAIN["fields"] | {"thinking": {"open_pattern": r"(?:a+)+$", "close": "b"}}}
LONG = "b" + "a" * 30_000 + "!"


def test_a_pattern_without_end_is_ended(endless_readers: TemplateReaders) -> None:
    """Its sample goes on as text, and others do not wait for it."""
    spec = spec_of(ENDLESS)

    async def read() -> tuple[list[Any], int]:
        slow = asyncio.create_task(read_whole(endless_readers.reader(spec, PROMPT, TOOLS), LONG))
        num_read = 0
        while not slow.done():
            assert joined(await read_whole(endless_readers.reader(spec, PROMPT, TOOLS), "Yes."))[1] == "Yes."
            num_read += not slow.done()
            await asyncio.sleep(0.02)
        return await slow, num_read

    asyncio.run(read_whole(endless_readers.reader(spec, PROMPT, TOOLS), "it runs"))
    pid = endless_readers.pid
    events, num_read = asyncio.run(read())
    assert joined(events) == ("", LONG, [])
    assert num_read > 1
    assert endless_readers.pid == pid


def test_what_was_held_back_is_not_lost(endless_readers: TemplateReaders) -> None:
    async def read() -> list[Any]:
        reader = endless_readers.reader(spec_of(ENDLESS), PROMPT, TOOLS)
        events = [event for text in ("Yes. <tool_call>half", " of it</tool") for event in await reader.feed(text)]
        events += await reader.feed("_call>" + LONG)
        assert reader.has_failed
        return events + await reader.feed("more") + await reader.finish()

    content = joined(asyncio.run(read()))[1]
    assert content.startswith("Yes.")
    assert "half of it</tool_call>baa" in content
    assert content.endswith("!more")


def test_a_template_that_cannot_be_loaded_leaves_text() -> None:
    broken = TemplateReaders()
    spec = spec_of({"start_anchor": "x", "fields": {"content": {"open_pattern": "("}}})
    for _ in range(2):
        assert joined(asyncio.run(read_whole(broken.reader(spec, "", ()), "Yes.")))[1] == "Yes."
    assert broken.pid is None


def test_a_process_that_was_killed_starts_again(readers: TemplateReaders) -> None:
    async def read() -> str:
        return joined(await read_whole(readers.reader(spec_of(PLAIN), PROMPT, TOOLS), "<think>a</think>Yes."))[1]

    assert asyncio.run(read()) == "Yes."
    process = readers._process
    assert process is not None
    process.kill()
    process.wait()
    assert asyncio.run(read()) == "Yes."
    assert readers.pid != process.pid


@pytest.mark.parametrize(
    ("template", "tags", "is_json"),
    [
        (PLAIN, ("<think>", "</think>"), True),
        (TAGGED, None, False),
        ({"fields": {"reasoning": {"open": ["<a>", "<b>"], "close": "<|im_end|>"}}}, ("<a>", "<|im_end|>"), False),
        ({"fields": {"tool_calls": {"content": "json", "content_args": {"unquoted_keys": True}}}}, None, False),
    ],
)
def test_what_a_template_says(tmp_path: Path, template: Any, tags: Any, is_json: bool) -> None:
    spec = ResponseSpec.of(with_template(tmp_path, template))
    assert spec is not None
    assert (spec.tags, spec.calls_are_json) == (tags, is_json)
    assert ("<|im_end|>" in spec.specials) == ("im_end" in json.dumps(template))
    family = spec.family(("enable_thinking",))
    assert (family and (family.name, family.toggle)) == (tags and ("response_template", "enable_thinking"))


@pytest.mark.parametrize("template", ["text", {}, {"fields": 1}, {"fields": {"content": 1}}])
def test_what_is_no_template(tmp_path: Path, template: Any) -> None:
    with pytest.raises(ConfigError, match="response_template"):
        ResponseSpec.of(with_template(tmp_path, template))


def test_most_tokenizers_have_none(tokenizer: Tokenizer) -> None:
    assert ResponseSpec.of(tokenizer) is None
