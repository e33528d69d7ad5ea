"""The house rule on state: an object alone changes its attributes and what they hold, once it has been made.

What others want of it they give to its constructor, or ask by a method. A test finds every other assignment in the
whole product; the exceptions are records, which hold state for a room that owns them, and objects of libraries.
"""

import ast

from tests.source_tree import SOURCES, Source
from tests.test_architecture import check

REQUEST = "the scheduler's record of a request: its slot, pages and lengths; the room `scheduling` alone changes it"
NODE = "nodes are the tree's own"
COMPILATION = "the compiler's own record"
PROFILE = "the profiler's own record"
LIBRARY = "an object of a library, which is set up so"
REFERENCE = "what a kernel writes to: a part of the device's memory"
CHANGES = {"append", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove", "setdefault"}
ALLOWED = {  # path:object → why
    "runtime/scheduling/cache/cache_manager.py:request": REQUEST,
    "runtime/scheduling/policy/grammar_queue.py:request": REQUEST,
    "runtime/scheduling/policy/grammar_queue.py:waiting.request": REQUEST,
    "runtime/scheduling/policy/retractor.py:request": REQUEST,
    "runtime/scheduling/scheduler.py:request": REQUEST,
    "runtime/scheduling/step_planner.py:request": REQUEST,
    "runtime/scheduling/scheduler.py:request.trace": REQUEST,
    "runtime/scheduling/state/radix_node.py:node": NODE,
    "runtime/scheduling/cache/radix_cache.py:at": NODE,
    "runtime/scheduling/cache/radix_cache.py:node": NODE,
    "runtime/scheduling/state/radix_node.py:self.parent": NODE,
    "runtime/scheduling/cache/tree_events.py:node": NODE,
    "runtime/scheduling/cache/tree_events.py:root": NODE,
    "runtime/scheduling/cache/tree_snapshots.py:node": NODE,
    "runtime/grammar/compiler.py:compilation": COMPILATION,
    "runtime/telemetry/profiler.py:profile": PROFILE,
    "runtime/grammar/cache.py:finalizer": LIBRARY,
    "http/security/connection.py:cycle": LIBRARY,
    "runtime/execution/programs/program.py:program": "a function that was just defined; jax names programs after it",
    "runtime/text/templates/template_sandbox.py:call": LIBRARY,
    "runtime/text/templates/template_sandbox.py:loop": LIBRARY,
    "runtime/text/templates/template_sandbox.py:macro": LIBRARY,
    "runtime/execution/compiled/program_cache.py:executable": LIBRARY,
    "runtime/text/tokenizers/gguf_tokenizer.py:tokenizer": LIBRARY,
    "runtime/text/tokenizers/stored_tokenizers.py:tokenizer": LIBRARY,
    "runtime/scheduling/cache/radix_cache.py:leaf": NODE,
    "runtime/scheduling/cache/radix_cache.py:parent": NODE,
    "runtime/front/requests/request_table.py:error": "an error that was just made",
    "pallas_kernels/ragged_paged_attention/tpu/tpu_chunk.py:buffer": REFERENCE,
    "pallas_kernels/ragged_paged_attention/tpu/tpu_chunk.py:self._buffer(number)": REFERENCE,
    "pallas_kernels/ragged_paged_attention/tpu/tpu_kernel.py:state": REFERENCE,
    "pallas_kernels/ragged_paged_attention/tpu/tpu_short.py:short": REFERENCE,
    "http/app.py:app.state": LIBRARY,
    "http/chat/template_output.py:output": "an output that it was just given, and hands on",
    "http/security/connection.py:self.cycle": LIBRARY,
    "http/security/tls.py:connection": LIBRARY,
    "http/security/tls.py:context": LIBRARY,
    "http/settings/log_config.py:record": LIBRARY,
    "palladio/processes/without_torch.py:spec": LIBRARY,
    "palladio/processes/hidden_modules.py:sys": "the interpreter's hook for what nobody handles",
    "runtime/interface/errors.py:error": "an error that was just made",
    "runtime/interface/errors.py:renamed": "an error that was just made",
    "palladio/processes/without_torch.py:sys": "the interpreter's list of finders",
}


def _made_in(function: ast.AST) -> set[str]:
    """Names of a function that are bound to what a constructor returns (`X(…)`, `X.of(…)`), or to an error that is
    being handled."""
    names = {node.name for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            maker = ast.unparse(node.value.func).split(".")
            if any(part.lstrip("_")[:1].isupper() for part in maker):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _changed(node: ast.AST) -> ast.expr | None:
    """What a node sets, or changes if it is a container: `x.a = …`, `x.a[…] = …`, `x.a.append(…)` → `x.a`."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
        return node
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        return node.func.value
    return None


def foreign_assignments(source: Source) -> list[str]:
    """`path:object attribute, line` of each attribute that is set or changed from outside of its object."""
    functions = [(node, _made_in(node)) for _, node in source.functions()]
    found = []
    for node in ast.walk(source.tree):
        changed = _changed(node)
        if isinstance(changed, ast.Attribute):
            own = {"self", "cls"}.union(*(made for f, made in functions if f.lineno <= changed.lineno <= f.end_lineno))
            owner = ast.unparse(changed.value)
            if owner not in own:
                found.append(f"{source.path}:{owner} {changed.attr}, line {changed.lineno}")
    return found


def test_no_attribute_is_set_from_outside_of_its_object():
    check([place for source in SOURCES for place in foreign_assignments(source)], ALLOWED)


def test_the_rule_finds_what_it_is_to_find():
    text = """
class A:
    def __init__(self, other):
        self.mine = B()
        self.mine.on_call = other.call
        other.count += 1
        made = Thing(1)
        made.size = 2
        first, other.second = 1, 2
        also = Thing.of(3)
        also.size: int = 3
        del other.third
        other.fourth[1] = 2
        other.fifth.append(3)
        made.sixth.append(4)
        self.seventh.pop()
"""
    source = Source("a.py", "runtime", "a", text)
    found = {place.split(",")[0] for place in foreign_assignments(source)}
    names = {f"a.py:other {name}" for name in ("count", "second", "third", "fourth", "fifth")}
    assert found == names | {"a.py:self.mine on_call"}
