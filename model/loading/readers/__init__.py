"""Files of a checkpoint, tensor by tensor.

Owns: safetensors and GGUF files, their index, sums of files, scales of the cache.
Never: lays out a parameter.
"""
