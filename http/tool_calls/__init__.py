"""Tool-call parsers and grammars, one format a model family.

Owns: reading calls out of text in pieces, the grammar that a forced call is held to, finding the format.
Never: knows of requests; functions come as values.
"""
