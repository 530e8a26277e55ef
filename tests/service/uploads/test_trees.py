"""Uploads of several files: which paths are refused, versions, and whose files they may have."""

from __future__ import annotations

import hashlib
import json
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.service import job_rows
from warpcall.errors import InvalidInput, TooLarge
from warpcall_bench.programs import uploaded
from warpcall_bench.runs import trees
from warpcall_bench.runs.messages import Upload, version_of
from warpcall_bench.uploads import files, job_uploads
from warpcall_bench.uploads.database import IMPLEMENTATIONS, store_file
from warpcall_bench.uploads.new_versions import NewImplementation, Quota
from warpcall_bench.uploads.tables import StoredFile, TreeFile
from warpcall_bench.uploads.trees import Tree, checked_tree
from warpcall_service.auth import users
from warpcall_service.identity import Caller
from warpcall_service.store.database import Store

ANN, BOB = Caller("ann", "upload"), Caller("bob", "upload")
QUOTA = Quota(versions=3, nbytes=10_000)
SHA = "0" * 64
SOURCE = "from helpers import turn\ndef permute(x, dims):\n    return turn(x, dims)\n"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def implementation(source: str, entry: str, contents: Mapping[str, bytes]) -> NewImplementation:
    tree = Tree(entry, {path: sha256(content) for path, content in contents.items()})
    fields: dict[str, Any] = {"op": "permute", "function": "permute", "name": "mine"}
    return NewImplementation(**fields, source=source, private=None, tree=tree)


def send(store: Store, caller: Caller, content: bytes, quota: Quota = QUOTA) -> bool:
    with store.write() as session:
        return store_file(session, caller, sha256(content), content, quota)


def put(store: Store, caller: Caller, new: NewImplementation) -> int:
    with store.write() as session:
        row, _ = IMPLEMENTATIONS.store(session, caller, new, {"doc": ""}, QUOTA)
        return row.number


def stored(store: Store) -> list[tuple[str, bytes]]:
    with store.read() as session:
        found = session.execute(sa.select(StoredFile.user_name, StoredFile.content))
        return sorted((user, content) for user, content in found)


@pytest.fixture
def _users(store: Store) -> None:
    with store.write() as session:
        for name in ("ann", "bob"):
            users.add_user(session, name)


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "../up.py", "a/../b.py", "a//b.py", "./a.py", "a/.hidden", ".env", ""),
        *(
            "a\\b.py",
            "a b.py",
            "ü.py",
            "a\0.py",
            "a\n.py",
            "a/",
            "con:1",
            "x" * 101,
            "d/" * 8 + "f",
        ),
        *("-o", "a."),
    ],
)
def test_a_path_that_leads_elsewhere_or_is_not_portable_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be the path of a file: each part has") as error:
        checked_tree("fast.py", {path: SHA}, 10)

    assert error.value.field == "files"


@pytest.mark.parametrize(
    ("entry", "paths", "reason"),
    [
        ("fast.py", ["A.txt", "a.TXT"], "A.txt and a.TXT are the same path|a.TXT and A.txt are"),
        ("fast.py", ["FAST.py"], "FAST.py and fast.py are the same path"),
        ("fast.py", ["fast.py"], "fast.py and fast.py are the same path"),
        ("fast.py", ["a", "a/b"], "a is a file, and the folder of a/b"),
        ("fast.py", ["torch.py"], "may not have the name torch"),
        ("fast.py", ["triton/__init__.py"], "may not have the name triton"),
        ("fast.py", ["warpcall_kernels.so"], "may not have the name warpcall_kernels"),
        ("copy.py", ["a.py"], "may not have the name copy"),
        (None, ["a.py"], "entry must be the path of the source"),
        ("fast.txt", ["a.py"], "entry must end with .py"),
        ("a-b/fast.py", ["a.py"], "'a-b' cannot be the name of a module"),
        ("__init__.py", ["a.py"], "a package must be a folder of the tree"),
        ("fast.py", [f"{n}.txt" for n in range(10)], "at most 10 files"),
    ],
)
def test_paths_that_do_not_fit_together_are_refused(
    entry: str | None, paths: list[str], reason: str
) -> None:
    with pytest.raises((InvalidInput, TooLarge), match=reason):
        checked_tree(entry, dict.fromkeys(paths, SHA), 10)


def test_a_hash_must_be_one() -> None:
    with pytest.raises(InvalidInput, match=r"the value of a\.py must be the SHA-256"):
        checked_tree("fast.py", {"a.py": "0"}, 10)


def test_folders_and_data_may_have_names_of_modules() -> None:
    found = checked_tree("fast.py", {"data/torch.py": SHA, "copy/table.npy": SHA}, 10)

    assert found.entry == "fast.py"


def test_a_version_depends_on_all_files_and_that_of_a_single_file_is_as_before() -> None:
    alone = hashlib.sha256(json.dumps(["permute", "permute", "x"]).encode()).hexdigest()
    given: dict[str, Any] = {"entry": "a.py", "files": {"b.py": SHA}}
    whole = version_of("permute", "permute", "x", **given)
    others = [{**given, "entry": "c.py"}, {**given, "files": {"b.py": "1" * 64}}]

    assert version_of("permute", "permute", "x") == alone
    assert checked_tree("a.py", {}, 10) == Tree()
    versions = {version_of("permute", "permute", "x", **one) for one in others}
    assert len({alone, whole, *versions}) == 4


