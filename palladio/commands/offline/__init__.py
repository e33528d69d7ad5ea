"""Commands that prepare a start: `convert`, `compile`, `tune`.

Owns: each command and the process that it starts.
Never: serves a request.
"""
