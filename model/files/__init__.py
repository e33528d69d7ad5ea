"""Files of a model's folder: which files belong to it, and how much of a file is read.

Owns: links, kinds of files, limits of size and depth, and the errors that name the file.
Never: knows what a file's content means, or imports jax.
"""
