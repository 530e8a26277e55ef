"""Answers with bytes that are no message.

Ends: crashed: may not
Case: small
"""

from warpcall_kernels.execution import frames


def send(sock, message):
    sock.sendall(frames.LENGTH.pack(4) + b"\xff{]}")


def permute(x, dims):
    frames.send = send
    return x.permute(dims).contiguous()
