"""What is computed: Flax NNX models, their configuration, weights and KV cache storage."""
