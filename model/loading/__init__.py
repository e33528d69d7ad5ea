"""Loading of weights to the devices.

Owns: reading checkpoints (safetensors, Orbax), random weights, the layout of parameters over devices, and errors in
checkpoints.
Never: computes a step.
"""
