"""Several hosts that run one model together.

Owns: the meeting before jax's own, the links between hosts, the digest of settings that must agree, joining
jax.distributed.
Never: schedules or touches device state: host 0's engine does, and its calls travel over these links.
"""
