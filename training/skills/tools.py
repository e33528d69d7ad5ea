"""Tool calls: one of up to three tools, its arguments out of the question, and the answer once the tool has spoken."""

from dataclasses import dataclass
from typing import Any

from training.chat import Chat, Turn, write_call, write_result
from training.skills.tool_tasks import TASKS, Task
from training.source import Source

OTHER_NAMES = {
    "city": ("location", "town", "place_name"),
    "query": ("item", "product", "text"),
    "to": ("recipient", "name", "receiver"),
    "minutes": ("duration", "length"),
    "person": ("guest", "who"),
    "date": ("day",),
    "a": ("x", "first"),
    "b": ("y", "second"),
    "text": ("phrase", "word"),
    "language": ("target",),
    "amount": ("value",),
    "artist": ("singer", "name"),
    "place": ("city", "location"),
    "room": ("area",),
    "subject": ("topic", "title"),
    "order": ("order_id", "number"),
    "company": ("symbol", "name"),
    "name": ("person", "who"),
}
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
    """One tool fits; the model calls it, and sometimes reports the result."""
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
    return "integer" if isinstance(task.values[name](Source("type")), int) else "string"


def _is_number(value: object) -> bool:
    return isinstance(value, int)


def _shuffled(source: Source, tools: list[_Tool]) -> tuple[dict[str, Any], ...]:
    return tuple(tool.schema for tool in source.several(tools, len(tools)))
