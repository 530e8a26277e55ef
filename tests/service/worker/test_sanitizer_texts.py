"""The short text of what compute-sanitizer writes, whatever that is."""

from __future__ import annotations

import pytest

from tests.service.worker.fake_sanitizer import NO_ERROR, NO_RACE, OUT_OF_BOUNDS, RACE
from warpcall.jobs.results import FOUND
from warpcall_bench.jobs.sanitized import MAX_CHARS, short_text
from warpcall_bench.profilers import sanitizer
from warpcall_bench.runs.events import ProfileMade

LEAK = "========= LEAK SUMMARY: 8 bytes leaked in 1 allocations\n"
END = "========= ERROR SUMMARY: 2 errors\n"
HEAD = "========= COMPUTE-SANITIZER\n"
ENDED = "========= Target application returned an error\n"
OF_API = (
    '========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" '
    "on CUDA API call to cudaDeviceSynchronize.\n"
)


@pytest.mark.parametrize(
    ("written", "short", "is_found"),
    [
        (NO_ERROR, "0 errors", False),
        (NO_RACE, "0 hazards (0 errors, 0 warnings)", False),
        (HEAD + LEAK + "========= ERROR SUMMARY: 1 error\n", "1 error", True),
        (
            HEAD + ENDED + OF_API + "=========\n" + END,
            f"2 errors, first: {OF_API[10:-1]}",
            True,
        ),
    ],
)
def test_the_sum_and_the_first_finding(written: str, short: str, is_found: bool) -> None:
    assert sanitizer.short_text("memcheck", written) == short
    assert bool(FOUND.match(short)) is is_found


@pytest.mark.parametrize("written", ["", HEAD, OF_API, "ERROR SUMMARY: 0 errors", "=" * 60_000])
def test_without_a_sum_there_is_no_text(written: str) -> None:
    assert sanitizer.short_text("memcheck", written) is None


@pytest.mark.parametrize("written", [OUT_OF_BOUNDS, RACE])
def test_what_was_found_is_an_error(written: str) -> None:
    assert FOUND.match(sanitizer.short_text("memcheck", written) or "")


@pytest.mark.parametrize(
    ("content", "error", "text"),
    [
        (b"memcheck: 0 errors\n\nmore", "", "0 errors"),
        (b"memcheck: 1 error, \x1b[31mred\xff\nx", "", "1 error, \ufffd[31mred\ufffd"),
        (b"", "", ""),
        (b"x" * 100_000, "", "x" * MAX_CHARS),
        (b"", "no\x00 GPU", "not run: no\ufffd GPU"),
    ],
)
def test_a_text_of_a_jobs_process_is_bounded_and_printable(
    content: bytes, error: str, text: str
) -> None:
    made = ProfileMade(0, "ann/mine", "memcheck.txt", content, error)

    shown = short_text(made)

    assert len(shown) <= MAX_CHARS
    assert shown.isprintable()
    assert shown.replace(" ", "\ufffd") == text.replace(" ", "\ufffd")
