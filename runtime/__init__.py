"""When and where it is computed: the engine, its scheduler and its front. Importing this does not import jax."""
