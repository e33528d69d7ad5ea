"""Attention on GPUs, in Pallas: Triton, and Mosaic for Hopper.

Owns: both backends, their kernels, tiles and tuned sizes.
Never: imports a backend of another device.
"""
