"""What the database knows of the use of quotas: jobs, uploads, artefacts and monitors."""

from __future__ import annotations

from sqlalchemy.orm import Session

from warpcall_bench.artefacts import database as artefacts
from warpcall_bench.artefacts.service import QUOTA as ARTEFACT_BYTES
from warpcall_bench.jobs import queue
from warpcall_bench.jobs.submissions import QUOTA as JOBS
from warpcall_bench.monitors import database as monitors
from warpcall_bench.monitors.database import QUOTA as MONITORS
from warpcall_bench.uploads import database as uploads
from warpcall_bench.uploads.new_versions import NBYTES, VERSIONS
from warpcall_service.quotas import Use


def quota_use(session: Session, user: str | None) -> Use:
    """What a user uses, or for None what all do: by the name of the quota and of the user."""
    stored = uploads.use_by_user(session, user)
    unfinished, running = queue.counted_by_user(session, user)
    return {
        VERSIONS: {name: versions for name, (versions, _) in stored.items()},
        NBYTES: {name: nbytes for name, (_, nbytes) in stored.items()},
        ARTEFACT_BYTES: artefacts.bytes_by_user(session, user),
        JOBS: unfinished,
        queue.RUNNING: running,
        MONITORS: monitors.count_by_user(session, user),
    }
