"""OpenAI's /v1/files.

Owns: uploads as they arrive, contents on disk, file objects.
Never: lets a client name a path.
"""
