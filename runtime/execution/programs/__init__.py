"""Programs: step functions with their arguments declared.

Owns: how a program is declared, and the classes of all programs.
Never: keeps a compiled program.
"""
