"""The engine as callers see it: text in, text out.

Owns: the async and the offline engine, the table of running requests, turning tokens into text, restarts of a failed
engine, SGLang's native arguments and results.
Never: imports jax, schedules, or speaks HTTP.
"""
