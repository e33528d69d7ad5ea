"""From config.json to a ModelConfig.

Owns: reading config.json, overrides, which family an architecture has, quantization, the rules of weights' names.
Never: reads a tensor.
"""