@pytest.mark.usefixtures("_users")
def test_files_of_another_user_can_be_neither_seen_nor_used(store: Store) -> None:
    secret = b"of ann"
    send(store, ANN, secret)
    new = implementation(SOURCE, "fast.py", {"helpers.py": secret})

    with store.write() as session:
        asked = [files.missing(session, user, [sha256(secret), SHA]) for user in ("ann", "bob")]
    with pytest.raises(InvalidInput, match=r"helpers\.py with the SHA-256 .* has not been sent"):
        put(store, BOB, new)
    with pytest.raises(InvalidInput, match="has not been sent"), store.read() as session:
        files.read(session, "bob", SOURCE, new.tree, 1000)
    again = send(store, BOB, secret)
    put(store, BOB, new)

    assert asked == [[SHA], [sha256(secret), SHA]]
    assert again, "bob's own file is new, although ann has an equal one"
    assert stored(store) == [("ann", secret), ("bob", secret)]


@pytest.mark.usefixtures("_users")
def test_files_count_against_the_quota_and_all_of_an_upload_have_a_limit(store: Store) -> None:
    with pytest.raises(TooLarge, match="with this file they would be 5024"):
        send(store, ANN, b"x" * 4000, Quota(3, 5000))
    send(store, ANN, b"x" * 4000)
    send(store, ANN, b"x" * 4000)
    new = implementation(SOURCE, "fast.py", {"a.txt": b"x" * 4000, "b.txt": b"x" * 4000})

    with pytest.raises(TooLarge, match="at most 8000 bytes together"), store.read() as session:
        files.read(session, "ann", SOURCE, new.tree, 8000)
    with store.read() as session:
        assert files.nbytes_of(session, "ann") == 4000 + files.ROW_BYTES
        sent = files.read(session, "ann", SOURCE, new.tree, 9000)

    assert len(sent["contents"]) == 1, "an equal file is sent once"


@pytest.mark.usefixtures("_users")
def test_a_job_has_the_files_until_it_ends_and_retention_deletes_them_later(store: Store) -> None:
    helper = b"def turn(x, dims):\n    return x.permute(dims).contiguous()\n"
    send(store, ANN, helper)
    send(store, ANN, b"of no version")
    put(store, ANN, implementation(SOURCE, "fast.py", {"helpers.py": helper}))
    job_rows.submit(store, "ann", implementations=["ann/mine"])
    job = job_rows.claim(store)
    assert job is not None

    with store.read() as session:
        (upload,), contents = job_uploads.of_job(session, job.number)
    with store.write() as session:
        files.delete_unneeded(session)
        kept = session.scalar(sa.select(sa.func.count()).select_from(StoredFile))
        session.execute(sa.update(StoredFile).values(used_ms=0))
        IMPLEMENTATIONS.delete(session, ANN, "ann", "mine", None)
    with store.write() as session:
        files.delete_unneeded(session)
    while_it_runs = stored(store)
    job_rows.finish(store, job.number, 1)
    with store.write() as session:
        files.delete_unneeded(session)
        links = session.scalar(sa.select(sa.func.count()).select_from(TreeFile))

    assert (upload["entry"], upload["files"]) == ("fast.py", {"helpers.py": sha256(helper)})
    assert contents == {sha256(helper): helper}
    assert kept == 2, "a file that was just sent stays for a version that comes"
    assert while_it_runs == [("ann", helper)]
    assert (stored(store), links) == ([], 0)


@pytest.fixture
def _clean_imports() -> Iterator[None]:
    path, modules = [*sys.path], {*sys.modules}
    yield
    sys.path[:] = path
    for name in {*sys.modules} - modules:
        del sys.modules[name]


def upload_of(entry: str, source: str, contents: Mapping[str, bytes]) -> Upload:
    return {
        "name": "ann/mine",
        "op": "permute",
        "function": "permute",
        "source": source,
        "entry": entry,
        "files": {path: sha256(content) for path, content in contents.items()},
        "contents": {sha256(one): b64encode(one).decode() for one in contents.values()},
    }


@pytest.mark.usefixtures("_clean_imports")
def test_modules_of_a_package_import_each_other_and_read_data_beside_them(tmp_path: Path) -> None:
    source = (
        "from pathlib import Path\nfrom .parts.one import ONE\nimport mypack.parts\n"
        "TABLE = (Path(__file__).parent / 'table.txt').read_text()\n"
        "def permute(x, dims):\n    return (ONE, TABLE, __name__)\n"
    )
    contents = {
        "mypack/__init__.py": b"",
        "mypack/parts/__init__.py": b"",
        "mypack/parts/one.py": b"from ..two import TWO\nONE = TWO - 1\n",
        "mypack/two.py": b"TWO = 2\n",
        "mypack/table.txt": b"a table",
    }

    loaded = uploaded.load(upload_of("mypack/fast.py", source, contents), tmp_path)

    assert loaded.error is None
    assert loaded.function is not None
    assert loaded.function(x=0, dims=()) == (1, "a table", "mypack.fast")


@pytest.mark.usefixtures("_clean_imports")
def test_a_module_that_is_imported_already_is_not_taken_for_that_of_an_upload(
    tmp_path: Path,
) -> None:
    given = upload_of("fast.py", "def permute(x, dims): ...\n", {"pytest.py": b""})

    loaded = uploaded.load(given, tmp_path)

    assert loaded.function is None
    assert isinstance(loaded.error, trees.Shadows)
    assert "may not have the name pytest" in str(loaded.error)
