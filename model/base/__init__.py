"""What all of a model's code stands on.

Owns: errors, keys of config.json, sharding, the base of modules.
Never: knows a layer or a family.
"""
