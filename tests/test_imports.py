"""What importing a module brings into the process: found out in processes of their own."""

import subprocess
import sys

from palladio.cli.table import COMMANDS
from tests.source_tree import ROOT, SOURCES
from tests.test_architecture import JAX_FILES, JAX_ROOMS


def _import_leaves_out(modules: list[str], absent: list[str], blocked: list[str] | None = None) -> None:
    code = (
        f"import sys, importlib\n"
        f"for name in {blocked or []!r}: sys.modules[name] = None\n"
        f"for name in {modules!r}:\n"
        f"    importlib.import_module(name)\n"
        f"    found = [other for other in {absent!r} if sys.modules.get(other) is not None]\n"
        f"    if found: sys.exit(f'{{name}} imports {{found}}')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_host_side_rooms_never_import_jax():
    """All of the runtime but the rooms of the device, and the few files that architecture tests list."""
    modules = [
        source.module
        for source in SOURCES
        if source.room == "runtime" and source.path.count("/") > 1
        if source.path.split("/")[1] not in JAX_ROOMS and source.path not in JAX_FILES
    ]
    assert len(modules) > 50
    _import_leaves_out([*modules, "palladio.model.config.config"], ["jax", "jaxlib", "flax", "torch"])


def test_the_face_and_http_never_import_jax():
    _import_leaves_out(["palladio", "palladio.utils", "palladio.http.app"], ["jax", "jaxlib", "flax", "torch"])


def test_importing_the_face_loads_nothing():
    rooms = ["interface", "front", "process.transport", "process.process_transport", "telemetry"]
    heavy = ["fastapi", "transformers", "numpy", "tyro", "zmq", "msgspec"]
    heavy += [f"palladio.runtime.{room}" for room in rooms]
    _import_leaves_out(["palladio", "palladio.__main__"], heavy)  # `palladio help` is instant too


def test_the_command_line_runs_without_jax_in_its_process():
    commands = [command.module for command in COMMANDS.values()]
    _import_leaves_out(["palladio.__main__", *commands], ["jax", "jaxlib", "flax", "torch"])


def test_a_chat_with_a_server_loads_no_server():
    _import_leaves_out(["palladio.commands.chat.chat"], ["fastapi", "transformers", "numpy", "tyro", "zmq"])


def test_offline_use_needs_no_server_libraries():
    code = "from palladio import Engine, SamplingParams"
    blocked = ["fastapi", "starlette", "uvicorn", "zmq", "msgspec", "tyro", "llguidance", "orjson"]
    blocks = "".join(f"sys.modules[{name!r}] = None; " for name in blocked)
    subprocess.run([sys.executable, "-c", f"import sys; {blocks}{code}"], cwd=ROOT, check=True)
