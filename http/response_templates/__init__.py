"""Response templates: how a checkpoint itself says that its answers are read.

Owns: what is known of a template, the process that reads answers by it, the limits of that.
Never: runs a checkpoint's regular expressions in this process; knows of requests.
"""
