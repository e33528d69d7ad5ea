"""Who runs next, and who gives way.

Owns: the queues, the budget of pages, retraction, the share of background requests, drafts.
Never: builds a batch.
"""
