"""Text to token ids, and back.

Owns: the tokenizer and the files it is made from, detokenizing piece by piece, stop strings and patterns.
Never: renders a template.
"""
