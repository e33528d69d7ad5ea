"""`palladio eval`.

Owns: perplexity, lm-eval's tasks and its adapter.
Never: starts a server.
"""
