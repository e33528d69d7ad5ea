"""Layers whose halves may be one call each: subclasses of the decoder's layer for certain kernels.

Owns: which class of layers a model is made of, and what such a call takes of the modules.
Never: has parameters of its own, or is imported by the decoder.
"""
