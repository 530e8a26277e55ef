"""Formats verifications for a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from warpcall._cli.output import human_bytes, plural
from warpcall._cli.tables import INDENT, one_line, text_lines
from warpcall.verifications import PlannedAction, PlannedChoice, Verification, VerifiedCase

MOST_CHOICES = 8  # configurations of a step that are shown
# What Triton writes of configurations that do not say it.
DEFAULTS = re.compile(r", (num_ctas: 1|num_stages: 3|maxnreg: None)(?=,|$)")


def verification_lines(found: Verification, name: str) -> Iterator[str]:
    """What each case does or why it cannot be verified, and the declaration.

    Args:
        name: of the file.
    """
    yield f"{name}: {found.op} for {found.gpu}, {found.compiler}"
    for one in found.cases:
        yield from _case_lines(one)
    for remark in found.remarks:
        yield one_line(remark)
    if found.timing:
        yield found.timing


def declaration_lines(found: Verification) -> Iterator[str]:
    """The declaration of the launches in Python and as JSON, which are printed as they are."""
    if found.declaration is None or found.decorator is None:
        return
    yield "a declaration of these launches, which an upload does not need:"
    yield from found.decorator.splitlines()
    yield "the same as JSON, for --launches:"
    yield json.dumps(found.declaration)


def _case_lines(one: VerifiedCase) -> Iterator[str]:
    yield one.case
    if not one.verifiable:
        first, *more = text_lines(one.reason)
        yield f"{INDENT}cannot be verified: {first}"
        yield from (f"{INDENT}  {line}" for line in more)
        return
    for number, step in enumerate(one.steps, 1):
        choices = step.choices
        head = f"{INDENT}{number}. "
        if len(choices) == 1:
            yield f"{head}{_choice_text(choices[0])}"
            continue
        yield f"{head}one of {len(choices)} configurations, of which the fastest is chosen:"
        for choice in choices[:MOST_CHOICES]:
            yield f"{INDENT}   {_label(choice)}: {_choice_text(choice)}"
        if len(choices) > MOST_CHOICES:
            yield f"{INDENT}   and {plural(len(choices) - MOST_CHOICES, 'more configuration')}"
    scratch = human_bytes(one.scratch_bytes) if one.scratch_bytes else "no"
    yield f"{INDENT}can be verified: {plural(one.kernels, 'compiled kernel')}, {scratch} scratch memory"


def _label(choice: PlannedChoice) -> str:
    return one_line(DEFAULTS.sub("", choice.label))


def _choice_text(choice: PlannedChoice) -> str:
    return ", then ".join(map(_action_text, choice.actions))


def _action_text(action: PlannedAction) -> str:
    if action.kind != "launch":
        return f"{action.kind} {human_bytes(action.nbytes or 0)}"
    parts = [
        f"launch {action.kernel}",
        f"grid {_product(action.grid)}",
        f"{_product(action.threads)} threads",
    ]
    if action.cluster is not None and action.cluster != [1, 1, 1]:
        parts.append(f"clusters of {_product(action.cluster)}")
    parts.append(f"{human_bytes(action.shared_bytes or 0)} of dynamic shared memory")
    if action.registers is not None:
        parts.append(f"{action.registers} registers")
    return ", ".join(parts)


def _product(numbers: list[int] | None) -> str:
    """Numbers along axes, such as 128x4; axes of 1 at the end are left out."""
    shown = list(numbers or [])
    while len(shown) > 1 and shown[-1] == 1:
        shown.pop()
    return "x".join(map(str, shown))
