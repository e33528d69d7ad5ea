"""How long a text a pattern forces: what a few characters can ask for with nested counts, `((ab){1000}){1000}`."""

import re

_COUNT = re.compile(r"\{(\d+)")


def forced_length(pattern: str) -> int:
    """An upper bound of the characters that a regular expression leaves no choice about, by its counts alone.

    Each character counts once, times the least counts of all that it stands in. Notations that write counts alike
    (Lark, GBNF) can be asked about too; what their rules refer to is not followed.
    """
    groups: list[list[int]] = [[]]  # of each open group: the lengths of its parts
    position = 0
    while position < len(pattern):
        character = pattern[position]
        count = _COUNT.match(pattern, position) if character == "{" else None
        if character == "\\":
            groups[-1].append(1)
            position += 2
            continue
        if character == "(":
            groups.append([])
        elif character == ")" and len(groups) > 1:
            inner = sum(groups.pop())
            groups[-1].append(inner)
        elif count is not None and groups[-1]:
            groups[-1][-1] *= max(1, int(count[1][:12]))
            position = max(pattern.find("}", position), position)
        else:
            groups[-1].append(1)
        position += 1
    return sum(sum(parts) for parts in groups)
