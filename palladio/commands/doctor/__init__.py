"""`palladio doctor`.

Owns: the checks of a machine, and how they are told.
Never: changes the machine.
"""
