"""What crosses the runtime's borders: configuration, errors, requests, outputs, messages.

Owns: the frozen dataclasses that the front, the engine process and HTTP share, and their checks.
Never: runs anything. No threads, no jax, no other room of runtime. No I/O except small files of a checkpoint, flags'
tables and rows of embeddings in a file; the environment is handed in.
"""
