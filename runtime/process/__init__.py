"""The border between the front's process and the engine's.

Owns: the codec, the sockets, the child process and its main loop.
Never: schedules, tokenizes, or knows what a message means beyond handing it over.
"""
