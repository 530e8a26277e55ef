"""Answers with a message that never ends.

Ends: timeout: did not end
Case: small
"""

import time

from warpcall_kernels.execution import frames


def send(sock, message):
    sock.sendall(frames.LENGTH.pack(1 << 20))
    while True:
        sock.sendall(b" ")
        time.sleep(0.01)


def permute(x, dims):
    frames.send = send
    return x.permute(dims).contiguous()
