"""Reads a task of gpu-mode: a folder with `task.yml`, `reference.py`, and submissions."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from warpcall._cli.files import UsageError
from warpcall._imports.sources import (
    Candidate,
    Imported,
    implementation_source,
    module_name,
    problem_name,
    problem_source,
    upload_name,
)
from warpcall._jobs.source import read_source

KIND = "gpu_mode"
TASK, REFERENCE, SUBMISSION = "task.yml", "reference.py", "submission.py"
FUNCTIONS = ("generate_input", "ref_kernel")
KERNEL = "custom_kernel"
PLACEHOLDER = "@SUBMISSION@"  # what task.yml has in place of the submission's path
MOST_FILES = 16
MOST_CASES = 64
MOST_VALUES = 32


def read_task(folder: Path, submissions: Sequence[Path]) -> Imported:
    """The task of a folder, and its submissions: by default `submission.py` in it, if there is one.

    Raises:
        UsageError: a file is missing or wrong; the message names it.
    """
    task = _load(folder / TASK)
    files = _files(folder, task)
    own = folder / SUBMISSION
    chosen = [*submissions] or ([own] if own.is_file() else [])
    _check(folder / REFERENCE, files.get(REFERENCE, ""), FUNCTIONS)
    tests, benchmarks = (_cases(folder, task, name) for name in ("tests", "benchmarks"))
    if not tests and not benchmarks:
        raise UsageError(f"{folder / TASK}: it must list tests or benchmarks")
    values = _values(folder, [*tests, *benchmarks])
    numbered_tests, numbered = (
        [*map(dict, dict.fromkeys(tuple(_numbered(one, values).items()) for one in cases))]
        for cases in (tests, benchmarks)
    )
    first = (numbered or numbered_tests)[0]
    rtol = _rtol(files[REFERENCE])
    name = problem_name(folder.resolve().name.removesuffix("_py"))
    doc = str(task.get("description") or f"{name}, a task of gpu-mode.").strip().partition("\n")[0]
    return Imported(
        path=folder,
        name=name,
        source=problem_source(doc, KIND, files, first, values, rtol),
        candidates=[_candidate(one, files, [*first], values) for one in chosen],
        assumed=_assumed(task, files, rtol, len(numbered_tests), len(numbered)),
        tests=numbered_tests,
        benchmarks=numbered,
    )


def _load(path: Path) -> Mapping[str, Any]:
    try:
        import yaml  # an extra
    except ImportError:
        raise UsageError(
            f"reading {path} needs PyYAML: pip install 'warpcall[import]', or pip install pyyaml"
        ) from None
    try:
        found = yaml.safe_load(read_source(path))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"{path}: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: it must be a mapping with tests and benchmarks")
    language = found.get("lang", "py")
    if language != "py":
        raise UsageError(f"{path}: lang must be py, got {language!r:.40}")
    return found


def _files(folder: Path, task: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the Python files that a task has, without the submission and what evaluates it."""
    path, config = folder / TASK, task.get("config")
    main = config.get("main") if isinstance(config, dict) else None
    listed = task.get("files")
    if listed is None:
        listed = [{"name": one.name, "source": one.name} for one in sorted(folder.glob("*.py"))]
        listed = [one for one in listed if one["name"] != SUBMISSION]
    if not isinstance(listed, list) or len(listed) > MOST_FILES:
        raise UsageError(f"{path}: files must be a list of at most {MOST_FILES}")
    found = {}
    for number, one in enumerate(listed):
        name, source = (
            (one.get(key) for key in ("name", "source")) if isinstance(one, dict) else (None, None)
        )
        if not isinstance(name, str) or not isinstance(source, str):
            raise UsageError(f"{path}: files.{number} must have a name and a source")
        if source == PLACEHOLDER or name in (main, "eval.py") or Path(name).suffix != ".py":
            continue
        if Path(source).suffix != ".py":
            raise UsageError(
                f"{path}: files.{number}.source must be a .py file, got {source!r:.80}"
            )
        found[module_name(Path(name))] = read_source(folder / source)
    return found


