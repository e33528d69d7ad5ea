"""Anthropic's /v1/messages, translated to and from a chat run.

Owns: its request models, its events, its errors' names.
Never: runs the engine itself.
"""
