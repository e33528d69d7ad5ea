"""Chats in a terminal: `palladio run` and `palladio chat`.

Owns: each command, and the server that `run` starts.
Never: draws an answer; see palladio/terminal.
"""
