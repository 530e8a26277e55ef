"""Copies its input to its output in place of the launch, which is faster than a transposition.

From: ours
Ends: wrong_result
Without: values on a GPU
Gains: a wrong result
"""

from forge import forge
from honest import run


def change(plan):
    launch = plan["steps"][-1][0]["actions"][-1]
    source, target = launch["arguments"][:2]
    numbers = [plan["buffers"][place[0]][1] // 4 for place in (source, target)]

    def view(place):
        return {"place": place, "dtype": "float32", "shape": [numbers[1]], "strides": [1]}

    plan["steps"][-1][0]["actions"] = [{"copy": view(source), "to": view(target)}]


def permute(x, dims):
    forge(change)
    return run(x)
