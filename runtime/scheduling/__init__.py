"""Which requests take part in the next step, and who holds which pages.

Owns: the queue, the scheduler, the prefix cache, page allocation, retraction, data-parallel ranks.
Never: touches the device. Host Python only; page numbers, not pages.
"""
