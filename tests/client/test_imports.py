"""What `warpcall import` reads of files, without a server."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.e2e.imported_files import ACTIVATION, LINEAR, SOFTMAX, write_all
from warpcall._cli.files import UsageError
from warpcall._imports.command import read_files
from warpcall._imports.kernelbench import sizes_of
from warpcall._imports.sources import Imported, problem_name, problem_source


def read(folder: Path, *names: str) -> Imported:
    return read_files([folder / name for name in names])


def files_of(source: str) -> dict[str, str]:
    """The files that a source has."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FILES":
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise AssertionError(source)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_all(tmp_path)
    return tmp_path


def test_sizes_are_integers_that_inputs_or_weights_follow_from() -> None:
    assert sizes_of(ACTIVATION) == {"batch_size": 4096, "dim": 16384}
    assert sizes_of(LINEAR) == {"batch": 128, "in_features": 4096}
    assert sizes_of(SOFTMAX) == {"length": 100}
    assert sizes_of(LINEAR + "\nbatch = 7\n") == {"in_features": 4096}
    assert sizes_of(LINEAR.replace("batch = 128", "batch = -1")) == {"in_features": 4096}


def test_a_problem_does_not_change_with_the_model_new_in_its_file(folder: Path) -> None:
    before = read(folder, "3_Activation.py")
    (folder / "3_Activation.py").write_text(ACTIVATION.replace("silu(x) * SCALE", "relu(x)"))
    after = read(folder, "3_Activation.py")

    assert before.source == after.source
    assert before.candidates[0].source != after.candidates[0].source
    assert "ModelNew" not in files_of(before.source)["3_Activation.py"]
    assert files_of(before.candidates[0].source) == {"3_Activation.py": ACTIVATION}
    assert before.name == "activation"


def test_a_task_has_its_files_its_cases_and_its_tolerance(folder: Path) -> None:
    add, score = read(folder, "add_py"), read(folder, "score_py", "mine.py")

    assert [*files_of(add.source)] == ["task.py", "utils.py", "reference.py"]
    assert [one.name for one in add.candidates] == ["submission"]
    assert (add.tests, add.benchmarks) == ([{"size": 31}], [{"size": 64}])
    assert any("tolerance: 0.01, " in line for line in add.assumed)
    assert any("the 1 benchmarks are timed, after the 1 tests" in line for line in add.assumed)
    assert any("not used: test_timeout, ranked_timeout" in line for line in add.assumed)
    assert [*score.tests, *score.benchmarks] == [
        {"rows": 5, "kind": 0, "bias": 0},
        {"rows": 6, "kind": 1, "bias": 1},
        {"rows": 64, "kind": 1, "bias": 1},
    ]
    assert "{'kind': ['plain', 'squared'], 'bias': [False, True]}" in score.source


@pytest.mark.parametrize(
    "text", ["x = 'a'\n", "x = '''a'''\n", "x = '\\n'  # \\", "x = 'é\t'\n", "", "a\r\nb", "x'"]
)
def test_a_source_has_its_files_exactly(text: str) -> None:
    source = problem_source('A "doc" \\', "kernelbench", {"a.py": text}, "a.py", {"n": 3})

    assert files_of(source) == {"a.py": text}
    assert source.splitlines()[-1].endswith("FILES, 'a.py', {'n': 3}, module=__name__)")


def test_a_name_follows_from_the_file() -> None:
    assert problem_name("1_Square_matrix_multiplication_") == "square-matrix-multiplication"
    assert problem_name("vectoradd") == "vectoradd"
    assert problem_name("___") == "problem"


@pytest.mark.parametrize(
    ("file", "old", "new", "names", "message"),
    [
        ("linear.py", "def get_inputs", "def inputs", ("linear.py",), "lacks get_inputs"),
        ("linear.py", "class Model(", "class Model((", ("linear.py",), "linear.py: line 6: Syntax"),
        ("utils.py", "", "", ("linear.py", "utils.py"), "must define the class ModelNew"),
        ("utils.py", "", "", ("absent.py",), "there is no such file"),
        ("utils.py", "", "", (".",), "must have the task.yml"),
        ("utils.py", "", "", ("linear.py", "add_py"), "an implementation must be a file"),
        ("add_py/task.yml", 'lang: "py"', "lang: cu", ("add_py",), "lang must be py, got 'cu'"),
        ("add_py/task.yml", "files:", "files: {", ("add_py",), "task.yml: while parsing"),
        ("add_py/task.yml", "../utils.py", "/etc/passwd", ("add_py",), "must be a .py file"),
        ("add_py/task.yml", '{"size": 31, "seed": 2}', "{}", ("add_py",), "the same names"),
        ("add_py/task.yml", '{"size": 31, "seed": 2}', "[1]", ("add_py",), "tests.1 must be"),
        ("add_py/reference.py", "def ref_kernel", "def f", ("add_py",), "it lacks ref_kernel"),
        ("add_py/submission.py", "def custom_kernel", "def f", ("add_py",), "custom_kernel"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused(
    folder: Path, file: str, old: str, new: str, names: tuple[str, ...], message: str
) -> None:
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))

    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        read(folder, *names)
