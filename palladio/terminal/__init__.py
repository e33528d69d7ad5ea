"""A chat with a server, in a terminal.

Owns: the conversation, its commands and settings, how an answer looks while it streams.
Never: starts a server, or knows which one it talks to.
"""