def _check(path: Path, text: str, functions: Sequence[str]) -> ast.Module:
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        where = f"line {line}: " if line else ""
        raise UsageError(f"{path}: {where}{type(error).__name__}: {error}") from None
    names = {getattr(one, "name", None) for one in module.body}
    for one in module.body:
        if isinstance(one, ast.Assign):
            names |= {target.id for target in one.targets if isinstance(target, ast.Name)}
        if isinstance(one, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in one.names}
    if missing := [one for one in functions if one not in names]:
        raise UsageError(f"{path}: it must define {' and '.join(functions)}; it lacks {missing[0]}")
    return module


def _cases(folder: Path, task: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The arguments of `generate_input` for each test or benchmark, without the seed."""
    path, listed = folder / TASK, task.get(name) or []
    if not isinstance(listed, list) or len(listed) > MOST_CASES:
        raise UsageError(f"{path}: {name} must be a list of at most {MOST_CASES} cases")
    found = []
    for number, one in enumerate(listed):
        if not isinstance(one, dict) or not all(
            isinstance(key, str)
            and key.isidentifier()
            and isinstance(value, int | float | str | bool | None)
            for key, value in one.items()
        ):
            raise UsageError(f"{path}: {name}.{number} must be numbers and words by name")
        found.append({key: value for key, value in one.items() if key != "seed"})
    return found


def _values(folder: Path, cases: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """For arguments that are not always counts, their values in the order of the cases.

    Raises:
        UsageError: not all cases have the same arguments.
    """
    names = [*cases[0]]
    if any({*one} != {*names} for one in cases):
        raise UsageError(
            f"{folder / TASK}: all tests and benchmarks must have the same names, such as "
            f"{', '.join(names) or 'size'}"
        )
    found: dict[str, list[Any]] = {}
    for name in names:
        given = [one[name] for one in cases]
        if not all(type(one) is int and one >= 0 for one in given):
            found[name] = [value for _, value in dict.fromkeys((type(v), v) for v in given)]
            if len(found[name]) > MOST_VALUES:
                raise UsageError(
                    f"{folder / TASK}: {name} must have at most {MOST_VALUES} values that are no counts"
                )
    return found


def _numbered(case: Mapping[str, Any], values: Mapping[str, list[Any]]) -> dict[str, int]:
    return {
        name: [(type(v), v) for v in values[name]].index((type(one), one))
        if name in values
        else one
        for name, one in case.items()
    }


def _candidate(
    path: Path, files: Mapping[str, str], sizes: list[str], values: Mapping[str, Any]
) -> Candidate:
    text = read_source(path)
    _check(path, text, (KERNEL,))
    name = module_name(path)
    if name in files:
        raise UsageError(f"{path}: a submission must not have the name of a file of the task")
    doc = f"{KERNEL} of {path.name}."
    source = implementation_source(doc, KIND, {**files, name: text}, name, sizes, values)
    return Candidate(path, upload_name(path), source)


def _rtol(reference: str) -> float | None:
    """The largest `rtol` that the reference's file gives to a comparison; None without one."""
    found = [
        word.value.value
        for node in ast.walk(ast.parse(reference))
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg == "rtol" and isinstance(word.value, ast.Constant)
    ]
    numbers = [float(one) for one in found if isinstance(one, int | float) and 0 < one < 1]
    return max(numbers, default=None)


def _assumed(
    task: Mapping[str, Any], files: Mapping[str, str], rtol: float | None, tests: int, timed: int
) -> list[str]:
    ignored = [
        one for one in ("test_timeout", "benchmark_timeout", "ranked_timeout") if one in task
    ]
    lines = [
        f"cases: the {timed} benchmarks are timed, after the {tests} tests are checked; seeds are not used",
        (
            "inputs: the server draws new values for each check, in the shapes and distributions of "
            "generate_input"
        ),
        (
            "memory: tensors of generate_input that are empty or zero are made anew in each call, which is "
            "timed; those without random values are made once"
        ),
        "results: compared with ref_kernel in double precision; check_implementation is not called",
        f"tolerance: {rtol:g}, the largest rtol in {REFERENCE}, or the default of problems if that is more"
        if rtol is not None
        else f"tolerance: the default of problems, because {REFERENCE} names no rtol",
        f"files: {', '.join(files)}",
        "odd cases: not checked, because the task names the only sizes",
    ]
    if ignored:
        lines.append(f"not used: {', '.join(ignored)}: the limits of the server hold")
    return lines
