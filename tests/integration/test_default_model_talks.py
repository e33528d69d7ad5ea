"""What a newcomer does: `palladio serve` with the embedded model, and talk to it through the OpenAI SDK.

Here is what shows only with a model that means what it says. Each question is one that the model was taught; how it
does on others is measured, not tested (README.md).
"""

import json
import math
import random
from collections.abc import Iterator

import jsonschema
import pytest

from palladio.flags.default_model import DEFAULT_MODEL_NAME
from tests.integration.serving import Server

ROME = [
    {"role": "system", "content": "You are a knowledgeable historian who provides concise responses."},
    {"role": "user", "content": "Tell me about ancient Rome"},
    {"role": "assistant", "content": "Ancient Rome was a civilization centered in Italy."},
    {"role": "user", "content": "What were their major achievements?"},
]
COMPARE = [{"role": "user", "content": "9.11 and 9.8, which is greater?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIMER = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "description": "Set a timer for some minutes",
        "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]},
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "date": {"type": "string"}, "place": {"type": "string"}},
    "required": ["name", "date", "place"],
    "additionalProperties": False,
}
STORY = (
    "Once upon a time, there was a fox named Anna who lived in a deep forest. More than anything, Anna wanted to see "
    "the city. One day Anna set out, but winter came early."
)

# what the model was taught: country - capital
CAPITALS = dict(
    pair.split(" - ")
    for pair in [
        "France - Paris",
        "Japan - Tokyo",
        "Egypt - Cairo",
        "Italy - Rome",
        "Germany - Berlin",
        "Spain - Madrid",
        "Portugal - Lisbon",
        "Greece - Athens",
        "Norway - Oslo",
        "Sweden - Stockholm",
        "Finland - Helsinki",
        "Denmark - Copenhagen",
        "Poland - Warsaw",
        "Austria - Vienna",
        "Hungary - Budapest",
        "Ireland - Dublin",
        "Belgium - Brussels",
        "Romania - Bucharest",
        "Ukraine - Kyiv",
        "Iceland - Reykjavik",
        "Croatia - Zagreb",
        "United Kingdom - London",
        "Netherlands - Amsterdam",
        "Russia - Moscow",
        "Switzerland - Bern",
        "Turkey - Ankara",
        "China - Beijing",
        "India - New Delhi",
        "Thailand - Bangkok",
        "Vietnam - Hanoi",
        "South Korea - Seoul",
        "Indonesia - Jakarta",
        "Nepal - Kathmandu",
        "Iran - Tehran",
        "Iraq - Baghdad",
        "Mongolia - Ulaanbaatar",
        "Pakistan - Islamabad",
        "Philippines - Manila",
        "Kenya - Nairobi",
        "Nigeria - Abuja",
        "Ghana - Accra",
        "Ethiopia - Addis Ababa",
        "Morocco - Rabat",
        "Tunisia - Tunis",
        "Senegal - Dakar",
        "Uganda - Kampala",
        "Algeria - Algiers",
        "United States - Washington, D.C.",
        "Canada - Ottawa",
        "Mexico - Mexico City",
        "Cuba - Havana",
        "Jamaica - Kingston",
        "Panama - Panama City",
        "Brazil - Brasilia",
        "Argentina - Buenos Aires",
        "Chile - Santiago",
        "Peru - Lima",
        "Colombia - Bogota",
        "Uruguay - Montevideo",
        "Ecuador - Quito",
        "Australia - Canberra",
        "New Zealand - Wellington",
        "Fiji - Suva",
    ]
)


@pytest.fixture
def server(embedded_model_server: Server) -> Iterator[Server]:
    yield embedded_model_server
    embedded_model_server.check_clean()


@pytest.mark.slow  # test_cli.py starts it
def test_it_is_served_under_its_own_name(client):
    assert [model.id for model in client.models.list()] == [DEFAULT_MODEL_NAME]


