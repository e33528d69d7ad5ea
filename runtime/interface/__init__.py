"""What crosses the runtime's borders: configuration, errors, requests, outputs, messages.

Owns: the frozen dataclasses that the front, the engine process and HTTP share, and their checks.
Never: runs anything. No threads, no I/O but reading a checkpoint's small files, no jax, no other room of runtime.
"""
