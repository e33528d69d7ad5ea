"""What stays on the device from step to step.

Owns: the device's state and how it is laid out over data-parallel ranks, and proposers of drafts.
Never: computes a step.
"""
