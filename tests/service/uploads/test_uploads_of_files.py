"""Uploads of several files, by the command line and over HTTP, on a real server.

Their sandbox is that of `test_sandboxed_uploads`.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.client.command import WARPCALL
from tests.service.databases import Database
from tests.service.job_requests import BRIEF, ended, results, submit
from tests.service.requests import problem_of
from tests.service.uploads.requests import PATH, Lab, running_lab, upload

pytestmark = pytest.mark.slow

FAST = """import json
from pathlib import Path

import torch
import triton
from helpers import copy_kernel, check
from parts.more import BLOCK

TABLE = json.loads((Path(__file__).parent / "table.json").read_text())


def permute(x, dims):
    \"\"\"Permute with helpers.\"\"\"
    check(TABLE)
    y = x.permute(dims).contiguous()
    out = torch.empty_like(y)
    copy_kernel[(triton.cdiv(y.numel(), BLOCK),)](y, out, y.numel(), BLOCK=BLOCK)
    return out
"""
HELPERS = """import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def check(table):
    if not table["ok"]:
        raise ValueError("the table is wrong")
"""
TREE = {
    "permute.py": FAST,
    "helpers.py": HELPERS,
    "table.json": '{"ok": true}',
    "parts/more.py": "from .deep import BLOCK\n",
    "parts/deep.py": "BLOCK = 256\n",
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = str(tmp_path_factory.mktemp("data"))
    database = Database("sqlite", {"WARPCALL_DATA_DIR": folder})
    with running_lab(database, "ann", "bob", WARPCALL_UPLOAD_MAX_FILES="8", **BRIEF) as running:
        yield running


def folder_of(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def send(http: httpx.Client, text: str) -> None:
    assert http.put(f"/v1/files/{sha256(text)}", content=text.encode()).status_code == 204


def body(files: dict[str, str], **changes: Any) -> dict[str, Any]:
    others = {path: sha256(text) for path, text in files.items() if path != "permute.py"}
    given: dict[str, Any] = {"op": "permute", "source": files["permute.py"], "entry": "permute.py"}
    return {**given, "files": others, **changes}


def test_a_folder_with_helpers_and_a_data_file_is_timed_by_the_command_line(
    lab: Lab, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "kernels", TREE)
    archive = tmp_path / "again.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "kernels")
    case = ("--shape", "32x32", "--dtype", "bf16", "--dims", "1,0", "--precision", "quick")
    environment = {"WARPCALL_URL": lab.server.url, "WARPCALL_API_KEY": lab.keys["ann"]}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*WARPCALL, *words],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    bench = run("bench", "permute", "--mine", str(folder), *case, "--vs", "torch")
    again = run("implementations", "add", "permute", f"{archive}:permute.permute")
    shown = run("implementations", "show", "ann/kernels")
    deep = run("implementations", "show", "ann/kernels", "--file", "parts/deep.py")

    assert bench.returncode == 0, bench.stdout + bench.stderr
    assert "ann/kernels: right, not timed: no GPU" in bench.stdout
    assert "tags of ann/kernels: interpreted" in bench.stdout
    version = bench.stdout.partition("ann/kernels@")[2][:12]
    assert f"{archive} is ann/permute@{version}, uploaded now" in again.stdout
    assert "permute.py (the source)" in shown.stdout
    assert "parts/deep.py" in shown.stdout
    assert FAST.splitlines()[-1] in shown.stdout
    assert deep.stdout == TREE["parts/deep.py"]


def test_a_traceback_names_the_paths_of_the_author_and_no_others(lab: Lab) -> None:
    files = {**TREE, "table.json": '{"ok": false}'}
    with lab.http("ann") as ann:
        for text in files.values():
            send(ann, text)
        assert upload(ann, **body(files, name="wrong")).status_code == 201
        job = ended(ann, submit(ann, implementations=["torch", "ann/wrong"]))
        row = results(ann, job)["measurements"][1]

    assert (row["status"], row["error"]) == ("error", "ValueError: the table is wrong")
    assert 'File "permute.py", line 14, in permute' in row["traceback"]
    assert 'File "helpers.py", line 13, in check' in row["traceback"]
    assert "/tmp" not in row["traceback"]


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("parts/deep.py", "BLOCK = (\n", "source: parts/deep.py, line 1: SyntaxError: '(' was"),
        ("parts/deep.py", "1 / 0\n", "source: parts/deep.py, line 1: ZeroDivisionError: division"),
        ("helpers.py", "x = 1\n", "source: line 6: ImportError: cannot import name 'copy_kernel'"),
        ("pytest.py", "", ""),  # a process of uploads does not import it
        ("json.py", "", "files: a module at the root of the tree may not have the name json"),
        ("../up.py", "", "files: '../up.py' cannot be the path of a file"),
    ],
)
def test_a_tree_that_cannot_be_imported_is_refused_with_the_file_and_the_line(
    lab: Lab, path: str, text: str, said: str
) -> None:
    files = {**TREE, path: text}
    with lab.http("ann") as ann:
        for one in files.values():
            send(ann, one)
        answer = upload(ann, **body(files, name=f"refused{sha256(text + path)[:6]}"))

    if said:
        field = said.partition(":")[0]
        assert problem_of(answer, 422, "invalid-input", field).startswith(said)
    else:
        assert answer.status_code == 201, answer.text


def test_equal_files_of_another_user_make_no_difference(lab: Lab) -> None:
    tree = {**TREE, "parts/deep.py": "BLOCK = 128\n"}
    hashes = {"sha256": [sha256(text) for path, text in tree.items() if path != "permute.py"]}
    with lab.http("ann") as ann, lab.http("bob") as bob:
        for text in tree.values():
            send(ann, text)
        assert upload(ann, **body(tree, name="shared")).status_code == 201
        missing = [who.post("/v1/files/missing", json=hashes).json() for who in (ann, bob)]
        refused = problem_of(upload(bob, **body(tree)), 422, "invalid-input", "files")
        never = body({**tree, "parts/deep.py": "never sent"})
        same = problem_of(upload(bob, **never), 422, "invalid-input", "files")
        for text in tree.values():
            send(bob, text)
        taken = upload(bob, **body(tree))

    assert missing == [{"missing": []}, {"missing": hashes["sha256"]}]
    assert refused.startswith("files: helpers.py with the SHA-256")
    assert same == refused, "what others have sent does not show"
    assert taken.status_code == 201


def test_files_are_bounded_and_must_be_what_their_hash_says(lab: Lab) -> None:
    with lab.http("ann") as ann, lab.http("bob") as bob:
        wrong = ann.put(f"/v1/files/{sha256('x')}", content=b"y")
        no_hash = ann.put("/v1/files/abc", content=b"y")
        large = ann.put(f"/v1/files/{sha256('x')}", content=bytes((4 << 20) + 1))
        many = upload(ann, **body({**TREE, **{f"{n}.txt": "" for n in range(4)}}))
        send(ann, "x")
        private = body({**TREE, "table.json": '{"ok": 1}'}, name="hidden", private=True)
        send(ann, '{"ok": 1}')
        for text in TREE.values():
            send(ann, text)
        assert upload(ann, **private).status_code == 201
        own = ann.get(f"{PATH}/ann/hidden/files/table.json")
        hidden = bob.get(f"{PATH}/ann/hidden/files/table.json")
        none = ann.get(f"{PATH}/ann/hidden/files/nothing.json")

    assert problem_of(wrong, 422, "invalid-input", "body").startswith("body must have the SHA-256")
    assert no_hash.status_code == 422
    assert large.status_code == 413
    assert problem_of(many, 413, "too-large", "files").startswith(
        "files: an upload may have at most 8"
    )
    assert (own.json(), own.headers["content-disposition"]) == (
        {"ok": 1},
        'attachment; filename="table.json"',
    )
    assert (hidden.status_code, none.status_code) == (404, 404)


def test_the_page_shows_each_file_and_what_differs(lab: Lab) -> None:
    first = {**TREE, "old.txt": "gone", "table.json": '{"ok": true, "n": 1}'}
    second = {**TREE, "new.bin": "\0", "table.json": '{"ok": true, "n": 2}'}
    with lab.http("ann") as ann:
        found = []
        for files in (first, second):
            for text in files.values():
                send(ann, text)
            found.append(upload(ann, **body(files, name="paged")).json())
        page = ann.get("/implementations/ann/paged", headers={"accept": "text/html"}).text
        query = {"version": found[1]["version"], "against": found[0]["version"]}
        changed = ann.get("/implementations/ann/paged", params=query).text
        details = ann.get(f"{PATH}/ann/paged").json()

    for path in second:
        assert f'<span class="mono">{path}</span>' in page
    assert "copy_kernel" in page
    assert "It is no text." in page
    for path, state in (("old.txt", "removed"), ("new.bin", "added"), ("table.json", "changed")):
        assert f'<span class="mono">{path}</span> <span class="badge">{state}</span>' in changed
    assert "helpers.py" not in changed
    assert details["entry"] == "permute.py"
    assert [one["path"] for one in details["files"]] == sorted({*second} - {"permute.py"})
    assert details["nbytes"] == sum(len(text) for text in second.values())
    assert json.dumps(details["versions"]).count("sha256") == 2
