"""The options of commands that submit jobs, made from those of `JobRequest`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any, get_type_hints

import typer

from warpcall._cli.op_args import one_of
from warpcall.jobs.request import OPTIONS, Option

TYPES = {
    "private": bool | None,
    "fresh": bool,
    "sanitize": bool,
    "tags": list[str] | None,
}  # of others: a text


def job_options(
    only: Collection[str] = tuple(OPTIONS),
    without: Collection[str] = (),
    before: str = "as_json",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that gives a command the options of a job in place of its `**options`.

    The values that it gets, by field of JobRequest, are those that were given and the defaults.

    Args:
        only: fields whose options the command has.
        without: fields whose options it does not have.
        before: the parameter of the command that follows them in its help.
    """
    names = [name for name in OPTIONS if name in only and name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            for name in names:
                option, value = OPTIONS[name], given[name]
                if option.choices and value is not None:
                    one_of(option.flags[0], value, tuple(option.choices))
            command(**given)

        hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=hints[name])
            for name, parameter in inspect.signature(command).parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        at = [one.name for one in own].index(before)
        own[at:at] = map(_parameter, names)
        # Typer reads the signature and the annotations of a command.
        run.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in own}
        return run

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    option = OPTIONS[name]
    described = typer.Option(
        *option.flags,
        metavar=option.metavar,
        help=option.help,
        autocompletion=(lambda: list(option.choices)) if option.choices else None,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=option.default,
        annotation=Annotated[TYPES.get(name, str if option.default else str | None), described],
    )


def flag_of(name: str) -> str | None:
    """The option for a field of JobRequest; None if it has none."""
    option: Option | None = OPTIONS.get(name)
    return None if option is None else option.flags[0].partition("/")[0]
