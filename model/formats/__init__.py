"""Formats of quantized checkpoints: what config.json says of each, which tensors make up a matrix, and what they mean.

Owns: one small file a format, each of which leads to the kinds of weights that there are.
Never: reads a file, imports jax, or knows how a weight multiplies.
"""
