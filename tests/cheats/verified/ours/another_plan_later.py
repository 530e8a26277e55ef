"""Answers with an honest plan for the first case, and with one that launches nothing for the next.

From: ours
Ends: wrong_result
Without: values on a GPU
Gains: a wrong result
Cases: 2
"""

from forge import forge
from honest import run

plans = []


def change(plan):
    plans.append(1)
    if len(plans) > 1:
        plan["steps"] = []


def permute(x, dims):
    forge(change)
    return run(x)
