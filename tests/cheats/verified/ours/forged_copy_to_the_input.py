"""Copies something to its input, of which the next call then has other values.

From: ours
Ends: error: writes to an input
Without: the check of plans
"""

from forge import forge
from honest import run


def view(number):
    return {"place": [number, 0], "dtype": "float32", "shape": [64], "strides": [1]}


def change(plan):
    inputs = [n for n, (name, _) in enumerate(plan["buffers"]) if name]
    others = [n for n, (name, _) in enumerate(plan["buffers"]) if not name]
    copy = {"copy": view(others[0]), "to": view(inputs[0])}
    plan["steps"][0][0]["actions"].insert(0, copy)


def permute(x, dims):
    forge(change)
    return run(x)
