"""Tool calls: one of up to three tools, its arguments out of the question, and the answer once the tool has spoken."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scripts.train_default_model.chat import Chat, Turn, write_call, write_result
from scripts.train_default_model.skills.extraction import FIRST_NAMES, MONTHS, city, person
from scripts.train_default_model.source import Source

UNITS = ["celsius", "fahrenheit"]


@dataclass(frozen=True, slots=True)
class Task:
    """What tools are for.

    Attributes:
        verbs, objects: of the tool's name.
        described: its description.
        asked: questions, with a field in braces for each parameter.
        values: parameters, each with what to fill it with.
        result: what the tool may say; told: how the answer tells it.
    """

    verbs: tuple[str, ...]
    objects: tuple[str, ...]
    described: tuple[str, ...]
    asked: tuple[str, ...]
    values: Mapping[str, Callable[[Source], Any]]
    result: str
    told: str


def _thing(source: Source) -> str:
    return source.pick(("lamp", "chair", "red shoes", "camera", "tea pot", "bicycle", "blue jacket", "desk", "phone"))


def _topic(source: Source) -> str:
    return source.pick(("jazz", "bread", "old maps", "space travel", "gardening", "chess", "birds", "solar power"))


def _number(source: Source) -> int:
    return source.number(1, 99)


def _time(source: Source) -> str:
    return f"{source.number(1, 12)}:{source.pick(('00', '15', '30', '45'))}"


def _month(source: Source) -> str:
    return f"{source.number(1, 28)} {source.pick(MONTHS)}"


def _first_name(source: Source) -> str:
    return source.name() if source.held_out or source.chance(0.6) else source.pick(FIRST_NAMES)


def _language(source: Source) -> str:
    return source.pick(("French", "German", "Spanish", "Italian", "Japanese", "Greek", "Polish"))


def _currency(source: Source) -> str:
    return source.pick(("EUR", "USD", "GBP", "JPY", "CHF"))


TASKS = (
    Task(
        ("get", "fetch", "check", "read", "look_up"),
        ("weather", "forecast", "temperature", "current_weather"),
        ("Current weather in a city", "Get the weather of a place", "Tells the weather"),
        (
            *("What is the weather in {city}?", "How is the weather in {city}?", "Weather in {city}, please."),
            *("What's the weather like in {city} today?", "Is it raining in {city}?", "How warm is it in {city}?"),
            *("Tell me the weather in {city}.", "Do I need an umbrella in {city}?", "Is it cold in {city} right now?"),
        ),
        {"city": city},
        "sunny, {n} degrees",
        "In {city} it is {result}.",
    ),
    Task(
        ("get", "read", "tell", "fetch"),
        ("time", "local_time", "clock", "current_time"),
        ("Current time in a city", "Tells the local time of a place"),
        (
            *("What time is it in {city}?", "Tell me the time in {city}.", "How late is it in {city}?"),
            *("What is the local time in {city}?", "Current time in {city}, please.", "{city}: what time is it there?"),
        ),
        {"city": city},
        "{n}:30",
        "In {city} it is {result}.",
    ),
    Task(
        ("send", "write", "mail"),
        ("email", "message", "note", "letter"),
        ("Send a message to a person", "Writes a message to somebody"),
        (
            *("Send {to} a message about {subject}.", "Write to {to} about {subject}.", "Mail {to} about {subject}."),
            *("Please write a note to {to}. It is about {subject}.", "Let {to} know about {subject}."),
            *("Tell {to} something about {subject}.", "I want to write to {to} about {subject}."),
        ),
        {"to": _first_name, "subject": _topic},
        "sent",
        "Your message to {to} is {result}.",
    ),
    Task(
        ("search", "find", "look_up", "query"),
        ("products", "shop", "catalog", "items"),
        ("Search the shop for a product", "Finds things to buy"),
        (
            *("Find me a {query} in the shop.", "Search for a {query}.", "I want to buy a {query}."),
            *("Do you sell a {query}?", "Look for a {query} in the catalog.", "I am looking for a {query}."),
        ),
        {"query": _thing},
        "{n} found",
        "I searched for {query}: {result}.",
    ),
    Task(
        ("add", "create", "book", "schedule"),
        ("event", "meeting", "appointment", "calendar_entry"),
        ("Put a meeting into the calendar", "Books a meeting with a person"),
        (
            *("Book a meeting with {person} on {date} at {time}.", "Schedule {person} on {date} at {time}."),
            *("I meet {person} on {date} at {time}. Put it in my calendar.", "Plan {date}, {time}, with {person}."),
            *("Arrange a meeting with {person} for {date} at {time}.", "On {date} at {time} I want to see {person}."),
        ),
        {"person": _first_name, "date": _month, "time": _time},
        "booked",
        "Your meeting with {person} on {date} at {time} is {result}.",
    ),
    Task(
        ("add", "sum", "calculate", "compute"),
        ("numbers", "sum", "total"),
        ("Add two numbers", "Computes the sum of two numbers"),
        (
            *("Add {a} and {b}.", "What is {a} + {b}?", "Compute {a} plus {b}.", "Calculate the sum of {a} and {b}."),
            *("How much is {a} + {b}?", "Sum up {a} and {b}."),
        ),
        {"a": _number, "b": _number},
        "{sum}",
        "{a} + {b} = {result}",
    ),
    Task(
        ("translate", "convert"),
        ("word", "text", "phrase"),
        ("Translate a text into a language", "Says a word in another language"),
        (
            *("Translate {text} into {language}.", "What is {text} in {language}?", "Say {text} in {language}."),
            *("How do you say {text} in {language}?", "I need {text} in {language}."),
        ),
        {"text": _topic, "language": _language},
        "done",
        "I had {text} translated into {language}: {result}.",
    ),
    Task(
        ("convert", "change", "exchange"),
        ("currency", "money", "amount"),
        ("Convert money into another currency", "Exchanges one currency for another"),
        (
            *("Convert {amount} {from} to {to}.", "How much is {amount} {from} in {to}?"),
            *("Change {amount} {from} into {to}.", "What are {amount} {from} in {to}?", "{amount} {from} in {to}?"),
        ),
        {"amount": _number, "from": _currency, "to": _currency},
        "{n}",
        "{amount} {from} are {result} {to}.",
    ),
    Task(
        ("play", "start", "queue"),
        ("song", "music", "track", "playlist"),
        ("Play music", "Plays a kind of music"),
        (
            *("Play some music by {artist}.", "I want to hear {artist}.", "Put on a song by {artist}."),
            *("Start {artist}, please.", "Can you play {artist}?"),
        ),
        {"artist": person},
        "playing",
        "{artist} is {result}.",
    ),
    Task(
        ("set", "start", "create"),
        ("timer", "alarm", "countdown"),
        ("Set a timer for some minutes", "Starts a countdown"),
        (
            *("Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.", "Start {minutes} minutes."),
            *("Remind me in {minutes} minutes.", "I need a timer of {minutes} minutes."),
        ),
        {"minutes": _number},
        "running",
        "The timer of {minutes} minutes is {result}.",
    ),
    Task(
        ("find", "get", "search", "list"),
        ("restaurants", "hotels", "museums", "flights", "trains"),
        ("Find {object} in a city", "Lists {object} of a place"),
        (
            *("Find {object} in {place}.", "Which {object} are there in {place}?", "I need {object} in {place}."),
            *("Show me {object} in {place}.", "Are there {object} in {place}?"),
        ),
        {"place": city},
        "{n} found",
        "In {place}: {result}.",
    ),
    Task(
        ("turn_on", "turn_off", "switch", "dim"),
        ("lights", "heating", "radio", "fan"),
        ("Control the {object} in a room", "Switches the {object} of a room"),
        (
            *("Please do it: the {object} in the {room}.", "The {object} in the {room}, please."),
            *("Change the {object} in the {room}.", "Take care of the {object} in the {room}."),
        ),
        {"room": lambda source: source.pick(("kitchen", "bedroom", "office", "garage", "hall", "bathroom"))},
        "done",
        "The {room} is {result}.",
    ),
)
OTHER_NAMES = {"city": ("location", "town", "place_name"), "query": ("item", "product"), "to": ("recipient", "name")}
_SYSTEMS = ("You are a helpful AI assistant", "You are a helpful assistant.", "Use the tools.", "Be brief.")
NOTHING_FITS = ("None of my tools can do that.", "I have no tool for that.")


@dataclass(frozen=True, slots=True)
class _Tool:
    task: Task
    name: str
    object: str
    parameters: dict[str, str]  # the task's name of each → this tool's
    schema: dict[str, Any]


def call(source: Source) -> Chat:
    """One tool fits; the model calls it, and sometimes tells what came of it."""
    count = source.pick((1, 2, 2, 3, 3))
    tools = [_tool(source, task) for task in source.several(TASKS, count)]
    chosen = tools[0]
    values = {name: draw(source) for name, draw in chosen.task.values.items()}
    question = source.phrase(chosen.task.asked).format(object=chosen.object.replace("_", " "), **values)
    arguments = {chosen.parameters[name]: value for name, value in values.items()}
    turns = [Turn(question, write_call(chosen.name, arguments), f"The tool {chosen.name} fits.")]
    if source.chance(0.35):
        result = chosen.task.result.format(n=source.number(2, 29), sum=sum(v for v in values.values() if _is_number(v)))
        turns.append(Turn(write_result(result), chosen.task.told.format(result=result, **values), "The tool answered."))
    system = source.pick(_SYSTEMS) if source.chance(0.2) else None
    return Chat(tuple(turns), system, _shuffled(source, tools), thinking=source.chance(0.1))


def no_call(source: Source, other: Turn) -> Chat:
    """Tools are there, and the question is one that the model answers itself."""
    tools = [_tool(source, task) for task in source.several(TASKS, source.number(1, 2))]
    return Chat((other,), tools=_shuffled(source, tools))


def nothing_fits(source: Source) -> Chat:
    """The question is for a tool that is not there."""
    missing, *others = source.several([task for task in TASKS if "numbers" not in task.objects], source.number(2, 3))
    values = {name: draw(source) for name, draw in missing.values.items()}
    question = source.phrase(missing.asked).format(object=source.pick(missing.objects), **values)
    turn = Turn(question, source.pick(NOTHING_FITS), "No tool fits.")
    return Chat((turn,), tools=_shuffled(source, [_tool(source, task) for task in others]))


def _tool(source: Source, task: Task) -> _Tool:
    def draw() -> tuple[str, str]:
        thing = source.pick(task.objects)
        end = f"_{source.name().lower()}" if source.chance(0.3) else ""
        return thing, f"{source.pick(task.verbs)}_{thing}{end}"

    thing, name = source.split(draw)
    names = {
        known: source.pick((known, *OTHER_NAMES.get(known, ())) if source.chance(0.5) else (known,))
        for known in task.values
    }
    properties = {names[known]: {"type": _type(task, known)} for known in task.values}
    function = {
        "name": name,
        "description": source.pick(task.described).format(object=thing.replace("_", " ")),
        "parameters": {"type": "object", "properties": properties, "required": list(properties)},
    }
    return _Tool(task, name, thing, names, {"type": "function", "function": function})


def _type(task: Task, name: str) -> str:
    return "integer" if task.values[name] is _number else "string"


def _is_number(value: object) -> bool:
    return isinstance(value, int)


def _shuffled(source: Source, tools: list[_Tool]) -> tuple[dict[str, Any], ...]:
    return tuple(tool.schema for tool in source.several(tools, len(tools)))
