"""Attention on TPUs, in Pallas.

Owns: the backend, its kernel, tiles, grid steps and tuned sizes.
Never: imports another backend.
"""
