"""Weights of an engine that runs.

Owns: loading others in their place, giving memory back and taking it again.
Never: reads a checkpoint's tensors itself.
"""
