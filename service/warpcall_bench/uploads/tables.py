"""The tables of uploaded implementations and problems, and of those that jobs need."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from warpcall_service.store.schema import CODE_LENGTH, NAME_LENGTH, Base

PATH_LENGTH = 200  # of a file of an upload


class Uploaded(Base):
    """The columns of all tables of uploaded source. A row is one version of a name.

    A row is deleted when its user has deleted the version and no unfinished job needs it.

    Attributes:
        function: name of the function in the source: the implementation's, or a problem's reference.
        sha256: the version.
        nbytes: size of the source in UTF-8.
        private: whether only its user and administrators may read and time it.
        doc: first line of the docstring, of the function or of a problem's module.
        created_ms: when it was uploaded first.
        latest_ms: when it was uploaded last. The version of a name with the highest is the latest.
        deleted_ms: when its user deleted it; nobody sees it from then on.
    """

    __abstract__ = True

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True
    )
    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    function: Mapped[str] = mapped_column(String(NAME_LENGTH))
    sha256: Mapped[str] = mapped_column(String(64))
    nbytes: Mapped[int]
    private: Mapped[bool]
    doc: Mapped[str] = mapped_column(Text)
    created_ms: Mapped[int] = mapped_column(BigInteger)
    latest_ms: Mapped[int] = mapped_column(BigInteger)
    deleted_ms: Mapped[int | None] = mapped_column(BigInteger)
    source: Mapped[str] = mapped_column(Text, deferred=True)


class UploadedVersion(Uploaded):
    """One version of an implementation that a user uploaded.

    Its `sha256` is `runs.messages.version_of` of op, function, source, what is in `verified`, and the
    paths and hashes of its other files.

    Attributes:
        op: name of an op of the library, or of a problem without its version.
        entry: path of the source among the files of the upload; null if it is a single file.
        files_nbytes: bytes of its other files.
        verified: JSON of `runs.messages.Verified`; null unless it is a verified one.
        odd_cases: what checks in the op's odd cases found, by kind of device ("gpu", "cpu"), as JSON
            of `runs.results.OddCasesModel`; null before the first one, and in old rows.
    """

    __tablename__ = "implementations"
    __table_args__ = (
        Index("ix_implementations_version", "user_name", "name", "sha256", unique=True),
        Index("ix_implementations_latest", "latest_ms", "number"),
    )

    op: Mapped[str] = mapped_column(String(CODE_LENGTH))
    entry: Mapped[str | None] = mapped_column(String(PATH_LENGTH))
    files_nbytes: Mapped[int] = mapped_column(server_default="0")
    verified: Mapped[str | None] = mapped_column(Text)
    odd_cases: Mapped[str | None] = mapped_column(Text)


class StoredFile(Base):
    """A file that a user sent for uploads of several files, without a name.

    Users have rows of their own for equal files, so that nobody can find out or use what others have.
    A row is deleted some time after no version of its user and no unfinished scratch run needs it.

    Attributes:
        used_ms: when the user sent it, or asked whether it is there, for the last time.
    """

    __tablename__ = "upload_files"
    __table_args__ = (Index("ix_upload_files_sha256", "user_name", "sha256", unique=True),)

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True
    )
    user_name: Mapped[str] = mapped_column(String(NAME_LENGTH))
    sha256: Mapped[str] = mapped_column(String(64))
    nbytes: Mapped[int]
    used_ms: Mapped[int] = mapped_column(BigInteger, index=True)
    content: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)


class TreeFile(Base):
    """A file of a version of several files, besides its source."""

    __tablename__ = "implementation_files"

    upload_number: Mapped[int] = mapped_column(
        ForeignKey(UploadedVersion.number, ondelete="CASCADE"), primary_key=True
    )
    path: Mapped[str] = mapped_column(String(PATH_LENGTH), primary_key=True)
    file_number: Mapped[int] = mapped_column(ForeignKey(StoredFile.number), index=True)


class StoredProblem(Uploaded):
    """One version of a problem that a user uploaded.

    Its `sha256` is `runs.messages.problem_version` of the source.

    Attributes:
        outline: names of its inputs, parameters and sizes, as JSON.
        declaration: the op that it declares, as JSON of `Op.describe`.
    """

    __tablename__ = "problems"
    __table_args__ = (
        Index("ix_problems_version", "user_name", "name", "sha256", unique=True),
        Index("ix_problems_latest", "latest_ms", "number"),
    )

    outline: Mapped[str] = mapped_column(Text)
    declaration: Mapped[str] = mapped_column(Text, deferred=True)


class JobUpload(Base):
    """An uploaded version that an unfinished job needs. It is deleted when the job ends.

    Attributes:
        implementation: as the job has it among its implementations.
    """

    __tablename__ = "job_uploads"

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
    implementation: Mapped[str] = mapped_column(String(CODE_LENGTH), primary_key=True)
    upload_number: Mapped[int] = mapped_column(ForeignKey(UploadedVersion.number), index=True)


class JobFile(Base):
    """A file that an unfinished scratch run needs. It is deleted when the job ends.

    Attributes:
        path: in the folder in which the command starts.
    """

    __tablename__ = "job_files"

    job_number: Mapped[int] = mapped_column(ForeignKey("jobs.number"), primary_key=True)
    path: Mapped[str] = mapped_column(String(PATH_LENGTH), primary_key=True)
    file_number: Mapped[int] = mapped_column(ForeignKey(StoredFile.number), index=True)
