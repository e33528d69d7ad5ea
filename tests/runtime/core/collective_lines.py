"""The collectives of an engine's programs, as the compiler wrote them."""

import re
from collections.abc import Collection

from palladio.runtime.core.plan.engine_plan import EnginePlan

_OPCODES = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
COLLECTIVE = re.compile(rf"= (.*?) ({_OPCODES})(?:-start)?\(.*")  # shapes, opcode


def collectives_by_kind(design: EnginePlan, only: Collection[str] | None = None) -> dict[str, list[re.Match[str]]]:
    """Return the HLO lines of the collectives of one program of each kind, such as "forward prefill" or "sample
    greedy".

    Args:
        only: the kinds to return; None: all.
    """
    found: dict[str, list[re.Match[str]]] = {}
    for key in design.programs.built.declared:
        kind = " ".join(word for word in (key.kind, key.tier, "prefill" if key.num_tokens else None) if word)
        if kind not in found and (only is None or kind in only):
            jitted, args = design.programs.built.declaration(key)
            found[kind] = list(COLLECTIVE.finditer(jitted.lower(*args).compile().as_text()))
    return found
