"""Requests with grammars: what tests of them share."""

from typing import Any

from palladio.runtime.interface.request.grammar_spec import Grammar
from tests.runtime.tiny_engine import Collector, TinyEngine

EOS = 2
FRANCE = Grammar("regex", "the capital of (France is Paris|Germany is Berlin), (again and again|over the lazy dog)!")


def run(engine: TinyEngine, requests: dict[str, dict[str, Any]], **flags: Any) -> Collector:
    collector = Collector(engine.core(**flags))
    for name, request in requests.items():
        collector.add(name, **request)
    return collector.run()
