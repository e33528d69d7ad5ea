"""How it is computed fast: one folder an op, each with a plain jnp reference."""
