"""Which accelerators this machine shows, and which device an engine runs on.

Owns: the choice of --device, and the error or warning where it is not the one that was meant.
Never: reads a model, or plans memory: core does.
"""
