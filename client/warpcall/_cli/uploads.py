"""Uploads that options and arguments name as FILE or FILE:FUNCTION."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from warpcall import Client
from warpcall._cli.files import UsageError
from warpcall._explain.gpus import GPUS
from warpcall._jobs.source import CUDA_SUFFIX
from warpcall._jobs.trees import is_tree
from warpcall._jobs.verified import read_launches
from warpcall.compile_reports import ARCHITECTURES
from warpcall.errors import InvalidInput
from warpcall.implementations import UploadedImplementation
from warpcall.problems import UploadedProblem

Verified = Annotated[
    bool,
    typer.Option(
        "--verified",
        help="Time only the compiled kernels of FILE, launched by the server's own code. CUDA C++ "
        "(.cu) always is verified.",
    ),
]
Launches = Annotated[
    Path | None,
    typer.Option(
        "--launches",
        metavar="FILE.json",
        help="Declaration of what one call launches. Default: what a comment in CUDA C++ or the "
        "decorator warpcall.launches declares, or else what a call of the function launches.",
    ),
]
GpuName = Annotated[
    str,
    typer.Option(
        "--gpu",
        metavar="GPU",
        autocompletion=lambda: [*ARCHITECTURES, *GPUS],
        help=f"The architecture: {', '.join(ARCHITECTURES)}; or a GPU that has it, such as "
        "h100 or 'rtx 4090'.",
    ),
]
SUFFIXES = (".py", CUDA_SUFFIX)


@dataclass(frozen=True)
class Upload:
    """A file, folder or tarball to upload, and the function in it; None for the function with the op's
    name.

    Attributes:
        verified: whether only its kernels shall be timed.
        launches: declaration of its launches; None for that in the file.
    """

    path: Path
    function: str | None
    verified: bool = False
    launches: dict[str, Any] | None = None

    def send(
        self, gpu: Client, op: str, *, name: str | None = None, private: bool | None = None
    ) -> UploadedImplementation:
        """Upload the file.

        Raises:
            UsageError: the file, or the source in it, is refused; the message names the file.
        """
        with errors_naming(self.path, name):
            return gpu.implementations.add(
                op,
                self.path,
                function=self.function,
                name=name,
                private=private,
                verified=self.verified,
                launches=self.launches,
            )


@contextmanager
def errors_naming(path: Path, name: str | None) -> Iterator[None]:
    """Raise refusals of a file, or of the source in it, as usage errors that name the file.

    Args:
        name: the value of --name, which such an error names instead if it is the one that is wrong.
    """
    try:
        yield
    except InvalidInput as error:
        by_option = error.field == "name" and name is not None
        label = "--name" if by_option else str(path)
        detail = error.detail.removeprefix(f"{error.field}: ")
        named = detail.startswith(label)
        raise UsageError(detail if named else f"{label}: {detail}") from None


def is_file(text: str) -> bool:
    """Whether a value names a file, a folder or a tarball, such as new.py, new.py:fast or
    kernels:new.fast, and no upload or op."""
    path = Path(text.partition(":")[0])
    return path.suffix in SUFFIXES or is_tree(path) or Path(text).is_file()


def upload_of(text: str) -> Upload:
    """Parse FILE or FILE:FUNCTION; of a folder or a tarball DIR, DIR:MODULE.FUNCTION or DIR:FILE.

    Raises:
        UsageError: what follows the last colon is not the name of a function.
    """
    path, colon, function = text.rpartition(":")
    if not colon or Path(text).exists():
        return Upload(Path(text), None)
    if path and function and is_tree(Path(path)):
        return Upload(Path(path), function)
    if not path or not function.isidentifier():
        raise UsageError(
            f"a file to upload must be such as my_permute.py or my_permute.py:fast, got {text!r}"
        )
    if Path(path).suffix == CUDA_SUFFIX:
        raise UsageError(
            f"{path}: its declaration of launches names the kernels, so {function} must be left out"
        )
    return Upload(Path(path), function)


def verified_uploads(
    texts: Sequence[str], *, verified: bool, launches: Path | None
) -> list[Upload]:
    """Parse each FILE or FILE:FUNCTION, with the options --verified and --launches.

    Raises:
        UsageError: as `upload_of`; there is not one file for --launches; its file is wrong.
    """
    uploads = [replace(upload_of(text), verified=verified) for text in texts]
    if launches is None:
        return uploads
    if len(uploads) != 1:
        raise UsageError(f"--launches is for one file, got {len(uploads)}")
    try:
        return [replace(uploads[0], launches=read_launches(launches))]
    except InvalidInput as error:
        raise UsageError(error.detail) from None


def job_names(uploaded: Sequence[UploadedImplementation]) -> list[str]:
    """Names by which a job times exactly these versions.

    "user/name" stands for the latest version, which is the one that was uploaded last, even if it
    was there before. The history of that name has all its versions. Only where two uploads have
    one name, each is named with its version.
    """
    same = Counter(one.name for one in uploaded)
    return [one.name if same[one.name] == 1 else f"{one.name}@{one.version}" for one in uploaded]


def described(path: Path, uploaded: UploadedImplementation | UploadedProblem) -> str:
    """One line that says under which name and version a file is stored."""
    how = "uploaded now" if uploaded.created else "uploaded before"
    return f"{path} is {uploaded.name}@{uploaded.version}, {how}"
