"""Answers with a message of two megabytes.

Ends: crashed: may not
Case: small
"""

from warpcall_kernels.execution import frames


def send(sock, message, send=frames.send):
    send(sock, {**message, "more": "x" * (2 << 20)})


def permute(x, dims):
    frames.send = send
    return x.permute(dims).contiguous()
