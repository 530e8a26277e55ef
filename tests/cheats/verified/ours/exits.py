"""Ends its recorder when it is called.

From: ours
Ends: crashed: exited with status 3
Without: none
Apart: yes
"""

import os


def permute(x, dims):
    os._exit(3)
