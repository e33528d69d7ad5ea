"""Mapping between parts of stored tensors and parts of parameters.

Owns: layouts of parameters and of stored tensors, transforms between them, the check that parameters are filled.
Never: chooses what is loaded.
"""
