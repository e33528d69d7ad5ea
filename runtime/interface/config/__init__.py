"""What an engine is started with.

Owns: the groups of flags as frozen dataclasses, their checks, and the folders of one user.
Never: reads a model's files, or knows what a request asks for.
"""
