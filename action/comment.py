"""Write a file as a comment on a pull request, or replace the comment that an earlier run wrote.

The comment is recognised by a line that GitHub does not show: the text in MARK. Only what runs of
GitHub Actions have as environment variables is used, and no package.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

PAGE = 100  # comments that GitHub sends at once, at most
MOST_PAGES = 30
TIMEOUT_S = 30


def main() -> None:
    """Write the comment with the text of the file that the command line names."""
    mark = f"<!-- warpcall regression: {os.environ['MARK'].replace('--', '- -')} -->"
    body = {"body": f"{mark}\n{Path(sys.argv[1]).read_text()}"}
    comments = (
        f"/repos/{os.environ['GITHUB_REPOSITORY']}/issues/{os.environ['PULL_REQUEST']}/comments"
    )
    known = _find(comments, mark)
    if known is None:
        _ask("POST", comments, body)
    else:
        _ask("PATCH", f"/repos/{os.environ['GITHUB_REPOSITORY']}/issues/comments/{known}", body)


def _find(comments: str, mark: str) -> int | None:
    """The id of the comment that begins with the mark."""
    for page in range(1, MOST_PAGES + 1):
        found = _ask("GET", f"{comments}?per_page={PAGE}&page={page}")
        for comment in found:
            if (comment["body"] or "").startswith(mark):
                return int(comment["id"])
        if len(found) < PAGE:
            break
    return None


def _ask(method: str, path: str, body: Any = None) -> Any:
    url = os.environ.get("GITHUB_API_URL", "https://api.github.com") + path
    headers = {
        "Accept": "application/vnd.github+json",
        "Authorization": f"Bearer {os.environ['TOKEN']}",
        "X-GitHub-Api-Version": "2022-11-28",
    }
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
