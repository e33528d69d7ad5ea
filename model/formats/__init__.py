"""Formats of quantized checkpoints: their settings in config.json, and the tensors that make up a matrix.

Owns: one small file a format, each of which leads to the kinds of weights that there are.
Never: reads a file, imports jax, or knows how a weight multiplies.
"""
