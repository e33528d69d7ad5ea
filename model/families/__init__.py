"""Model families.

Owns: one file per family, which maps config.json to layer specs and names the tensors of its checkpoints.
Never: computes or loads anything.
"""
