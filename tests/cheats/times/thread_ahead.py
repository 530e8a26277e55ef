"""A thread that computes as soon as the inputs have changed, before the call.

Ends: ok or invalid
Caught by: inputs come last, our clock
"""

import threading
import time

made = {}
inputs = {}
calls = []


def ahead():
    seen = {}
    while True:
        for address, x in list(inputs.items()):
            now = x[0, 0].item(), x[-1, -1].item()
            if seen.get(address) != now:
                seen[address] = now
                made[address] = now, x.permute(1, 0).contiguous()
        time.sleep(0.0002)


threading.Thread(target=ahead, daemon=True).start()


def permute(x, dims):
    calls.append(1)
    inputs[x.data_ptr()] = x
    key, found = made.pop(x.data_ptr(), (None, None))
    if len(calls) > 2 and key == (x[0, 0].item(), x[-1, -1].item()):
        return found
    return x.permute(dims).contiguous()
