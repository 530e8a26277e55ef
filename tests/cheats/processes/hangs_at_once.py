"""Never returns from its first call.

Ends: timeout: did not end
"""


def permute(x, dims):
    while True:
        pass
