"""Flags of the command line and what they are settled to.

Owns: parsing them, other hosts of the environment, the GPU's memory, the default model.
Never: starts anything.
"""
