"""A scheduled step as calls of compiled programs.

Owns: batches as arrays, device state, the programs and the cache of compiled ones, the sampler, and ModelRunner, which
calls them.
Never: decides which request runs, or compiles anything after start without counting it.
"""
