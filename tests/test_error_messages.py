"""Messages of errors that some route renders with other names of fields mention these fields by placeholders only."""

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path

from palladio.http.anthropic import anthropic_chat
from palladio.http.chat.chat_plan import engine_names
from palladio.http.responses import response_chat
from palladio.http.routes import routes_generate
from palladio.http.wire.protocol_chat import ChatRequest

ROOT = Path(__file__).resolve().parent.parent
# Who raises errors of a form that a route has translated its request to. Other rooms name their clients' own fields.
FOLDERS = (
    *("runtime/interface", "runtime/front", "runtime/grammar", "runtime/text", "runtime/scheduling", "runtime/process"),
    *("http/chat", "http/prompts", "http/generation", "http/tool_calls"),
)
FILES = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))] + [ROOT / "http/wire/body.py"]
ERRORS = {"InvalidRequestError", "ContextLengthError", "RenderLimitError"}
COMPUTED = {  # templates that are no constants
    "runtime/grammar/limits.py": "its callers give constants",
    "runtime/interface/errors.py": "`of` itself",
}
OWN_NAMES = {  # messages with a renamable name, said before any translation
    "functions and function_call cannot be combined with tools; use tools": "of two fields of chat itself",
}

_CHAT = ChatRequest(messages=[{}], functions=[{}], max_completion_tokens=1)
RENAMABLE = {
    *anthropic_chat._PATHS,
    *response_chat._PATHS,
    *routes_generate._ALIASES,
    *engine_names(_CHAT, "response_format").paths,
    "messages",
}
WORDS = {name for path in RENAMABLE for name in (path, path.split(".")[0])}
# A name with an underscore or a dot is never a word of English; others are fields where a verb follows.
FIELD = re.compile(
    r"(?<![\w.])("
    + "|".join(re.escape(word).replace(r"\*", r"\d+") for word in sorted(WORDS) if re.search(r"[_.]|logprobs", word))
    + r")(?![\w])|\A("
    + "|".join(sorted(word for word in WORDS if word.isalpha()))
    + r")(?= (must|takes|has|have|needs|is|are)\b|:|\Z)"
)


def _value(node: ast.expr, function: ast.AST) -> ast.expr:
    """What an argument is: itself, or what was assigned to its name last before it in the function."""
    values = []
    if not isinstance(node, ast.Name):
        return node
    for found in ast.walk(function):
        if isinstance(found, ast.Assign) and found.lineno <= node.lineno:
            for target in found.targets:
                pairs = [(target, found.value)]
                if isinstance(target, ast.Tuple) and isinstance(found.value, ast.Tuple):
                    pairs = list(zip(target.elts, found.value.elts, strict=True))
                values += [value for name, value in pairs if isinstance(name, ast.Name) and name.id == node.id]
    return max(values, key=lambda value: value.lineno, default=node)


def _texts(node: ast.expr) -> str:
    """The words of a string: values of an f-string, and placeholders, are left out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
    return ""


def _calls(tree: ast.AST) -> Iterator[tuple[ast.Call, bool, ast.AST]]:
    """Each call that makes such an error, whether it is by `of`, and the function around it."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                match node.func:
                    case ast.Name(name) if name in ERRORS:
                        yield node, False, function
                    case ast.Attribute(ast.Name(name), "of") if name in ERRORS:
                        yield node, True, function


def _faults(call: ast.Call, is_of: bool, function: ast.AST) -> Iterator[str]:
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    param = keywords.get("param")
    names = {node.id for node in ast.walk(param) if isinstance(node, ast.Name)} if param is not None else set()
    message = _value(call.args[0], function)
    text = _texts(message)
    if is_of and not isinstance(message, ast.Constant):
        yield "its template is no constant: a value in it could hold a placeholder"
        return
    if is_of:
        parsed = list(string.Formatter().parse(text))
        text = "\0".join(words for words, *_ in parsed)
        fields = _value(keywords["fields"], function) if "fields" in keywords else None
        known = {name for name in keywords if name not in ("fields", "code")}
        if isinstance(fields, ast.Dict):
            known |= {key.value for key in fields.keys if isinstance(key, ast.Constant)}
        used = {name for _, name, *_ in parsed if name is not None}
        if used - known:
            yield f"no value for {used - known}"
        if known - used - {"param"}:
            yield f"nothing mentions {known - used}"
    elif isinstance(message, ast.JoinedStr):
        values = {ast.unparse(part.value) for part in message.values if isinstance(part, ast.FormattedValue)}
        if values & names:
            yield "it writes its param's path into its words: use `of` and {param}"
    found = FIELD.search(text)
    if found is not None and text not in OWN_NAMES:
        yield f"it has the name {found[0]!r}, which a route may call otherwise: use `of` and a placeholder"


def faults_of(tree: ast.AST, where: str = "") -> list[str]:
    return [f"{where}:{call.lineno} {fault}" for call, *rest in _calls(tree) for fault in _faults(call, *rest)]


def test_fields_are_mentioned_by_placeholders():
    broken = []
    for file in FILES:
        path = file.relative_to(ROOT).as_posix()
        if path not in COMPUTED:
            broken += faults_of(ast.parse(file.read_text(encoding="utf-8")), path)
    assert not broken, "\n".join(dict.fromkeys(broken))


def test_the_exceptions_are_needed():
    for path in COMPUTED:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert path.endswith("errors.py") or faults_of(ast.parse(text)), path
    texts = "".join(file.read_text(encoding="utf-8") for file in FILES)
    assert all(message in texts for message in OWN_NAMES)


def test_it_finds_them():
    for line in (
        'InvalidRequestError(f"max_tokens ({x}) is too much", param="max_tokens")',
        'InvalidRequestError("stop must be a string", param="stop")',
        'InvalidRequestError("lower response_format.json_schema", param="n")',
        'InvalidRequestError.of("{param} is over max_tokens", param="n")',
        'InvalidRequestError.of(f"{param} is {x}", param="n")',
        'InvalidRequestError.of("{param} is {x}", param="n")',
        'InvalidRequestError.of("{param} is bad", param="n", x=1)',
        'InvalidRequestError(f"{path}.type is bad", param=f"{path}.type")',
        'InvalidRequestError(message, param="n")',
    ):
        code = f'def f(path, x):\n    message = f"{{x}} and max_tokens"\n    raise {line}\n'
        assert len(faults_of(ast.parse(code))) == 1, line
    for line in (
        'InvalidRequestError("Send fewer messages: the prompt has no stop", param="messages")',
        'InvalidRequestError("stop_token_ids must be ids", param="stop_token_ids")',
        'InvalidRequestError(f"n is {x!r}", param="n")',
        'InvalidRequestError.of("{param} is {x!r} of {other}", param="n", x=x, fields={"other": "max_tokens"})',
    ):
        assert not faults_of(ast.parse(f"def f(x):\n    raise {line}\n")), line


def test_no_text_of_an_error_is_rewritten():
    """Names are applied to paths: nobody looks for them in words."""
    rewritten = re.compile(
        r"str\((error|exc)\)\.(replace|translate|removeprefix)\(|re\.sub\([^\n]*\bstr\((error|exc)\)|exc\.args = "
    )
    sources = [*(ROOT / "http").rglob("*.py"), *(ROOT / "runtime").rglob("*.py")]
    assert not [str(file) for file in sources if rewritten.search(file.read_text(encoding="utf-8"))]
