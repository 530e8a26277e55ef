"""Checks a problem: python -m warpcall_service.worker.problem_check, in the sandbox, without a GPU.

It gets a `ProblemRequest` as a frame and answers with one frame:

- without `job`, the check of an upload: `doc`, the first line of the module's docstring, `function`,
  the name of the reference (empty if it is no identifier), and `declaration`, the op as in
  `GET /v1/kernels/{name}` with `sizes` and `dtypes`;
- with `job`: `cases`, each with `spec`, `key` and `device_bytes`;
- if something is wrong: `error`, a sentence that names the line, and `field`: "source", or as for
  jobs of other ops a path below "cases.N" or "sweep", such as "sweep.sizes.rows".
"""

from __future__ import annotations


def main() -> None:
    """Answer one request."""
    raise NotImplementedError


if __name__ == "__main__":
    main()
