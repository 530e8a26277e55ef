"""The documentation as pages: the Markdown of `docs`, and a search in it.

In a clone the folders `guide` and `examples` beside this module are links to `docs` and `examples`.
The wheel has the files themselves, because hatchling follows links. A page is rendered when it is
first asked for, within 30 ms.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from warpcall.errors import NotFound
from warpcall_bench.compressed import Compressed
from warpcall_bench.pages.view import View, page, render

INDEX = "index"  # the page at /guide, which leads to all others
FOLDERS = {"docs": "guide", "examples": "examples"}  # in the repository, and beside this module
MEDIA = {".png": "image/png", ".svg": "image/svg+xml", ".py": "text/plain; charset=utf-8"}
MOST_FOUND = 20  # sections that a search shows
MOST_CHARACTERS = 240  # of a section that a search shows
DAY_S = 86_400
# What a search does not show of Markdown: targets of links, and the signs of code, tables and stress.
MARKS = re.compile(r"\]\([^)]*\)|^```\w*$|[`*|\[]|-{3,}", re.MULTILINE)

Words = Annotated[str, Query(max_length=100)]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading of a page with the text below it, up to the next heading.

    Attributes:
        page: name of the page, such as "benchmarks/h200".
        level: 1 is the title of the page.
        id: of the element, as GitHub makes it of the heading.
    """

    page: str
    level: int
    heading: str
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Found:
    """A section in which all words of a search stand."""

    section: Section
    title: str
    excerpt: str


@functools.cache
def files() -> Mapping[str, Path]:
    """The files of the guide by their names in it: pages without `.md`, others as they are called."""
    found = {}
    for folder, beside in FOLDERS.items():
        root = (Path(__file__).parent / beside).resolve()
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in (".md", *MEDIA):
                name = name.removesuffix(".md")
                found[name if folder == "docs" else f"{folder}/{name}"] = path
    return found


@functools.cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    rules: Any = parser.renderer
    rules.rules["table_open"] = lambda *_: '<div class="scroll"><table>\n'
    rules.rules["table_close"] = lambda *_: "</table></div>\n"
    return parser


@functools.cache
def _tokens(name: str) -> Sequence[Token]:
    return _parser().parse(files()[name].read_text())


@functools.cache
def sections(name: str) -> Sequence[Section]:
    """The sections of a page in their order. The first one has its title."""
    lines, tokens = files()[name].read_text().splitlines(), _tokens(name)
    heads = [at for at, token in enumerate(tokens) if token.type == "heading_open"]
    places = [tokens[at].map or [0, 0] for at in heads] + [[len(lines), 0]]
    found: list[Section] = []
    for at, (_, begin), (end, _) in zip(heads, places, places[1:], strict=False):
        heading = "".join(one.content for one in tokens[at + 1].children or () if one.content)
        id_ = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        known = sum(re.fullmatch(rf"{re.escape(id_)}(-\d+)?", one.id) is not None for one in found)
        text = "\n".join(lines[begin:end])
        level = int(tokens[at].tag[1:])
        found.append(Section(name, level, heading, f"{id_}-{known}" if known else id_, text))
    return found


@functools.cache
def rendered(name: str, base: str) -> Markup:
    """A page as HTML. Links are relative: `base` leads from its address to the server's root."""
    tokens = [token.copy() for token in _tokens(name)]
    ids = iter(sections(name))
    for token in tokens:
        if token.type == "heading_open":
            token.attrSet("id", next(ids).id)
        elif "style" in token.attrs:  # of a cell; the policy of pages allows no styles here
            del token.attrs["style"]
            token.attrSet("class", "num")
        elif token.children:
            token.children = list(_linked(token.children, name, base))
    parser = _parser()
    html = parser.renderer.render(tokens, parser.options, {})
    return Markup(html)  # nosec B704  # HTML in the Markdown is escaped


