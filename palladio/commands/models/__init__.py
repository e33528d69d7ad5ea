"""Models of the local cache: `palladio pull` and `palladio list`.

Owns: each command.
Never: loads a model.
"""
