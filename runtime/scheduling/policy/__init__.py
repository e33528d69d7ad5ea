"""Who runs next, and who gives way.

Owns: the queues, deadlines and queue time, the budget of pages, retraction, the share of background requests, rows of
drafts.
Never: changes the prefix tree.
"""
