"""Layers as values.

Owns: the specs of layers: attention, rope, experts, latents, states, classes.
Never: computes anything.
"""
