"""Lists of uploads in the database, on SQLite and PostgreSQL: sorted and filtered as a whole."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.pages import lab
from tests.service.job_rows import caller
from warpcall_bench.uploads.database import IMPLEMENTATIONS, UploadFilter
from warpcall_bench.uploads.tables import UploadedVersion
from warpcall_service.store.database import Store

UPLOADS = (("bob", "isin", "set"), ("ann", "permute", "tiles"), ("ann", "isin", "bits"))


@pytest.fixture
def stored(store: Store) -> Store:
    """Uploads in this order, all at the same time but the first."""
    for user, op, name in UPLOADS:
        lab.upload(store, user, op, name, f"# {name}")
    with store.write() as session:
        session.execute(sa.update(UploadedVersion).values(latest_ms=UploadedVersion.number // 2))
    return store


def listed(store: Store, **wanted: str) -> list[str]:
    """The names of all uploads, page by page."""
    found: list[str] = []
    before: str | None = None
    with store.read() as session:
        while len(found) < 10:
            asked = UploadFilter(limit=1, before=before, **wanted)
            rows, before = IMPLEMENTATIONS.page(session, caller("eve"), asked)
            found += [row.name for row in rows]
            if before is None:
                break
    return found


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        ("-uploaded", ["bits", "tiles", "set"]),
        ("uploaded", ["set", "tiles", "bits"]),
        ("name", ["bits", "tiles", "set"]),
        ("-name", ["set", "tiles", "bits"]),
        ("op", ["bits", "set", "tiles"]),
        ("-op", ["tiles", "bits", "set"]),
    ],
)
def test_uploads_in_any_order_come_whole_in_pages(
    stored: Store, sort: str, names: list[str]
) -> None:
    assert listed(stored, sort=sort) == names


def test_uploads_are_found_by_all_words_in_their_texts(stored: Store) -> None:
    assert listed(stored, words="ANN isin") == ["bits"]
    assert listed(stored, words="ann/t") == ["tiles"]
    assert listed(stored, words="registers") == ["bits", "tiles", "set"]
    assert listed(stored, words="ann set") == listed(stored, words="_") == []
