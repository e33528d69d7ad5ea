"""`palladio doctor`.

Owns: the checks of a machine, and how they are shown.
Never: changes the machine.
"""
