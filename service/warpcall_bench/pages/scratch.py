"""The page of a scratch run: its command, what that wrote, and the files that it sent back."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from warpcall.jobs import UNFINISHED
from warpcall_bench.jobs import answers, scratch
from warpcall_bench.jobs.placement import Devices
from warpcall_bench.jobs.tables import Job
from warpcall_bench.pages.view import View, render
from warpcall_bench.runs.events import OutputWritten
from warpcall_bench.summaries.progress import last_sequence
from warpcall_service.text import printable

MOST_SHOWN_BYTES = 128 << 10  # of the end of the output


def scratch_page(
    session: Session, view: View, row: Job, devices: Devices, hosts: Mapping[str, str]
) -> str:
    """The page as text.

    Args:
        row: a scratch run that the caller may read.
        hosts: names of the servers by id, if there are several.
    """
    job = answers.job(session, view.caller, row.id, devices, any_kind=True)
    request = json.loads(row.request)
    running = row.state in UNFINISHED
    return render(
        "scratch.html",
        view,
        job=job,
        running=running,
        host=hosts.get(job.node, ""),
        sequence=last_sequence(session, row) if running else 0,
        command=printable(shlex.join(request["command"])),
        limit_s=request["limit_s"],
        sent=sorted(request["files"]),
        output=_text(scratch.last_output(session, row, MOST_SHOWN_BYTES)),
        files=scratch.fetched_files(session, row),
    )


def _text(written: Sequence[OutputWritten]) -> str:
    """The output for readers, with a line in each place where some is left out."""
    content, at = bytearray(), 0
    for one in written:
        if one.at > at:
            before = b"" if not content or content.endswith(b"\n") else b"\n"
            content += before + f"[{one.at - at:,} bytes are not shown]\n".encode()
        content += one.content
        at = one.at + len(one.content)
    parts = content.decode(errors="replace").replace("\r\n", "\n").split("\t")
    return "\t".join(map(printable, parts))
