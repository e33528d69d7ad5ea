"""Attention on TPUs, in Pallas.

Owns: the backend, its kernel, tiles, turns and tuned sizes.
Never: imports another backend.
"""
