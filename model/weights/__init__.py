"""Weights as values: matrices that multiply, shard, load and measure themselves, in any number of bits.

Owns: the kinds of weights, how each is made from a checkpoint's numbers, and how each multiplies.
Never: reads a file, knows a family, or decides which weight is of which kind.
"""
