"""Ollama's routes under /api, translated to and from a chat run.

Owns: their request models, their lines of JSON, the names of their errors.
Never: runs the engine itself; loads, stores or removes models.
"""
