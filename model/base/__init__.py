"""The base of all model code.

Owns: errors, keys of config.json, sharding, the base of modules.
Never: knows a layer or a family.
"""
