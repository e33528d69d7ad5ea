"""Pooling: what makes vectors of a text out of the hidden states of its tokens.

Owns: reading sentence-transformers' files (modules, pooling, prompts), the spec that they describe, and the functions
of jnp that compute it.
Never: reads tensors, or knows how hidden states are computed.
"""
