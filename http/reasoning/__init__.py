"""Reasoning parsers: which part of an answer is thought.

Owns: families, tags, parsers for text in pieces, counting of reasoning tokens.
Never: imports another room of http.
"""
