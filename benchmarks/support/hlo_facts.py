"""Defects of a compiled step program, read from its optimized HLO: copies of the cache, widened weights, calls of the
host, collectives, cycles."""

import collections
import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Iterator

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = \(?\w+\[([\d,]*)\].*?[)\]}] ([a-z][\w-]*)\(")
_COPIES = ("copy", "copy-start", "transpose", "convert")
_HOST_OPCODES = ("infeed", "outfeed", "send", "recv")
_COLLECTIVE = re.compile(
    r"= \(*(\w+\[[\d,]*\]).*? (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) .*\{$")
_CALLED = re.compile(r"\b(?:body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_UNKNOWN_CYCLES = 1 << 62  # libtpu writes the largest integer
_FUSION = re.compile(r" fusion\(.*calls=%?([\w.-]+)")
_PRODUCT = re.compile(r" (?:convolution|dot)\(")
_WIDE = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = (?:bf16|f16|f32)\[([\d,]+)\].*?[)\]}] ([a-z][\w-]*)\(")
_NO_RESULTS = ("parameter", "get-tuple-element", "bitcast")
_TYPE = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = \(?(\w+)\[", re.MULTILINE)
_OPERANDS = re.compile(r"= (\w+)\[[\d,]*\]\S* (?:convolution|dot)\(%?([\w.-]+), %?([\w.-]+)\)")
_LIBRARY = re.compile(r'custom_call_target="(__cublas[^"]*)"')
_CALLBACK = re.compile(r'custom_call_target="\w*callback')


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """Facts about an optimized program that show operations that an engine's step should not have.

    Attributes:
        widened: results outside of fusions that are as large as a quantized weight, and of more bits.
        cache_copies: copies, transpositions and conversions of a whole layer's cache.
        host_calls: callbacks, infeeds, outfeeds, sends and receives.
        branches: conditionals.
        loops: all loops, also those within others.
        data_loops: loops whose trip count the compiler does not know.
        collectives: number of each shape and kind.
        loop_collectives: number of those in each iteration of a loop.
        cycles: XLA:TPU's estimates, of the entry and of each other computation that has some, such as an iteration of a
            loop.
        products: number of each pair of operands' types, or by which of a library's functions.
        product_cycles: the entry's cycles of products and their fusions; 0 for a GPU.
        small_operations: operations of the entry that are no products: fusions, copies, pads and so on. For a TPU.
    """

    widened: int
    cache_copies: int
    host_calls: int
    branches: int
    loops: int
    data_loops: int
    collectives: dict[str, int]
    loop_collectives: dict[str, int]
    cycles: dict[str, int]
    products: dict[str, int]
    product_cycles: int
    small_operations: int

    @classmethod
    def of(cls, hlo: str, cache_shape: tuple[int, ...], weight_sizes: Collection[int]) -> "Facts":
        """
        Args:
            weight_sizes: numbers of each quantized weight, on one device.
        """
        counts: collections.Counter[str] = collections.Counter()
        cycles: collections.Counter[str] = collections.Counter()
        for operation in entry_operations(hlo):
            counts["product cycles"] += operation.is_product * operation.cycles
            counts["small operation"] += operation.cycles > 0 and not operation.is_product
        computation = ""
        for line in hlo.splitlines():
            if start := _COMPUTATION.match(line):
                computation = "entry" if start[1] else start[2]
            if estimate := _CYCLES.search(line):
                cycles[computation] += int(estimate[1])
            match = _INSTRUCTION.match(line)
            if match is None:
                continue
            dims, opcode = match.groups()
            if opcode in _COPIES:
                counts["cache copy"] += sorted(map(int, dims.split(",")) if dims else ()) == sorted(cache_shape)
            elif opcode in _HOST_OPCODES or _CALLBACK.search(line):
                counts["host call"] += 1
            elif opcode == "conditional":
                counts["branch"] += 1
            elif opcode == "while":
                counts["loop"] += 1
                counts["data loop"] += "known_trip_count" not in line
        copies, calls = counts["cache copy"], counts["host call"]
        return cls(
            sum(size in weight_sizes for size in _wide_results(hlo)),
            copies,
            calls,
            counts["branch"],
            counts["loop"],
            counts["data loop"],
            _collectives(hlo.splitlines()),
            loop_collectives(hlo),
            {name: count for name, count in cycles.items() if 0 < count < _UNKNOWN_CYCLES},
            _products(hlo),
            counts["product cycles"],
            counts["small operation"],
        )


def _collectives(lines: Iterable[str]) -> dict[str, int]:
    found = (match for line in lines if (match := _COLLECTIVE.search(line)))
    return dict(collections.Counter(f"{match[2]} {match[1]}" for match in found))


def loop_collectives(hlo: str) -> dict[str, int]:
    """Count collectives in iterations of loops, by shape and kind."""
    lines: dict[str, list[str]] = collections.defaultdict(list)
    computation = ""
    for line in hlo.splitlines():
        if start := _COMPUTATION.match(line):
            computation = start[2]
        lines[computation].append(line)
    reached: set[str] = set()
    waiting = [name for line in hlo.splitlines() if " while(" in line for name in _called(line)]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [other for line in lines[name] for other in _called(line)]
    return _collectives(line for name in sorted(reached) for line in lines[name])


def _called(line: str) -> list[str]:
    """Computations that an instruction calls."""
    branches = _BRANCHES.search(line)
    others = re.findall(r"[\w.-]+", branches[1]) if branches else []
    return [*_CALLED.findall(line), *others]


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One instruction of a program's entry.

    Attributes:
        line: as the optimized program has it.
        cycles: by XLA:TPU's estimate; 0: it has none.
        is_product: it multiplies matrices, also within a fusion.
    """

    line: str
    cycles: int
    is_product: bool


def entry_operations(hlo: str) -> Iterator[Operation]:
    """Yield the operations of an optimized program, in its order."""
    multiplies, is_entry = _computations_with_products(hlo), False
    for line in hlo.splitlines():
        if start := _COMPUTATION.match(line):
            is_entry = start[1] is not None
        elif is_entry:
            estimate, called = _CYCLES.search(line), _FUSION.search(line)
            cycles = int(estimate[1]) if estimate else 0
            is_product = _PRODUCT.search(line) is not None or (called is not None and called[1] in multiplies)
            yield Operation(line, cycles if cycles < _UNKNOWN_CYCLES else 0, is_product)


def _products(hlo: str) -> dict[str, int]:
    """Count products by their operands' types, or by library function."""
    types = dict(_TYPE.findall(hlo))
    found = collections.Counter(f"{types[a]} x {types[b]} -> {out}" for out, a, b in _OPERANDS.findall(hlo))
    found.update(_LIBRARY.findall(hlo))
    return dict(found)


def _computations_with_products(hlo: str) -> set[str]:
    """Return names of computations with products, including computations that call them from within a fusion."""
    found: set[str] = set()
    while True:
        before, computation = len(found), ""
        for line in hlo.splitlines():
            if start := _COMPUTATION.match(line):
                computation = start[2]
            called = _FUSION.search(line)
            if _PRODUCT.search(line) is not None or (called is not None and called[1] in found):
                found.add(computation)
        if len(found) == before:
            return found


def _wide_results(hlo: str) -> Iterator[int]:
    """Yield sizes of the results of 16 bits and more that a program keeps in memory: results outside of fusions."""
    fused = {match[1] for line in hlo.splitlines() if (match := _FUSION.search(line))}
    is_fused = False
    for line in hlo.splitlines():
        if (header := _COMPUTATION.match(line)) is not None:
            is_fused = header[2] in fused
        elif not is_fused and (match := _WIDE.match(line)) is not None and match[2] not in _NO_RESULTS:
            yield math.prod(map(int, match[1].split(",")))
