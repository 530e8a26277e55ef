"""Answers of the problems API, as the server sends them."""

from __future__ import annotations

from typing import Any

SOURCE = '"""Each row over its length."""\nPROBLEM = Problem(...)\n'
SHA256 = "3f2a91c0" + "cd" * 28
PROBLEM: dict[str, Any] = {
    "name": "ann/row-norm", "doc": "Each row over its length.", "user": "ann",
    "version": SHA256[:12], "sha256": SHA256, "private": False, "nbytes": len(SOURCE),
    "created_at": "2026-01-02T03:04:05.000Z", "inputs": ["x"], "params": ["eps"],
    "sizes": ["rows", "values"],
}  # fmt: skip
VERSION = {name: PROBLEM[name] for name in ("version", "sha256", "created_at", "nbytes")}
DECLARATION: dict[str, Any] = {
    "name": "ann/row-norm", "summary": "Each row over its length.", "description": "",
    "equivalent": "", "limits": "",
    "inputs": [
        {"name": "x", "dtypes": ["F32", "BF16"], "shape": "[4096, 1024]",
         "doc": "with default sizes", "optional": False},
    ],
    "outputs": [
        {"name": "out", "dtype": None, "shape": "[4096, 1024]", "doc": "with default sizes",
         "when": ""},
    ],
    "params": [
        {"name": "eps", "kind": "float", "doc": "added below the root", "default": 1e-06,
         "required": False, "schema": {"type": "number"}},
    ],
    "sizes": [
        {"name": "rows", "doc": "number of rows", "default": 4096, "minimum": 1, "choices": []},
        {"name": "values", "doc": "what to draw", "default": "normal", "minimum": 0,
         "choices": ["normal", "special"]},
    ],
    "dtypes": ["F32", "BF16"], "source_sha256": SHA256,
}  # fmt: skip
DETAILS: dict[str, Any] = {
    **PROBLEM, "source": SOURCE, "declaration": DECLARATION, "versions": [VERSION],
}  # fmt: skip
PROBLEMS: dict[str, Any] = {"problems": [PROBLEM], "next": None}
