"""Answers of the implementations API, as the server sends them."""

from __future__ import annotations

from typing import Any

SHA256 = "3f2a91c0" + "ab" * 28
SHIPPED: dict[str, Any] = {
    "name": "torch", "kind": "shipped", "op": None, "doc": "Plain PyTorch.", "user": None,
    "version": None, "sha256": None, "function": None, "private": None, "nbytes": None,
    "created_at": None, "verified": False, "language": None,
}  # fmt: skip
UPLOADED: dict[str, Any] = {
    "name": "ann/my_permute", "kind": "uploaded", "op": "permute", "doc": "Permute by tiles.",
    "user": "ann", "version": SHA256[:12], "sha256": SHA256, "function": "permute",
    "private": False, "nbytes": 1200, "created_at": "2026-01-02T03:04:05.000Z",
    "verified": False, "language": "python",
}  # fmt: skip
VERSION = {name: UPLOADED[name] for name in ("version", "sha256", "created_at", "nbytes")}
UPLOAD_DETAILS: dict[str, Any] = {
    **UPLOADED,
    "source": "def permute(x, dims):\n    return x.permute(dims).contiguous()\n",
    "versions": [VERSION],
    "launches": None,
}
IMPLEMENTATIONS: dict[str, Any] = {
    "implementations": [SHIPPED, UPLOADED],
    "errors": [{"module": "lab_kernels", "error": "No module named 'lab'"}],
    "next": None,
}
ENVIRONMENT: dict[str, Any] = {
    "python": "3.11.9", "torch": "2.11.0", "triton": "3.6.0", "cuda": "12.9",
    "device": "NVIDIA H200", "uploads": "sandboxed", "trouble": "",
    "tools": {"ptxas": "/usr/bin/ptxas", "nvcc": None},
    "packages": [["numpy", "2.3.1"], ["torch", "2.11.0"]],
    "limits": {
        "source_bytes": 262144, "check_s": 20, "tmp_bytes": 1 << 30, "processes": 512,
        "memory_bytes": 1 << 34,
    },
}  # fmt: skip
