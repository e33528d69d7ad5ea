"""Pages and prefixes: who holds which page, and which pages requests share.

Owns: the allocator, the prefix tree with its windows and snapshots, events of the tree, the map of pages.
Never: decides who runs, or touches a page on the device.
"""
