"""The result of the second call, kept in what `setup` has returned.

Ends: wrong_result: a timed call
Caught by: values of timed calls
"""


def setup(x, dims):
    return []


def permute(x, dims, state):
    if len(state) < 2:
        state.append(x.permute(dims).contiguous())
        return state[-1].clone()
    return state[-1]
