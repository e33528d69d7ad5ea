"""The layers, as modules.

Owns: attention, MLPs, experts, norms, rotation, embedding and heads.
Never: knows a family, or loops over layers.
"""
