"""How the candidates of a race stood at its looks, in at most MOST_POINTS of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warpcall_kernels.measuring._result import RaceHistory

MOST_POINTS = 48  # of a history; a race of 5,000 rounds looks some 120 times
DIGITS = 4  # of a ratio


class History:
    """Collects points. If there are too many, every second one is dropped, and then only every second
    look is kept, and so on: the distance between two points grows with the race.

    Args:
        names: of the candidates, by the number of their columns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._points: list[tuple[int, float, Mapping[int, float]]] = []
        self._looks = 0
        self._every = 1

    def add(self, rounds: int, seconds: float, ratios: Mapping[int, float]) -> None:
        """Add the point of a look.

        Args:
            rounds: how many were taken.
            seconds: of the race until then.
            ratios: the time of each that races over that of the leader; before the second round
                there are none.
        """
        if not ratios:
            return
        self._looks += 1
        if (self._looks - 1) % self._every == 0:
            self._points.append((rounds, seconds, ratios))
        if len(self._points) >= MOST_POINTS:
            self._points = self._points[::2]
            self._every *= 2

    def end(self, rounds: int, seconds: float, ratios: Mapping[int, float]) -> None:
        """Add the last point, whether or not it is one of those that are kept."""
        if ratios and (not self._points or self._points[-1][0] < rounds):
            self._points.append((rounds, seconds, ratios))

    def result(self) -> RaceHistory:
        """What was collected, as data."""
        present = sorted({number for _, _, ratios in self._points for number in ratios})
        return RaceHistory(
            tuple(rounds for rounds, _, _ in self._points),
            tuple(round(seconds, 3) for _, seconds, _ in self._points),
            {
                self._names[number]: tuple(
                    None if (found := ratios.get(number)) is None else float(f"{found:.{DIGITS}g}")
                    for _, _, ratios in self._points
                )
                for number in present
            },
        )
