"""The pages of share links: one job or one comparison, for people without a key."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

from tests.app.pages.conftest import SharedLab
from tests.app.pages.test_every_page import links_of


def test_a_link_shows_a_job_and_its_cases_and_leads_nowhere_else(shared_lab: SharedLab) -> None:
    _, path = shared_lab.share("done")
    waiting, seen = [path], set()

    with shared_lab.guest() as guest:
        first = guest.get(path)
        while waiting:
            address = waiting.pop()
            seen.add(address)
            page = guest.get(address)
            assert page.status_code == 200, address
            if page.headers["content-type"].startswith("text/html"):
                found = links_of(page)
                for link in (*found.links, *found.loaded):
                    target = urlsplit(urljoin(address, link))._replace(fragment="").geturl()
                    if target not in (*seen, *waiting, "/"):
                        waiting.append(target)
        elsewhere = guest.get(f"/jobs/{shared_lab.jobs['done']}")

    assert "ann/tiles: as fast as warpcall in 8 of 8 cases" in first.text
    assert '<nav aria-label="Pages"' not in first.text
    assert "<form" not in first.text
    assert sum("/cases/" in address for address in seen) == 2 * 8  # pages, and their JSON
    assert all(address.startswith((path, "/v1/shared/", "/static/")) for address in seen)
    assert elsewhere.status_code == 303


def test_a_link_shows_a_comparison(shared_lab: SharedLab) -> None:
    _, path = shared_lab.share("earlier", other=shared_lab.jobs["later"])

    with shared_lab.guest() as guest:
        page = guest.get(path)
        case = guest.get(f"{path}/cases/0")

    assert page.status_code == 200
    assert "The second job is faster in 8, the same in 24 of 32 rows" in page.text
    assert all(
        link.startswith(("../v1/shared/", "../", "#")) and "jobs" not in link
        for link in links_of(page).links
    )
    assert case.status_code == 404


def test_a_revoked_or_unknown_link_shows_a_page_that_says_so(shared_lab: SharedLab) -> None:
    share_id, path = shared_lab.share("done")

    with shared_lab.guest() as guest, shared_lab.app.client(shared_lab.key) as alice:
        before = guest.get(path)
        assert alice.delete(f"/v1/shares/{share_id}").status_code == 204
        after = [guest.get(path), guest.get(f"{path}/cases/0"), guest.get("/share/nothing")]

    assert before.status_code == 200
    assert [page.status_code for page in after] == [404] * 3
    assert all("does not exist, has expired or was revoked" in page.text for page in after)
    assert all('<nav aria-label="Pages"' not in page.text for page in after)
