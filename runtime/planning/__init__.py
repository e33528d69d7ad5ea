"""Plans for hardware that is not at hand (`palladio plan`).

Owns: data sheets of accelerators, what a model needs on them, compile-only devices.
Never: is part of a running server.
"""
