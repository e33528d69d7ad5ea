"""GGUF files: what their metadata and their tensors' names mean, in the words of config.json and of safetensors.

Owns: the file's header, and one table of architectures.
Never: imports jax, or knows what the bits of a block mean.
"""
