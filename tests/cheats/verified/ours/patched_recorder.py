"""Replaces our recorder by a function that says that nothing needs to be launched.

From: ours
Ends: wrong_result
Without: values on a GPU
Gains: a wrong result
Apart: yes
"""

import dataclasses
import sys

from honest import run

server = sys.modules["warpcall_kernels.execution.record_server"]
trace = server.trace


def nothing(*args, **kwargs):
    recording = trace(*args, **kwargs)
    return dataclasses.replace(recording, plan=dataclasses.replace(recording.plan, steps=()))


server.trace = nothing


def permute(x, dims):
    return run(x)
