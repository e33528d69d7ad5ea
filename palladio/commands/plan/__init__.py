"""`palladio plan`.

Owns: the question, and the process that answers it.
Never: needs the hardware that it plans for.
"""
