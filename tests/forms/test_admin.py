"""The log and the files of a server that has shown a new key once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.forms.conftest import FormsLab, browser
from tests.forms.fields import fields_of, new_word
from tests.service.requests import log_of
from tests.waiting import until

pytestmark = pytest.mark.slow

KEY = re.compile(r'<pre class="secret">(wc_[0-9a-f]{8}_[\w-]+)</pre>')


def create_key(lab: FormsLab, user: str, token: Any) -> httpx.Response:
    data = {"token": token, "user": user, "role": "call", "lifetime": "7 days"}
    return lab.admin.post("/admin/keys", data=data)


def test_a_key_is_kept_nowhere_and_shown_to_no_other_administrator(lab: FormsLab) -> None:
    user = new_word()
    assert lab.admin.post("/admin/users", data={"name": user}).status_code == 303
    token = fields_of(lab.admin.get("/admin"))["token"]
    other_key = lab.database.key("second", "admin")

    secret = KEY.search(create_key(lab, user, token).text)
    with browser(lab.server, other_key) as other:
        until(lambda: other.get("/v1/me").status_code == 200)
        data = {"token": token, "user": user, "role": "call", "lifetime": "7 days"}
        again = other.post("/admin/keys", data=data)
        seen = [other.get(path).text for path in ("/admin", "/", "/v1/me")]

    assert secret is not None
    hidden = secret[1].split("_", 2)[2]  # it may have an underscore, too
    folder = Path(lab.database.settings["WARPCALL_DATA_DIR"])
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert again.status_code == 422
    assert not [text for text in (again.text, *seen, log_of(lab.server)) if hidden in text]
    assert len(hidden) > 20
    assert not [path for path in files if hidden.encode() in path.read_bytes()]
    assert f"created a key of '{user}'" in log_of(lab.server)
