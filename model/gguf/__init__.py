"""GGUF files: the meaning of their metadata and tensor names, in terms of config.json and safetensors.

Owns: the file's header, and one table of architectures.
Never: imports jax, or knows what the bits of a block mean.
"""
