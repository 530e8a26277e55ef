"""Folders and tarballs as uploads: what is read, what is refused, and which file has the function."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from warpcall._cli.files import UsageError
from warpcall._cli.uploads import is_file, upload_of
from warpcall._jobs.source import source_of
from warpcall._jobs.trees import MOST_BYTES, MOST_FILES, read_tree
from warpcall.errors import InvalidInput, TooLarge

FAST = "from helpers import x\ndef permute(x, dims): ...\n"


def folder_of(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    return info


def tarball(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


def test_a_folder_is_its_files_without_hidden_and_compiled_ones(tmp_path: Path) -> None:
    files = {"permute.py": FAST, "helpers.py": "x = 1\n", "data/t.npy": "t"}
    left_out = {".git/x": "", ".env": "", "__pycache__/a.pyc": "", "data/b.pyc": "", "data/.c": ""}
    folder = folder_of(tmp_path / "kernels", {**files, **left_out})

    source = source_of(folder, op="permute")

    assert (source.text, source.entry, source.name) == (FAST, "permute.py", "kernels")
    assert source.files == {"helpers.py": b"x = 1\n", "data/t.npy": b"t"}


def test_a_folder_with_one_file_is_that_file(tmp_path: Path) -> None:
    source = source_of(folder_of(tmp_path / "kernels", {"permute.py": FAST}), op="permute")

    assert (source.text, source.entry, dict(source.files)) == (FAST, None, {})


@pytest.mark.parametrize(
    ("form", "suffix"),
    [
        ("tar", "tar"),
        ("gztar", "tar.gz"),
        ("gztar", "tgz"),
        ("bztar", "tar.bz2"),
        ("xztar", "tar.xz"),
    ],
)
def test_a_tarball_is_what_its_folder_is(tmp_path: Path, form: str, suffix: str) -> None:
    files = {"fast.py": FAST, "helpers.py": "x = 1\n", "sub/deep.py": ""}
    folder = folder_of(tmp_path / "kernels", files)
    made = shutil.make_archive(str(tmp_path / "made"), form, tmp_path, "kernels")
    path = Path(made).rename(tmp_path / f"kernels.{suffix}")

    source = source_of(path, function="fast.permute")

    assert read_tree(path) == read_tree(folder)
    assert (source.entry, source.function, source.name) == ("fast.py", "permute", "kernels")


def test_the_file_with_the_function_is_found_or_named(tmp_path: Path) -> None:
    files = {"one.py": "1\n", "two/three.py": "3\n", "four/__init__.py": "4\n"}
    folder = folder_of(tmp_path / "kernels", files)

    assert source_of(folder).entry == "one.py"
    for function, entry, name in (
        ("two.three.permute", "two/three.py", "permute"),
        ("four.permute", "four/__init__.py", "permute"),
        ("permute2", "one.py", "permute2"),
        ("two/three.py", "two/three.py", None),
    ):
        source = source_of(folder, function=function)
        assert (source.entry, source.function) == (entry, name)
    with pytest.raises(InvalidInput, match=r"has no module five, its modules are: four\.__init__"):
        source_of(folder, function="five.permute")
    (folder / "other.py").write_text("")
    with pytest.raises(
        InvalidInput, match=r"name the one with the function, as .*:module\.function"
    ):
        source_of(folder, op="permute")


def test_a_folder_that_is_a_package_keeps_its_name(tmp_path: Path) -> None:
    files = {"__init__.py": "", "fast.py": FAST, "helpers.py": "x = 1\n"}
    folder = folder_of(tmp_path / "kernels", files)
    wrong = folder_of(tmp_path / "my-kernels", files)

    source = source_of(folder, function="fast.permute")

    assert (source.entry, source.function) == ("kernels/fast.py", "permute")
    assert sorted(source.files) == ["kernels/__init__.py", "kernels/helpers.py"]
    with pytest.raises(InvalidInput, match="must be that of a module, got 'my-kernels'"):
        source_of(wrong, function="fast.permute")


def test_links_and_what_is_no_file_are_refused(tmp_path: Path) -> None:
    for name, make in (
        ("link.py", lambda path: path.symlink_to("/etc/passwd")),
        ("folder", lambda path: path.symlink_to("/etc")),
        ("pipe", os.mkfifo),
    ):
        folder = folder_of(tmp_path / f"of {name}", {"permute.py": FAST})
        make(folder / name)
        with pytest.raises(
            InvalidInput, match=f"{name} is (a link|no regular file), and an upload"
        ):
            read_tree(folder)


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (member("a/../../up.py"), "leads out of the tarball"),
        (member("/etc/passwd"), "leads out of the tarball"),
        (member("link", kind=tarfile.SYMTYPE), "link is a link"),
        (member("link", kind=tarfile.LNKTYPE), "link is a link"),
        (member("disk", kind=tarfile.BLKTYPE), "disk is no regular file"),
        (member("disk", kind=tarfile.CHRTYPE), "disk is no regular file"),
        (member("pipe", kind=tarfile.FIFOTYPE), "pipe is no regular file"),
        (member("a.py"), r"has a\.py twice"),
    ],
)
def test_links_devices_and_ways_out_of_a_tarball_are_refused(
    tmp_path: Path, info: tarfile.TarInfo, reason: str
) -> None:
    path = tarball(tmp_path / "k.tar.gz", (member("a.py"), b""), (info, b""))

    with pytest.raises(InvalidInput, match=reason):
        read_tree(path)


def test_more_than_the_limits_is_refused_before_it_is_in_memory(tmp_path: Path) -> None:
    def refused(write: Callable[[Path], object], reason: str) -> None:
        path = tmp_path / "k.tar.gz"
        write(path)
        with pytest.raises(TooLarge, match=reason):
            read_tree(path)

    def large_member(path: Path) -> None:
        info = member("a.bin")
        info.size = 1 << 40
        path.write_bytes(gzip.compress(info.tobuf()))

    def endless_header(path: Path) -> None:
        info = member("././@PaxHeader", kind=tarfile.XHDTYPE)
        info.size = 1 << 32
        with gzip.open(path, "wb", compresslevel=1) as file:
            file.write(info.tobuf())
            for _ in range(48):
                file.write(bytes(1 << 20))

    refused(large_member, "at most 8 MiB of files")
    refused(endless_header, "at most 32 MiB when it is decompressed")
    many = [(member(f"{number}.py"), b"") for number in range(MOST_FILES + 1)]
    refused(lambda path: tarball(path, *many), "at most 1000 files")
    folder = folder_of(tmp_path / "kernels", {"a.py": ""})
    with (folder / "big.bin").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(TooLarge, match="at most 8 MiB of files"):
        read_tree(folder)


def test_what_is_no_tarball_or_has_no_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.tar").write_text("no tarball at all" * 100)
    (tmp_path / "cut.tar.gz").write_bytes(gzip.compress(b"x" * 5000)[:20])
    (tmp_path / "empty").mkdir()

    for name in ("text.tar", "cut.tar.gz"):
        with pytest.raises(InvalidInput, match="is no tarball that can be read"):
            read_tree(tmp_path / name)
    with pytest.raises(InvalidInput, match="has no files"):
        read_tree(tmp_path / "empty")


def test_the_command_line_takes_a_folder_with_a_module_and_a_function(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "kernels", {"fast.py": FAST})

    for text, function in ((f"{folder}", None), (f"{folder}:fast.permute", "fast.permute")):
        assert is_file(text)
        assert (upload_of(text).path, upload_of(text).function) == (folder, function)
    assert upload_of("k.tar.gz:fast.permute").function == "fast.permute"
    with pytest.raises(UsageError, match="must be such as my_permute"):
        upload_of("mine.py:fast.permute")
