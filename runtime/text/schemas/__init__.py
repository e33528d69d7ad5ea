"""JSON schemas as data.

Owns: reading, closing and rewriting schemas, the classes of patterns, the least size of a value.
Never: compiles a grammar.
"""
