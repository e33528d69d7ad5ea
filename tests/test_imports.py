"""What importing a module brings into the process: found out in processes of their own."""

import subprocess
import sys

from tests.test_architecture import ROOT, RUNTIME_FACE

# The modules of the runtime that may import jax. All others are the host side: importing them must not bring jax in.
DEVICE_SIDE = {
    *("batch_builder", "compilation", "compile_only", "compile_plan", "deployment", "device_choice", "device_state"),
    "embedding_plan",
    *("follower", "several_hosts"),
    *("engine_core", "engine_design", "group_programs"),
    *("kernel_choice", "memory", "model_runner", "out_of_memory", "pooler", "precompile", "profiler", "program_set"),
    "program_store",
    *("sampler", "sampler_state", "scoring", "sizing", "startup", "step_executor", "step_functions", "step_programs"),
    *("warm_up", "workspace", "workspace_estimate"),
}


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


def test_the_list_above_names_files_that_exist():
    assert {file.stem for file in (ROOT / "runtime").glob("*.py")} >= DEVICE_SIDE
    assert not RUNTIME_FACE & DEVICE_SIDE


def test_host_side_rooms_never_import_jax():
    host_side = sorted({file.stem for file in (ROOT / "runtime").glob("*.py")} - DEVICE_SIDE)
    modules = [f"palladio.runtime.{name}" for name in host_side]
    _import_leaves_out([*modules, "palladio.model.config"], ["jax", "jaxlib", "flax", "torch"])


def test_the_face_and_http_never_import_jax():
    _import_leaves_out(["palladio", "palladio.utils", "palladio.http.app"], ["jax", "jaxlib", "flax", "torch"])


def test_importing_the_face_loads_nothing():
    _import_leaves_out(["palladio"], ["fastapi", "transformers", "numpy", "tyro", "zmq", "palladio.runtime"])


def test_the_command_line_runs_without_jax_in_its_process():
    _import_leaves_out(["palladio.__main__", "palladio.launch_server"], ["jax", "jaxlib", "flax", "torch"])


def test_offline_use_needs_no_server_libraries():
    code = "from palladio import Engine, SamplingParams"
    blocked = ["fastapi", "starlette", "uvicorn", "zmq", "msgspec", "tyro", "llguidance", "orjson"]
    blocks = "".join(f"sys.modules[{name!r}] = None; " for name in blocked)
    subprocess.run([sys.executable, "-c", f"import sys; {blocks}{code}"], cwd=ROOT, check=True)
