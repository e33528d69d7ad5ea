"""The models: Flax NNX modules, their configuration, weights and KV cache storage."""
