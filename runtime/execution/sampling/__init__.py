"""From logits to tokens, on the device.

Owns: the sampler and its state, thresholds, noise, log-probabilities of prompts.
Never: knows a request: it sees rows and columns.
"""