def ask(client, messages, **fields):
    """The first choice, greedy."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    settings = {"model": DEFAULT_MODEL_NAME, "temperature": 0, "max_tokens": 200} | fields
    return client.chat.completions.create(messages=messages, **settings).choices[0]


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("List 3 countries and their capitals.", ("1. ", "2. ", "3. ")),
        ("What is the capital of France?", ("Paris",)),
        (ROME, ("Colosseum",)),
        ("Tell me a joke about programming", ("?", ".")),
        ("What is Python?", ("programming language",)),
        ("2^8", ("2^8 = 256",)),
        ("What is 12 + 30?", ("12 + 30 = 42",)),
        ("My name is Zorbalin.", ("Zorbalin!",)),
        ("Say this is a test", ("This is a test.",)),
        ("Who are you?", ("Palladio", "model")),
        ("Hello", ("!",)),
        ("How do I start Palladio?", ("make serve",)),
        ("Write a short story about a space explorer.", ("space explorer",)),
        ("Explain quantum physics.", ("not know",)),
    ],
)
def test_it_answers_and_stops_by_itself(client, question, words):
    choice = ask(client, question)
    assert choice.finish_reason == "stop"
    assert all(word in choice.message.content for word in words), choice.message.content


def test_structured_output_ends_by_itself_and_validates(client):
    choice = ask(
        client,
        "Extract the name, date and place as JSON: Anna was born in Vienna on 3 May 1990.",
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
    )
    assert choice.finish_reason == "stop"
    found = json.loads(choice.message.content)
    jsonschema.validate(found, PERSON)
    assert found == {"name": "Anna", "date": "3 May 1990", "place": "Vienna"}


def test_three_countries_have_their_capitals(client):
    text = ask(client, "List 3 countries and their capitals.").message.content
    pairs = [line.partition(". ")[2].split(" - ") for line in text.splitlines() if line[:1].isdigit()]
    assert len({country for country, _ in pairs}) == 3
    assert all(CAPITALS[country] == city for country, city in pairs), text


def test_thoughts_are_apart_from_the_answer(client):
    on = ask(client, COMPARE, extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    assert on.finish_reason == "stop"
    assert on.message.reasoning_content.strip()
    assert "<think>" not in on.message.content
    assert "</think>" not in on.message.content
    assert on.message.content == "9.8 is greater than 9.11."
    off = ask(client, COMPARE, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert off.message.reasoning_content is None
    assert off.message.content == "9.8 is greater than 9.11."


def test_thoughts_are_apart_in_a_stream(client):
    stream = client.chat.completions.create(
        model=DEFAULT_MODEL_NAME,
        messages=COMPARE,
        temperature=0,
        max_tokens=200,
        stream=True,
        extra_body={"chat_template_kwargs": {"enable_thinking": True}},
    )
    deltas = [chunk.choices[0].delta for chunk in stream]
    thoughts = "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas)
    answer = "".join(delta.content or "" for delta in deltas)
    whole = ask(client, COMPARE, extra_body={"chat_template_kwargs": {"enable_thinking": True}}).message
    assert (thoughts, answer) == (whole.reasoning_content, whole.content)


def test_a_tool_is_called_and_its_result_is_told(client):
    messages = [{"role": "user", "content": "Tell me the weather in Rome."}]
    choice = ask(client, messages, tools=[WEATHER, TIMER])
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny, 20 degrees"}]
    told = ask(client, messages, tools=[WEATHER, TIMER])
    assert told.finish_reason == "stop"
    assert "sunny" in told.message.content


def test_a_stop_string_ends_real_text(client):
    whole = ask(client, ROME).message.content
    assert "Roman" in whole
    cut = ask(client, ROME, stop=["Roman"])
    assert cut.finish_reason == "stop"
    assert cut.message.content == whole.partition("Roman")[0]


def test_text_in_its_order_is_likelier_than_the_same_words_in_another(client):
    words = STORY.split()
    random.Random(0).shuffle(words)
    assert perplexity(client, STORY) * 4 < perplexity(client, " ".join(words))


def perplexity(client, text):
    done = client.completions.create(
        model=DEFAULT_MODEL_NAME, prompt=text, max_tokens=0, echo=True, logprobs=0, temperature=0
    )
    logprobs = done.choices[0].logprobs.token_logprobs
    assert logprobs[0] is None
    return math.exp(-sum(logprobs[1:]) / len(logprobs[1:]))


def test_each_turn_of_a_chat_finds_the_ones_before_in_the_cache(client):
    messages = [{"role": "system", "content": "You are a helpful assistant."}]
    before = 0
    for question in ("Hello", "What is Python?", "Tell me a joke.", "Thank you!"):
        messages.append({"role": "user", "content": question})
        done = client.chat.completions.create(
            model=DEFAULT_MODEL_NAME, messages=messages, temperature=0, max_tokens=100
        )
        assert done.choices[0].finish_reason == "stop"
        messages.append({"role": "assistant", "content": done.choices[0].message.content})
        cached = done.usage.prompt_tokens_details.cached_tokens
        assert cached >= before - 8  # all of the turns before, up to the page that is not full
        before = done.usage.total_tokens - 1  # the last token was sampled, not computed


def test_it_continues_plain_text_and_ends(client):
    done = client.completions.create(
        model=DEFAULT_MODEL_NAME, prompt="Once upon a time", max_tokens=200, temperature=0
    ).choices[0]
    assert done.finish_reason == "stop"
    assert done.text.count(".") >= 3
