"""The page and the heat map of a grid that `python -m bench.kernels grid` measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from warpcall_kernels._isin.rule import Variant

Cell = Mapping[str, Any]
NAMES = ("dtype", "values", "elements", "test_elements")  # of a cell

# The ratio from which on a cell has this colour: slower than another candidate, level, faster.
COLOURS = (
    (0.0, "#b2182b"),
    (0.95, "#f7f7f7"),
    (1.1, "#d1e5f0"),
    (1.5, "#92c5de"),
    (2.5, "#4393c3"),
    (5.0, "#2166ac"),
)
WHITE_FROM = 2.5  # ratios whose text is white
SIDE, HIGH = 44, 20  # of a cell in the map, in pixels
LEFT, TOP, GAP = 52, 40, 30


def ratio_of(cell: Cell) -> float:
    """The time of the best other candidate over ours; above 1, ours is faster."""
    return min(cell["others_us"].values(), default=math.inf) / float(cell["us"])


def _panels(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    panels: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        panels.setdefault((cell["dtype"], cell["values"]), []).append(cell)
    return panels


def _against(cells: Iterable[Cell], others: tuple[str, ...]) -> str:
    logs = [
        math.log(min(times) / cell["us"])
        for cell in cells
        if (times := [us for name, us in cell["others_us"].items() if name in others])
    ]
    return f"{math.exp(sum(logs) / len(logs)):.2f} x" if logs else ""


def markdown(results: Mapping[str, Any]) -> str:
    """The tables: a summary, then for each dtype and kind of values each cell in us and as a ratio."""
    machine, panels = results["machine"], _panels(results["cells"])
    lines = [
        (
            f"{machine['gpu']}, torch {machine['torch']}, Triton {machine['triton']}, "
            f"CUDA {machine['cuda']}, {machine['date']}."
        ),
        "",
        (
            "| values | cells | least ratio | cells below 0.95 | against torch | against torch.compile | "
            "against the best other variant |"
        ),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    own = tuple(Variant)
    for (dtype, values), cells in panels.items():
        ratios = [ratio_of(cell) for cell in cells]
        below = sum(ratio < COLOURS[1][0] for ratio in ratios)
        means = " | ".join(
            _against(cells, names) for names in (("torch",), ("torch.compile",), own)
        )
        lines.append(f"| {dtype} {values} | {len(cells)} | {min(ratios):.2f} | {below} | {means} |")
    lines += ["", *_slower(results["cells"])]
    for (dtype, values), cells in panels.items():
        columns = sorted({cell["test_elements"] for cell in cells})
        lines += ["", f"## {dtype} {values}", ""]
        lines.append("| elements | " + " | ".join(map(_power, columns)) + " |")
        lines.append("| ---: |" + " ---: |" * len(columns))
        by = {(cell["elements"], cell["test_elements"]): cell for cell in cells}
        for m in sorted({cell["elements"] for cell in cells}):
            shown = [_shown(by[m, n]) if (m, n) in by else "" for n in columns]
            lines.append(f"| {_power(m)} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def _slower(cells: Sequence[Cell]) -> list[str]:
    """A table of the cells below 0.95, each with what its candidates take for values of the other kind.

    The rule does not know the kind, so that this says whether the other candidate would be better.
    """
    if all(ratio_of(cell) >= COLOURS[1][0] for cell in cells):
        return ["No cell is below 0.95."]
    by = {tuple(cell[name] for name in NAMES): cell for cell in cells}
    lines = ["| cell below 0.95 | ours | best other | ratio | the same two for the other values |"]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for cell in cells:
        if ratio_of(cell) >= COLOURS[1][0]:
            continue
        best = min(cell["others_us"], key=cell["others_us"].__getitem__)
        kind = "dense" if cell["values"] == "sparse" else "sparse"
        other = by[cell["dtype"], kind, cell["elements"], cell["test_elements"]]
        times = {other["variant"]: other["us"], **other["others_us"]}
        two = ", ".join(_time(times[name]) for name in (cell["variant"], best) if name in times)
        what = f"{cell['dtype']} {cell['values']} {_power(cell['elements'])} in "
        lines.append(
            f"| {what}{_power(cell['test_elements'])} | {cell['variant']} {_time(cell['us'])} "
            f"| {best} {_time(cell['others_us'][best])} | {ratio_of(cell):.2f} | {two} |"
        )
    return lines


def _time(us: float) -> str:
    return f"{us:.1f}" if us < 100 else f"{us:.0f}"


def _shown(cell: Cell) -> str:
    return f"{_time(cell['us'])} {cell['variant'][:2]} {ratio_of(cell):.2f}"


def _power(number: int) -> str:
    return f"2^{number.bit_length() - 1}"


def heat_map(results: Mapping[str, Any]) -> str:
    """The ratios as an SVG."""
    panels = _panels(results["cells"])
    parts: list[str] = []
    top = 0
    width = 0
    for (dtype, values), cells in panels.items():
        rows = sorted({cell["elements"] for cell in cells})
        columns = sorted({cell["test_elements"] for cell in cells})
        width = max(width, LEFT + SIDE * len(columns))
        parts.append(
            _text(LEFT, top + 14, f"{dtype} {values}: elements down, test elements across")
        )
        for j, n in enumerate(columns):
            parts.append(_text(LEFT + SIDE * j + SIDE // 2, top + TOP - 8, _power(n), "middle"))
        for i, m in enumerate(rows):
            parts.append(_text(LEFT - 6, top + TOP + HIGH * i + 14, _power(m), "end"))
        for cell in cells:
            x = LEFT + SIDE * columns.index(cell["test_elements"])
            y = top + TOP + HIGH * rows.index(cell["elements"])
            ratio = ratio_of(cell)
            colour = [colour for least, colour in COLOURS if ratio >= least][-1]
            ink = "#fff" if ratio >= WHITE_FROM or ratio < COLOURS[1][0] else "#000"
            parts.append(
                f'<rect x="{x}" y="{y}" width="{SIDE - 1}" height="{HIGH - 1}" fill="{colour}"/>'
            )
            parts.append(_text(x + SIDE // 2, y + 14, f"{ratio:.2f}", "middle", ink))
        top += TOP + HIGH * len(rows) + GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 4} {top}" '
        f'width="{width + 4}" height="{top}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="{width + 4}" height="{top}" fill="#fff"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def _text(x: int, y: int, text: str, anchor: str = "start", fill: str = "#000") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{fill}">{text}</text>'
