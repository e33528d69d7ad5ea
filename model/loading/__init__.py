"""Weights on their way to the devices.

Owns: reading checkpoints (safetensors, Orbax), random weights, how parameters are laid out over devices, and what is an
error in a checkpoint.
Never: computes a step.
"""
