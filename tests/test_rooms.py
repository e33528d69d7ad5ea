"""Rooms on floors: which room may import which, on two levels; no folder is flat; the docs show the same."""

import ast
import re
from collections import Counter

import pytest

from tests.source_tree import ROOT, SOURCES
from tests.test_architecture import check, room_of

# The rooms inside the folders, floor by floor from the top. A room imports rooms of lower floors only.
RUNTIME_FLOORS = (
    ("planning",),  # plans for hardware that is not at hand
    ("core",),  # the engine at token level
    ("execution",),  # a step as calls of compiled programs
    ("scheduling", "front"),  # which requests run · the engine as callers see it
    ("grammar", "process", "multihost"),  # which tokens may come next · the border between two processes · hosts
    ("text", "telemetry", "devices"),
    ("folders",),  # for one user alone
    ("interface",),  # what crosses borders
)
HTTP_FLOORS = (
    ("",),  # app, server, middleware
    ("batches",),
    ("routes", "responses", "anthropic", "ollama"),
    ("chat", "files"),
    ("generation",),  # one request on the engine
    ("prompts", "observability"),
    ("security", "pages"),  # keys, owners, browsers, connections · what browsers load
    ("settings", "storage"),
    ("response_templates", "tool_calls"),
    ("reasoning", "wire"),  # wire: bodies, fields, errors
)
MODEL_FLOORS = (
    ("loading",),
    ("",),  # the decoder: a loop over layers
    ("layers",),
    ("cache", "families"),  # what layers keep · a small file a family
    ("config",),  # config.json, and the rules of weights' names
    ("formats",),  # how checkpoints store quantized matrices
    ("gguf", "pooling"),  # pooling: hidden states → vectors of texts
    ("files", "spec", "weights"),  # of a model's folder · layers as values · matrices that multiply
    ("base",),  # errors, sharding
)
KERNEL_FLOORS = (
    ("latent_attention",),
    ("block_matmul", "kv_cache_update", "narrow_matmul", "segment_attention"),
    ("expert_routing", "grouped_matmul", "head_rotation", "ragged_paged_attention", "row_argmax"),
    ("cpu_native", "gated_delta"),
    ("",),  # targets, the choice of a backend, what kernels of a device share
)
FACE_FLOORS = (
    ("",),  # names that people import and start
    ("commands", "ray"),  # what users type · the server as an application of Ray Serve
    ("server",),  # one server process
    ("cli", "terminal"),  # the command line · a chat in a terminal
    ("flags", "load", "processes"),
)
TOP_FLOORS = {
    "palladio": FACE_FLOORS,
    "runtime": RUNTIME_FLOORS,
    "http": HTTP_FLOORS,
    "model": MODEL_FLOORS,
    "pallas_kernels": KERNEL_FLOORS,
}
INNER_FLOORS = {  # of rooms that have rooms; "": the files beside these
    "palladio/commands": (("", "chat", "doctor", "eval", "models", "offline", "plan"),),
    "runtime/interface": (("messages",), ("flags", "request"), ("config", "outputs"), ("",)),
    "runtime/text": (("tokenizers",), ("hub", "schemas", "templates")),
    "runtime/front": (("offline",), ("",), ("requests",), ("control",)),
    "runtime/scheduling": (("",), ("policy",), ("cache",), ("batch",), ("state",)),
    "runtime/execution": (("",), ("compiled",), ("programs",), ("steps",), ("batch", "state"), ("sampling",)),
    "runtime/core": (("",), ("watch",), ("start",), ("trials", "weights"), ("plan",)),
    "model/loading": (("",), ("layout",), ("readers",)),
    "http/observability": (("dashboard",), ("",), ("explain", "metrics"), ("records",)),
    "http/storage": (("",), ("postgresql",), ("blobs", "records")),
    "http/tool_calls": (("",), ("grammars",), ("reading",)),
    "pallas_kernels/ragged_paged_attention": (("",), ("gpu", "tpu"), ("inputs",)),
}
FLOORS = TOP_FLOORS | INNER_FLOORS
TOP_FILES = {  # as the map in the docs names those beside the rooms
    "palladio": "launch_server, utils",
    "http": "app, server, middleware",
    "model": "decoder, functional",
    "pallas_kernels": "target, choice, dispatch",
}
BELOW_ALL = "palladio.version"  # any folder may read it
NO_ROOMS = {"palladio": {"test"}}  # SGLang's names, for tutorials
MAX_FILES = 15  # Python files of a folder, beside `__init__.py`
LISTS_OF_EQUALS = {  # folder → whose files are all alike
    "http/routes": "a file for each group of routes",
    "model/families": "a file for each family of models",
}


def _floor_of(floors: tuple[tuple[str, ...], ...], room: str) -> int:
    """Counted from the top; raises StopIteration for a room that no floor has."""
    return next(number for number, rooms in enumerate(floors) if room in rooms)


def _rooms_of(folder: str) -> set[str]:
    """Of a folder; palladio/ has the other folders too, as links."""
    folders = {inner for inner in (ROOT / folder).iterdir() if any(inner.glob("*.py")) and not inner.is_symlink()}
    return {inner.name for inner in folders} - NO_ROOMS.get(folder, set())


