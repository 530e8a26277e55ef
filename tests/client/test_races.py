"""What a race of several cases decides, and the configurations of a file that is tuned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from warpcall import InvalidInput
from warpcall._cli.race import race_lines
from warpcall._jobs.grid import configured
from warpcall._jobs.progress import racing
from warpcall._jobs.races import entrants_of
from warpcall._jobs.source import source_of
from warpcall.jobs.results import CaseRace, CaseResults, Measurement, RaceInterval, RaceRow, Results
from warpcall.races import MOST, Race, judge

Ratios = Mapping[str, tuple[float, float, float] | None]
EQUAL = (1.0, 1.0, 1.0)
ABSENT = dict.fromkeys(
    (
        *("traceback", "source_sha256", "problem_sha256", "method", "ci_low_us", "ci_high_us"),
        *("min_us", "p5_us", "p25_us", "p75_us", "p95_us", "ratio", "ratio_low", "ratio_high"),
        *("verdict", "gb_per_s", "share_of_limit", "peak_bytes", "hot_us", "host_us", "energy_mj"),
    )
)


def row(
    case: str, position: int, name: str, ratio: tuple[float, float, float] | None
) -> Measurement:
    race = RaceRow(rank=None, to_leader=None)
    if ratio is not None:
        interval = RaceInterval(ratio=ratio[0], low=ratio[1], high=ratio[2])
        race = RaceRow(rank=1 if ratio[1] <= 1 else 2, to_leader=interval)
    fields: dict[str, Any] = dict(ABSENT)
    return Measurement(
        **fields,
        position=position,
        case=case,
        implementation=name,
        status="ok" if ratio else "wrong_result",
        error=None if ratio else "it differs",
        n=10,
        median_us=100 * ratio[0] if ratio else None,
        tags=[],
        race=race,
    )


def judged(*cases: tuple[str, Ratios], **more: Any) -> Race:
    """A race whose cases had these outcomes, and these ratios to the leader."""
    rows, found = [], []
    for position, (outcome, ratios) in enumerate(cases):
        rows += [row(f"case {position}", position, name, one) for name, one in ratios.items()]
        fastest = [name for name, one in ratios.items() if one and one[1] <= 1]
        race = CaseRace(
            outcome=outcome,  # type: ignore[arg-type]
            leader=fastest[0] if fastest else None,
            fastest=fastest,
            device_s=1.5,
            full_device_s=20.0,
        )
        known: dict[str, Any] = {"spec": {}, "device": "cpu", "clock": "perf_counter"}
        known |= {"column": "device_cold", "rounds": 10, "masked": [], "converged": True}
        known |= {"margin": 0.01, "a_a": None, "bytes_moved": 1, "limit_us": None, "tags": []}
        known |= {"finished_at": "", "samples_us": None}
        found.append(CaseResults(**known, position=position, case=f"case {position}", race=race))
    results = Results(
        id="j1",
        state="succeeded",
        environment=None,
        fingerprint=None,
        remarks=[],
        measurements=rows,
        cases=found,
    )
    return judge(results, "permute", [*cases[0][1]], **more)


def test_of_one_case_the_server_decides() -> None:
    found = judged(("winner", {"b": (1.5, 1.4, 1.6), "a": EQUAL, "wrong": None}))

    assert (found.outcome, found.winner) == ("winner", "a")
    assert [(one.rank, one.implementation) for one in found.entries] == [
        (1, "a"),
        (2, "b"),
        (None, "wrong"),
    ]
    assert found.entries[1].ratio == pytest.approx(1.5)
    assert found.entries[2].status == "wrong_result"
    assert found.never_best == ["b"]
    assert (found.device_s, found.full_device_s) == (1.5, 20.0)
    assert found.sentence == "a is the fastest"


def test_of_several_cases_the_geometric_mean_decides() -> None:
    found = judged(
        ("winner", {"a": EQUAL, "b": (1.2, 1.19, 1.21), "c": (1.05, 1.04, 1.06)}),
        ("winner", {"a": (2.0, 1.9, 2.1), "b": EQUAL, "c": (1.05, 1.04, 1.06)}),
    )

    assert (found.outcome, found.winner) == ("winner", "c")
    assert [one.implementation for one in found.entries] == ["c", "b", "a"]
    assert found.entries[1].ratio == pytest.approx(1.2**0.5)
    assert [one.best_in for one in found.entries] == [0, 1, 1]
    assert found.never_best == ["c"]
    assert [case.fastest for case in found.cases] == [["a"], ["b"]]
    assert found.full_device_s == 40


def test_means_may_be_the_same_or_undecided() -> None:
    near = (1.002, 0.998, 1.004)
    same = judged(("same", {"a": EQUAL, "b": near}), ("same", {"a": EQUAL, "b": near}))
    wide = judged(("same", {"a": EQUAL, "b": (1.1, 0.9, 1.3)}), ("winner", {"a": EQUAL, "b": near}))

    assert (same.outcome, [one.rank for one in same.entries]) == ("same", [1, 1])
    assert same.sentence == "a is the fastest, and the same within 1 %: b"
    assert (wide.outcome, wide.winner) == ("undecided", "a")
    assert wide.sentence == "undecided: a leads, and as fast may be: b"


def test_one_without_a_time_in_some_case_has_no_rank() -> None:
    found = judged(
        ("winner", {"a": EQUAL, "b": None}), ("winner", {"a": (3.0, 2.9, 3.1), "b": EQUAL})
    )

    assert found.winner == "a"
    assert [one.rank for one in found.entries] == [1, None]
    assert judged(("none", {"a": None, "b": None})).sentence == (
        "no implementation has times that are a basis for a verdict"
    )


def test_the_table_ends_with_the_configuration_to_paste() -> None:
    made = {"a": {"BLOCK": 64, "MODE": "fast"}, "b": {"BLOCK": 128, "MODE": "fast"}}

    lines = race_lines(
        judged(
            ("winner", {"a": EQUAL, "b": (1.5, 1.4, 1.6)}),
            configurations=made,
            refused={"BLOCK = 3": "line 2: wrong"},
        )
    )

    assert lines[1].split()[:6] == ["1", "BLOCK", "=", "64,", "MODE", "="]
    assert "BLOCK = 3 did not race: line 2: wrong" in lines
    assert "timed calls took 1.5 s; measuring all fully would take some 20 s" in lines
    assert lines[-3:] == ["a is the fastest", "BLOCK = 64", "MODE = 'fast'"]


SOURCE = '''"""Ünïcode before: the columns of Python are bytes."""
import triton.language as tl
BLOCK = 64
WARPS: int = 4  # é
ß = 1; SCALE = tl.constexpr(2)
TWICE = 1
TWICE = 2

def permute(x, dims):
    BLOCK_OF_CALL = BLOCK
    return x
'''


def test_each_combination_of_constants_is_a_source() -> None:
    made = configured(
        SOURCE, {"BLOCK": [64, 128], "WARPS": [8], "SCALE": [-1.5, "a"]}, "a.py", MOST
    )

    assert [dict(one.configuration) for one in made] == [
        {"BLOCK": block, "WARPS": 8, "SCALE": scale} for block in (64, 128) for scale in (-1.5, "a")
    ]
    changed = made[2].source.splitlines()
    assert changed[2:5] == [
        "BLOCK = 128",
        "WARPS: int = 8  # é",
        "ß = 1; SCALE = tl.constexpr(-1.5)",
    ]
    assert changed[5:] == SOURCE.splitlines()[5:]


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"BLOCKS": [1, 2]}, "over: BLOCKS is not assigned at the top level of a.py"),
        ({"BLOCK_OF_CALL": [1, 2]}, "The constants there are: BLOCK, SCALE, WARPS, ß"),
        ({"TWICE": [1, 2]}, "over: TWICE is assigned 2 times at the top level of a.py"),
        ({"BLOCK": []}, "over: BLOCK must have different values, got []"),
        ({"BLOCK": [1, 1]}, "over: BLOCK must have different values"),
        ({"BLOCK": [[1]]}, "over: BLOCK must have numbers, booleans or texts, got [1]"),
        ({"BLOCK": [*range(65)]}, "over may make 64 configurations, got 65"),
        ({}, "over must have 1 to 8 constants, got 0"),
        ({"a b": [1]}, "over must have names of constants such as BLOCK, got 'a b'"),
    ],
)
def test_what_cannot_be_tuned_is_refused(over: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        configured(SOURCE, over, "a.py", MOST)

    assert message in refused.value.detail


def test_a_source_that_cannot_be_parsed_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"over: a\.py cannot be parsed"):
        configured("def f(:\n", {"A": [1]}, "a.py", MOST)


def test_the_configurations_of_a_file_are_versions_of_one_name(tmp_path: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text("BLOCK = 1\n")

    made = entrants_of([file], {"BLOCK": [2, 3]}, "f")

    sources = [source_of(one.code) for one in made]
    assert [(one.label, one.name) for one in made] == [
        ("BLOCK = 2", "mine.tuning"),
        ("BLOCK = 3", "mine.tuning"),
    ]
    assert [(source.function, source.text) for source in sources] == [
        ("f", "BLOCK = 2\n"),
        ("f", "BLOCK = 3\n"),
    ]
    with pytest.raises(InvalidInput, match="over is for one source, got 2"):
        entrants_of([file, file], {"BLOCK": [2, 3]})


def test_progress_says_who_leads_and_who_left() -> None:
    event = {"phase": "rounds", "leader": "ann/a", "racing": 3, "waiting": 12}

    assert racing(event) == ": ann/a leads, 3 race, 12 wait"
    assert racing({"phase": "left", "leader": "ann/a", "ratio": 1.504}).endswith("1.5 times ann/a")
    assert racing({"phase": "rounds"}) == ""
