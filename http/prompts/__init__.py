"""From a request's fields to the prompt's token ids.

Owns: chat templates, messages, tools and their history, truncation, tokenizing off the event loop.
Never: starts a generation.
"""
