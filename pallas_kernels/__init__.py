"""Fast kernels: one folder an op, each with a plain jnp reference."""
