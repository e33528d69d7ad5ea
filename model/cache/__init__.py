"""The cache of each layer from step to step.

Owns: the KV cache, latents and states, their pages and their layout, the forward batch.
Never: knows which request has which page.
"""
