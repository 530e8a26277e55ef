"""The hash of an operator's module covers all files of its package, and runs none of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from warpcall_bench.runs import sources
from warpcall_bench.runs.operator_modules import LIMIT, SHIPPED
from warpcall_bench.runs.sources import SourceUnknown, package_files, package_sha256

RAISES = "raise AssertionError('it was imported')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages from which modules can be imported; each raises."""
    for name in ("lab/__init__.py", "lab/kernels/__init__.py", "lab/kernels/fast.py", "lab/x.cu"):
        write(tmp_path / name)
    for name in ("alone.py", "helper.py", "space/inner/one.py", "space/inner/two.py", "space/a.py"):
        write(tmp_path / name)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write(file: Path, text: str = RAISES) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("module", "file", "covered"),
    [
        ("lab.kernels.fast", "lab/kernels/fast.py", True),
        ("lab.kernels.fast", "lab/__init__.py", True),
        ("lab.kernels.fast", "lab/x.cu", True),
        ("lab", "lab/kernels/fast.py", True),
        ("lab.kernels.fast", "lab/new/more.py", True),
        ("lab.kernels.fast", "lab/__pycache__/fast.cpython-311.pyc", False),
        ("lab.kernels.fast", "lab/__pycache__/fast.compiled-1.nbi", False),
        ("lab.kernels.fast", "lab/kernels/fast.pyc", False),
        ("lab.kernels.fast", "lab/.git/index", False),
        ("lab.kernels.fast", "alone.py", False),
        ("alone", "alone.py", True),
        ("alone", "helper.py", True),
        ("alone", "notes.txt", False),
        ("space.inner.one", "space/inner/two.py", True),
        ("space.inner.one", "space/a.py", False),
    ],
)
def test_a_change_of_a_file_of_the_package_changes_the_hash(
    module: str, file: str, covered: bool, folder: Path
) -> None:
    before = package_sha256(module)

    write(folder / file, "changed")

    assert (package_sha256(module) != before) is covered
    assert module not in sys.modules


def test_a_file_that_is_renamed_or_removed_changes_the_hash(folder: Path) -> None:
    found = [package_sha256("lab")]
    (folder / "lab/x.cu").rename(folder / "lab/y.cu")
    found.append(package_sha256("lab"))
    (folder / "lab/y.cu").unlink()
    found.append(package_sha256("lab"))

    assert len(set(found)) == 3


@pytest.mark.parametrize(
    "module", ["nothing", "space", "alone.inner", "space.nothing", "__main__.x"]
)
def test_a_module_that_does_not_exist_is_named(module: str, folder: Path) -> None:
    with pytest.raises(SourceUnknown, match=f"there is no module {module}"):
        package_sha256(module)


@pytest.mark.parametrize(
    ("limit", "call"),
    [("MAX_FILES", package_files), ("MAX_BYTES", package_sha256)],
)
def test_a_package_that_is_too_large_is_refused(
    limit: str, call: Callable[[str], object], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, limit, 3)

    with pytest.raises(SourceUnknown, match="more than 3"):
        call("lab")


def test_the_server_knows_the_names_of_shipped_implementations() -> None:
    from warpcall_kernels import measuring

    assert (*(one.name for one in measuring.shipped()), LIMIT) == SHIPPED
