"""The command line itself.

Owns: the table of commands, what their parsers share, completion in a shell.
Never: does a command's work.
"""
