"""Text on its way to and from token ids.

Owns: the tokenizer, the incremental detokenizer, chat-template rendering in a sandbox, model directories and hub
downloads, JSON schemas as data.
Never: imports jax, knows of requests, or runs a client's pattern with `re`.
"""
