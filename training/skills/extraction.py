"""Names, dates, places and the like, taken out of a sentence as JSON."""

import json
from dataclasses import dataclass

from training.chat import Turn
from training.skills.countries import COUNTRIES
from training.source import Source

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November"),
    "December",
)
FIRST_NAMES = (
    *("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jack", "Kate", "Leo", "Maria"),
    *("Noah", "Olivia", "Paul", "Rosa", "Sam", "Tara", "Victor", "Wendy", "Alice", "Bob", "Carlos", "Diana", "Omar"),
    *("Lena", "Marco", "Nina", "Peter", "Sofia", "Tom", "Yuki", "Zoe", "Ahmed", "Ines", "Jonas", "Laura", "Mia"),
)
EVENTS = (
    *("conference", "concert", "wedding", "meeting", "workshop", "exhibition", "party", "race", "fair", "lecture"),
    *("festival", "reunion", "trial", "match", "ceremony"),
)
OTHER_KEYS = {
    "name": ("person", "who", "full_name"),
    "date": ("day", "when"),
    "place": ("city", "where", "location", "town"),
    "job": ("profession", "work"),
    "event": ("what", "kind"),
    "order": ("order_number", "order_id"),
    "email": ("address", "mail"),
}
JOBS = ("teacher", "doctor", "baker", "painter", "engineer", "pilot", "nurse", "farmer", "writer", "lawyer", "cook")


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence, and what it says by field."""

    text: str
    fields: dict[str, object]


_ASK = (
    "Extract the {fields} as JSON: {text}",
    "Extract the {fields} from this sentence as JSON: {text}",
    "Return the {fields} as JSON. {text}",
    "{text}\nExtract the {fields} as JSON.",
    "Give me the {fields} as a JSON object: {text}",
    "Find the {fields} in this text and answer in JSON: {text}",
    "From the sentence below, extract the {fields} as JSON.\n{text}",
    "{text} Return {fields} as JSON.",
    "Answer with JSON only. What are the {fields}? {text}",
    "Read this: {text} Write the {fields} as JSON.",
    'Extract the {fields}. Use the keys {keys}. "{text}"',
    "Extract {keys} as JSON: {text}",
    "Fill the JSON keys {keys} from this text: {text}",
    "Please turn this into JSON with the {fields}: {text}",
    "Which {fields} are mentioned here? Reply as JSON. {text}",
    "Pull the {fields} out of this sentence and write JSON: {text}",
)
_MENTIONED = (
    "Extract all names as a JSON list: {text}",
    "List the names in this text as a JSON array: {text}",
    "{text}\nGive me the names as a JSON list.",
    "Which people are mentioned? Answer with a JSON array. {text}",
    "Return the names of all people as a JSON list. {text}",
    "Write a JSON array of the people in this text: {text}",
    "Collect the names of the people as a JSON list: {text}",
)


def extraction(source: Source) -> Turn:
    fact = source.pick(_SENTENCES)(source)
    fact = _renamed(source, fact)
    keys = list(fact.fields)
    if len(keys) > 1 and source.chance(0.3):
        keys = source.several(keys, source.number(1, len(keys)))
    answer = json.dumps({key: fact.fields[key] for key in keys}, ensure_ascii=False)
    question = source.phrase(_ASK).format(fields=_join(keys), keys=", ".join(keys), text=fact.text)
    return Turn(question, answer, f"The text says: {_join([f'{key} {fact.fields[key]}' for key in keys])}.")


def _renamed(source: Source, fact: Fact) -> Fact:
    """Sometimes with other words for its keys, which the question then names."""
    fields = {
        source.pick(OTHER_KEYS[key]) if key in OTHER_KEYS and source.chance(0.2) else key: value
        for key, value in fact.fields.items()
    }
    return Fact(fact.text, fields)


def people(source: Source) -> Turn:
    names = [person(source) for _ in range(source.number(2, 4))]
    verb = source.pick(("met", "had dinner", "went for a walk", "played cards", "work together", "talked for hours"))
    place = city(source)
    text = f"{_join(names)} {verb} in {place}."
    return Turn(source.phrase(_MENTIONED).format(text=text), json.dumps(names), f"The names are {_join(names)}.")


def person(source: Source) -> str:
    first = source.pick(FIRST_NAMES) if source.chance(0.4) and not source.held_out else source.name()
    return first if source.chance(0.5) else f"{first} {source.name()}"


def city(source: Source) -> str:
    known = not source.held_out and source.chance(0.4)
    return source.pick(COUNTRIES[:30])[1] if known else source.name()


def date(source: Source) -> str:
    day, month, year = source.number(1, 28), source.pick(MONTHS), source.number(1950, 2035)
    return source.pick((f"{day} {month} {year}", f"{month} {day}, {year}", f"{day} {month}", f"{month} {year}"))


def _met(source: Source) -> Fact:
    name, when, where = person(source), date(source), city(source)
    text = source.pick(
        (
            "{name} was born in {place} on {date}.",
            "On {date}, {name} arrived in {place}.",
            "{name} moved to {place} on {date}.",
            "{name} visited {place} on {date}.",
            "We met {name} in {place} on {date}.",
            "In {place}, {name} signed the papers on {date}.",
        )
    )
    return Fact(text.format(name=name, date=when, place=where), {"name": name, "date": when, "place": where})


def _event(source: Source) -> Fact:
    event, when, where = source.pick(EVENTS), date(source), city(source)
    text = source.pick(
        (
            "The {event} takes place in {place} on {date}.",
            "The {event} in {place} was held on {date}.",
            "Please come to the {event} in {place} on {date}.",
            "On {date} there is a {event} in {place}.",
        )
    )
    return Fact(text.format(event=event, date=when, place=where), {"event": event, "date": when, "place": where})


def _profile(source: Source) -> Fact:
    name, age, job, where = person(source), source.number(18, 90), source.pick(JOBS), city(source)
    text = source.pick(
        (
            "{name} is {age} years old and works as a {job} in {place}.",
            "{name}, {age}, is a {job} from {place}.",
            "{name} is a {job} who lives in {place}. This year {name} turns {age}.",
        )
    )
    fields: dict[str, object] = {"name": name, "age": age, "job": job, "place": where}
    return Fact(text.format(name=name, age=age, job=job, place=where), fields)


def _mail(source: Source) -> Fact:
    name, company = source.name(), source.name()
    mail, order = f"{name.lower()}@{company.lower()}.com", source.number(100, 99999)
    text = source.pick(
        (
            "My name is {name}, my address is {mail} and my order number is {order}.",
            "{name} ({mail}) asks about order {order}.",
            "Order {order} was placed by {name}. Write to {mail}.",
        )
    )
    return Fact(text.format(name=name, mail=mail, order=order), {"name": name, "email": mail, "order": order})


def _trip(source: Source) -> Fact:
    name, start, end, when = person(source), city(source), city(source), date(source)
    text = source.pick(
        (
            "{name} travels from {start} to {end} on {date}.",
            "{name} booked a train from {start} to {end} for {date}.",
            "On {date}, {name} flew from {start} to {end}.",
        )
    )
    fields: dict[str, object] = {"name": name, "from": start, "to": end, "date": when}
    return Fact(text.format(name=name, start=start, end=end, date=when), fields)


_SENTENCES = (_met, _met, _met, _event, _profile, _mail, _trip)


def _join(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
