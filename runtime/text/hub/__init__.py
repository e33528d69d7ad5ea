"""Where a model's files come from.

Owns: names and paths of models, downloads from the hub and the package index, the embedded model.
Never: reads weights.
"""
