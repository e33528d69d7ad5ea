"""What the check_….py files share: where the server is, and a report of each check on a line of its own.

These files run in the environment of their client, which has neither Palladio nor pytest.
"""

import asyncio
import contextlib
import inspect
import json
import os
import sys
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

URL = os.environ["PALLADIO_URL"]  # without /v1
KEY = os.environ["PALLADIO_KEY"]
MODEL = os.environ["PALLADIO_MODEL"]  # the served name
MODEL_DIR = os.environ["PALLADIO_MODEL_DIR"]  # its directory, for clients that tokenize
OK, FAILED = "check ok: ", "check FAILED: "  # what scripts/clients.py reads


def run_checks(module: str = "__main__") -> None:
    """Runs the functions of a module that are named check_…, in order, and ends the process: 1 if one failed."""
    failed = False
    for name, function in list(vars(sys.modules[module]).items()):
        if name.startswith("check_") and inspect.isfunction(function):
            failed |= not _passes(name.removeprefix("check_").replace("_", " "), function)
    sys.exit(int(failed))


def _passes(name: str, function: Callable[[], Any]) -> bool:
    try:
        result = function()
        if inspect.iscoroutine(result):
            asyncio.run(result)
    except Exception as error:  # noqa: BLE001 - a failed check is told, and the others go on
        traceback.print_exc()
        print(f"{FAILED}{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
        return False
    print(f"{OK}{name}", flush=True)
    return True


@contextlib.contextmanager
def raises(kind: type[BaseException], *words: str) -> Iterator[None]:
    """The block has to raise this, with these words in its message or in its attributes, such as `code`."""
    try:
        yield
    except kind as error:
        text = f"{error} {vars(error)}"
        missing = [word for word in words if word not in text]
        if missing:
            raise AssertionError(f"{missing} not in {text}") from error
        return
    raise AssertionError(f"no {kind.__name__} was raised")


def bias_to(token: str) -> dict[str, int]:
    """A logit_bias with which an output ends as soon as its grammar lets it: a random model would write on and on.

    Args:
        token: `}` ends an object, `<|im_end|>` the output.
    """
    body = json.dumps({"prompt": token, "add_special_tokens": False}).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{URL}/tokenize", body, headers)) as answer:
        (token_id,) = json.load(answer)["tokens"]
    return {str(token_id): 100}


def equal(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r} instead of {wanted!r}")


def true(condition: object, what: object = "") -> None:
    if not condition:
        raise AssertionError(f"not so: {what!r}")
