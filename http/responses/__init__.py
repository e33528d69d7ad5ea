"""OpenAI's /v1/responses: answers as items that the server keeps.

Owns: items, stored responses, background responses and those a former server left unfinished.
Never: runs the engine but through a chat run.
"""
