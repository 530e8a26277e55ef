"""Find words that this project does not use: python -m tools.check_words

A reader searches by the field's own words, and docs/glossary.md defines the few that are ours. The
words of `REPLACED` named our own parts once. None may come back as an identifier, in a message, in
a comment or in a page. `ALLOWED` lists the places where such a word has another, ordinary meaning.
"""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

# The word, and what is said instead.
REPLACED = {
    "road": "transport, path, variant",
    "errand": "tensor session",
    "desk": "job service",
    "office": "job database",
    "bell": "notify, subscribe",
    "account_sync": "account sync",
    "usage_counter": "usage",
    "gate": "authenticator",
    "edge": "gateway",
    "shelf": "tensor store",
    "shelves": "tensor stores",
    "told": "payload, record, response",
    "lent": "allocated",
    "turns": "fair semaphore",
    "he": "they",
    "him": "them",
    "his": "their",
}
# Files by pattern, a text that may stand there, and why. The text is a regular expression.
ALLOWED = (
    ("CHANGELOG.md", r"`[^`]*`", "the list of renamed settings and metrics has the old names"),
    ("demo/demo.py", r"show_edge", "a parameter of rich"),
    ("client/warpcall/_cli/output.py", r"pad_edge", "a parameter of rich"),
    ("demo/data/*", r".*", "texts of others"),
    ("tools/check_words.py", r".*", "names the words"),
    ("tests/test_words.py", r".*", "names the words"),
)
_SUFFIXES = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".conf", ".json", ".sh", ".cfg", ""}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def main() -> int:
    """Print each place where a replaced word stands; 1 if there is any."""
    found = [place for file in _files() for place in check(file, (ROOT / file).read_text())]
    for place in found:
        sys.stderr.write(f"{place}\n")
    return 1 if found else 0


def check(file: str, text: str) -> Iterator[str]:
    """The places in a file's text where a replaced word stands, each as one line."""
    allowed = [re.compile(what) for pattern, what, _ in ALLOWED if fnmatch.fnmatch(file, pattern)]
    for number, line in enumerate(text.splitlines(), 1):
        for what in allowed:
            line = what.sub("", line)
        for word in _WORD.findall(line):
            instead = REPLACED.get(word.lower()) or REPLACED.get(word.lower().removesuffix("s"))
            if instead is not None:
                yield f'{file}:{number}: write "{instead}" instead of "{word}"'


def _files() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.splitlines() if Path(name).suffix in _SUFFIXES]
    return [name for name in names if (ROOT / name).is_file() and name != "LICENSE"]


if __name__ == "__main__":
    sys.exit(main())
