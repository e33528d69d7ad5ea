"""Prints the routes of other servers' wheels as JSON, for tests/http/routes/peer_routes.json.

python scripts/peers/peer_routes.py sglang-0.5.23-….whl vllm-0.32.0-….whl > tests/http/routes/peer_routes.json

It reads the sources in a wheel with `ast` and imports nothing of them: the paths of calls such as `@router.post(PATH)`
and `Mount(PATH, app)`. A path that an environment variable may change is its default; one without a constant is left
out.
"""

import ast
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDERS: Final = {"sglang": ("sglang/srt/entrypoints/", "sglang/srt/utils/common.py"), "vllm": ("vllm/entrypoints/",)}
OTHER_SERVERS: Final = (  # in these folders: processes beside the server, and pages of documentation
    *("engine_info_bootstrap_server.py", "entrypoints/cli/", "launchers/dp_supervisor.py", "offline_docs.py"),
)
METHODS: Final = {"get", "post", "put", "delete", "patch", "websocket", "api_route", "add_api_route"}


def routes_of(source: str) -> Iterator[str]:
    """The paths that a module gives to a router or an application."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        path, called = _constant(node.args[0]), node.func
        is_method = isinstance(called, ast.Attribute) and called.attr in METHODS
        is_mount = isinstance(called, ast.Name) and called.id == "Mount"
        if (is_method or is_mount) and path is not None and path.startswith("/"):
            yield path


def _constant(node: ast.expr) -> str | None:
    """A string, or the default of a variable of the environment."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv") and len(node.args) == 2:
        node = node.args[1]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def routes_of_wheel(wheel: Path) -> list[str]:
    """All paths of the server in a wheel, in order."""
    folder, found = FOLDERS[wheel.name.partition("-")[0]], set()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(folder) and name.endswith(".py") and not any(other in name for other in OTHER_SERVERS):
                found |= {*routes_of(archive.read(name).decode("utf-8"))}
    return sorted(found)


def main(wheels: list[str]) -> None:
    """Prints each server's name and version, and its paths."""
    found = {" ".join(Path(wheel).name.split("-")[:2]): routes_of_wheel(Path(wheel)) for wheel in wheels}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
