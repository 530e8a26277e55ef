"""Fails, and leaves a thread behind that takes a CPU from others.

Ends: error: ValueError
Case: small
"""

import threading


def spin():
    while True:
        pass


def permute(x, dims):
    threading.Thread(target=spin, daemon=True).start()
    raise ValueError("no result")
