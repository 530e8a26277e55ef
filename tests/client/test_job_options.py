"""The options of a job, of which the command line, the form and the SDK each have all."""

from __future__ import annotations

from dataclasses import fields

from tests.client.command import Command
from warpcall.jobs import PRECISIONS, PRIORITIES, PROFILES
from warpcall.jobs.request import OPTIONS, JobOptions, JobRequest

OF_CASES = {"op", "implementations", "cases", "sweep"}
# The first is what `warpcall race` sets, and `warpcall bench` has several options for the other.
OF_COMMANDS = {"race", "profile_options"}


def test_every_field_of_a_request_is_an_option_or_says_what_is_measured() -> None:
    names = {field.name for field in fields(JobRequest)}

    assert names == {*OPTIONS} | OF_CASES | OF_COMMANDS
    assert {*JobOptions.__annotations__} == names - {"op"}


def test_the_choices_are_those_of_the_types() -> None:
    found = {name: tuple(option.choices) for name, option in OPTIONS.items() if option.choices}

    assert found == {"precision": PRECISIONS, "priority": PRIORITIES, "profile": PROFILES}


def test_bench_has_every_option_with_its_help(warpcall: Command) -> None:
    shown = " ".join(warpcall("bench", "--help").out.split())

    for option in OPTIONS.values():
        for flag in option.flags[0].split("/"):
            assert f" {flag} " in shown
        assert option.help in shown
