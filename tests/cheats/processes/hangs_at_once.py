"""Never returns from its first call.

Ends: timeout: did not end
Case: small
"""


def permute(x, dims):
    while True:
        pass
