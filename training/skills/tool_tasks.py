"""Purposes of tools: names, descriptions, questions and values that tools are made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from training.skills.extraction import FIRST_NAMES, MONTHS, city, person
from training.source import Source


@dataclass(frozen=True, slots=True)
class Task:
    """A purpose of a tool.

    Attributes:
        verbs, objects: parts of the tool's name.
        described: its description.
        asked: questions, with a field in braces for each parameter.
        values: parameters, each with its possible values.
        result: possible results of the tool; told: how the answer reports them.
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


def _chore(source: Source) -> str:
    return source.pick(
        ("water the plants", "call the bank", "buy milk", "pay the rent", "feed the cat", "clean the car")
    )


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
    Task(
        ("search", "query", "browse"),
        ("web", "internet", "pages"),
        ("Search the web", "Looks something up on the internet"),
        (
            *("Search the web for {query}.", "Look up {query} on the internet.", "Find pages about {query}."),
            *("Google {query} for me.", "What does the web say about {query}?"),
        ),
        {"query": _topic},
        "{n} pages",
        "The web has {result} about {query}.",
    ),
    Task(
        ("add", "create", "save"),
        ("todo", "task", "reminder"),
        ("Put something on the list of things to do", "Saves a task for later"),
        (
            *(
                "Put {task} on my list.",
                "Remind me to do this: {task}.",
                "Add a task: {task}.",
                "Do not let me forget: {task}.",
            ),
            *("Write {task} on my to-do list.", "Note for later: {task}."),
        ),
        {"task": _chore},
        "saved",
        "I put {task} on your list: {result}.",
    ),
    Task(
        ("get", "check", "track"),
        ("order", "package", "delivery"),
        ("State of an order", "Tells where a package is"),
        (
            *(
                "Where is my order {order}?",
                "Track order {order}.",
                "What about package {order}?",
                "Check order {order}.",
            ),
            *("Has order {order} been sent?", "I am waiting for order {order}."),
        ),
        {"order": lambda source: source.number(100, 9999)},
        "on its way",
        "Order {order} is {result}.",
    ),
    Task(
        ("get", "fetch", "look_up"),
        ("stock_price", "share_price", "quote"),
        ("Price of a share", "Tells what a company's share costs"),
        (
            *(
                "What does a share of {company} cost?",
                "Share price of {company}?",
                "How is {company} doing on the market?",
            ),
            *("What is the stock price of {company}?", "Quote for {company}, please."),
        ),
        {"company": city},
        "{n} dollars",
        "A share of {company} costs {result}.",
    ),
    Task(
        ("find", "get", "look_up"),
        ("person", "contact", "phone_number"),
        ("Look up a person's phone number", "Finds a contact by name"),
        (
            *("What is the phone number of {name}?", "Find the contact of {name}.", "How can I call {name}?"),
            *("Look up {name} in my contacts.", "I need the number of {name}."),
        ),
        {"name": person},
        "555 {n}",
        "The number of {name} is {result}.",
    ),
)