def _linked(tokens: Sequence[Token], name: str, base: str) -> Iterator[Token]:
    """The tokens of a paragraph with links to the pages of the guide.

    What is not in the guide is no link: the address of another host follows in parentheses.
    """
    behind: list[Token] = []  # what ends each link that is open
    for token in tokens:
        if token.type == "image":
            path = posixpath.join(posixpath.dirname(name), str(token.attrs["src"]))
            yield token.copy(attrs={"src": f"{base}guide/{posixpath.normpath(path)}"})
        elif token.type == "link_open":
            href = str(token.attrs["href"])
            target = _target(name, href, base)
            if target is not None:
                behind.append(Token("link_close", "a", -1))
                yield token.copy(attrs={"href": target})
            else:
                other = urlsplit(href).netloc and token.markup != "autolink"
                behind.append(Token("text", "", 0, content=f" ({href})" if other else ""))
        elif token.type == "link_close":
            yield behind.pop()
        else:
            yield token


def _target(name: str, href: str, base: str) -> str | None:
    """Where a link of a page leads; None if that is not in the guide."""
    path, _, fragment = href.partition("#")
    if not path:
        return href
    behind = f"#{fragment}" if fragment else ""
    whole = posixpath.normpath(posixpath.join("docs", posixpath.dirname(name), path))
    wanted = whole.removeprefix("docs/").removesuffix(".md")
    if wanted not in files():
        return None
    return f"{base}guide{behind}" if wanted == INDEX else f"{base}guide/{wanted}{behind}"


@functools.cache
def _pages() -> Sequence[str]:
    """The names of all pages, in the order in which the index leads to them."""
    index = files()[INDEX].read_text()
    names = [name for name, path in files().items() if path.suffix == ".md"]
    return sorted(names, key=lambda name: index.find(f"]({name}.md") % (len(index) + 1))


def search(words: str) -> list[Found]:
    """The sections in which all words stand, those with most of them in their heading first."""
    wanted = words.lower().split()
    found = []
    for order, name in enumerate(_pages()):
        title = sections(name)[0].heading
        for section in sections(name):
            heading, text = section.heading.lower(), section.text.lower()
            if all(word in heading or word in text for word in wanted):
                rank = -sum(word in heading for word in wanted), order
                found.append((rank, Found(section, title, _excerpt(section.text, wanted))))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])[:MOST_FOUND]]


def _excerpt(text: str, wanted: Sequence[str]) -> str:
    """The part of a section around the first of the words that stands in it."""
    plain = " ".join(MARKS.sub(" ", text).split())
    places = [at for word in wanted if (at := plain.lower().find(word)) >= 0]
    begin = max(0, min(places, default=0) - MOST_CHARACTERS // 3)
    begin = plain.rfind(" ", 0, begin) + 1 if begin else 0
    end = begin + MOST_CHARACTERS
    return f"{'… ' if begin else ''}{plain[begin:end]}{' …' if end < len(plain) else ''}"


def routes() -> APIRouter:
    """The pages, the search, and the pictures and examples to which pages lead."""
    router = APIRouter(include_in_schema=False)

    @router.get("/guide")
    async def index(request: Request, q: Words = "") -> Response:
        view, words = View.of(request), q.strip()
        found = await run_in_threadpool(search, words) if words else None
        return await _page(request, view, INDEX, words, found)

    @router.get("/guide/{name:path}")
    async def show(request: Request, name: str) -> Response:
        path = files().get(name)
        if path is None or name == INDEX:
            raise NotFound(f"there is no page {name!r:.60} in the guide", field="name")
        if path.suffix != ".md":
            headers = {"cache-control": f"private, max-age={DAY_S}"}
            return Compressed(path.read_bytes(), media_type=MEDIA[path.suffix], headers=headers)
        return await _page(request, View.of(request), name)

    return router


async def _page(
    request: Request, view: View, name: str, words: str = "", found: list[Found] | None = None
) -> Response:
    body = await run_in_threadpool(rendered, name, view.base)
    text = render(
        "guide.html",
        view,
        title=sections(name)[0].heading,
        contents=[one for one in sections(name) if one.level == 2],
        body=body,
        is_index=name == INDEX,
        words=words,
        found=found,
    )
    return page(request, text)