def _module_of(folder: str) -> str:
    parts = folder.split("/")
    return ".".join(parts if parts[0] == "palladio" else ["palladio", *parts])


def _room_in(folder: str, name: str, rooms: set[str]) -> str | None:
    """Which room of the folder an imported name is in, "" for a file beside the rooms; None: it is elsewhere."""
    inner = name.removeprefix(f"{_module_of(folder)}.")
    if inner == name or (folder == "palladio" and room_of(name) != "palladio"):
        return None
    room = inner.split(".")[0]
    return room if room in rooms else ""


@pytest.mark.parametrize(("folder", "floors"), FLOORS.items())
def test_rooms_import_only_rooms_of_lower_floors(folder, floors):
    """Files beside the rooms are on a floor too."""
    broken = []
    rooms = _rooms_of(folder)
    for source in SOURCES:
        parts = source.path.removeprefix(f"{folder}/").split("/")
        if not source.path.startswith(f"{folder}/") or parts == ["__init__.py"] or parts[0] in NO_ROOMS.get(folder, ()):
            continue
        if source.module == BELOW_ALL:
            continue
        room = parts[0] if len(parts) > 1 else ""
        for line, name in source.imports():
            other = _room_in(folder, name, rooms)
            if other is None or other == room or name.startswith(f"{BELOW_ALL}."):
                continue
            if _floor_of(floors, other) <= _floor_of(floors, room):
                broken.append(f"{source.path}:{line} {room or folder} imports {name}")
    check(broken)


def test_the_version_imports_nothing_of_ours():
    (version,) = [source for source in SOURCES if source.module == BELOW_ALL]
    assert [name for _, name in version.imports() if name.split(".")[0] == "palladio"] == []


def test_no_files_import_each_other_in_a_circle():
    modules = {source.module for source in SOURCES}
    left = {}
    for source in SOURCES:
        found = {_file_of(name, modules) for _, name in source.imports()} - {source.module, None}
        left[source.module] = found
    while free := [module for module, found in left.items() if not found & left.keys()]:
        for module in free:
            del left[module]
    while free := [module for module in left if not any(module in found for found in left.values())]:
        for module in free:  # what imports a circle, and is not in it
            del left[module]
    assert sorted(left) == []


def _file_of(name: str, modules: set[str]) -> str | None:
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def _divided() -> set[str]:
    """Folders of the product in which there are rooms."""
    folders = {source.path.rpartition("/")[0] for source in SOURCES}
    inner = {folder.rpartition("/")[0] for folder in folders}
    return {folder for folder in inner if folder}


def test_every_folder_with_rooms_has_floors():
    assert _divided() == FLOORS.keys()


@pytest.mark.parametrize(("folder", "floors"), FLOORS.items())
def test_every_room_is_on_a_floor_and_says_what_it_owns(folder, floors):
    rooms = _rooms_of(folder)
    inner = {file.name for file in (ROOT / folder).glob("*.py")} - {"__init__.py"}
    assert rooms | ({""} if inner else set()) == {room for floor in floors for room in floor}
    for room in rooms if folder != "pallas_kernels" else ():  # an op says what it computes
        text = ast.get_docstring(ast.parse((ROOT / folder / room / "__init__.py").read_text(encoding="utf-8"))) or ""
        assert "Owns: " in text, room
        assert "Never: " in text, room


@pytest.mark.parametrize(("top", "floors"), TOP_FLOORS.items())
def test_the_map_in_the_docs_shows_these_floors(top, floors):
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    lines = page.split(f"<!-- floors of {top} -->\n```text\n")[1].split("\n```")[0].split("\n")
    shown = [tuple(re.split(r"\s{2,}", line)[0].split(" | ")) for line in lines]
    assert shown == [floor if floor != ("",) else (TOP_FILES[top],) for floor in floors]


def test_the_map_in_the_docs_shows_the_floors_inside_rooms():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+)` \| (.+?) \|$", page.split("<!-- floors inside rooms -->")[1], re.MULTILINE)
    floors = {
        folder: tuple(
            tuple("" if room == "its files" else room for room in floor.split(", ")) for floor in text.split(" → ")
        )
        for folder, text in rows
    }
    assert floors == INNER_FLOORS


@pytest.mark.parametrize("folder", [folder for folder in FLOORS if not folder.startswith("pallas_kernels")])
def test_tests_lie_in_the_room_of_what_they_test(folder):
    tests = ROOT / "tests" / folder
    folders = {inner.name for inner in tests.iterdir() if any(inner.glob("*.py"))} if tests.exists() else set()
    assert folders <= _rooms_of(folder)


def test_no_folder_is_flat():
    sizes = Counter(source.path.rpartition("/")[0] for source in SOURCES if not source.path.endswith("__init__.py"))
    sizes += Counter(f"benchmarks/{file.parent.name}" for file in (ROOT / "benchmarks").glob("*/*.py"))
    sizes += Counter("benchmarks" for _ in (ROOT / "benchmarks").glob("*.py"))
    assert sizes["model/layers"] > 5
    assert sizes["benchmarks/serving"] > 10
    check([f"{folder} {size} files" for folder, size in sizes.items() if size > MAX_FILES], LISTS_OF_EQUALS)
