"""The commands of `palladio`, a file or a folder each; a file that ends with _worker is the process
that a command starts.

Owns: what each command takes, prints and returns as its exit code.
Never: imports jax in the process of the command line, or is imported by anything but
`palladio.__main__`.
"""
