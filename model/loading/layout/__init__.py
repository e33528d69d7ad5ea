"""Which part of a stored tensor becomes which part of a parameter.

Owns: layouts of parameters and of stored tensors, transforms between them, what must be covered.
Never: chooses what is loaded.
"""
