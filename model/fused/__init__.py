"""Layers whose halves may be one call each: subclasses of the decoder's layer for certain kernels.

Owns: the choice of the class of layers, and the arguments of such calls, taken from the modules.
Never: has parameters of its own, or is imported by the decoder.
"""
