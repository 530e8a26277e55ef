"""What must be true of the database after servers were killed and cut off."""

from __future__ import annotations

from typing import Any

from tests.service.databases import Database

CLOCK_MS = 2000  # by which the times of two processes of one machine may differ

# What each query finds is wrong.
WRONG = {
    "events of a job that are lost or there twice": (
        "SELECT job_number, count(*), max(sequence) FROM job_events GROUP BY 1 "
        "HAVING count(*) <> max(sequence)"
    ),
    "cases that are there twice": (
        "SELECT job_number, data::json->>'position', count(*) FROM job_events "
        "WHERE kind = 'case' GROUP BY 1, 2 HAVING count(*) > 1"
    ),
    "measurements that are there twice": (
        "SELECT job_number, position, implementation, count(*) FROM measurements "
        "GROUP BY 1, 2, 3 HAVING count(*) > 1"
    ),
    "jobs without one end": (
        "SELECT job_number, count(*) FILTER (WHERE data::json->>'exit_class' IS NOT NULL) "
        "FROM job_events WHERE kind = 'state' GROUP BY 1 "
        "HAVING count(*) FILTER (WHERE data::json->>'exit_class' IS NOT NULL) <> 1"
    ),
    "jobs that succeeded without all their cases": (
        "SELECT number, cases_done, cases_total FROM jobs "
        "WHERE state = 'succeeded' AND cases_done <> cases_total"
    ),
    "jobs whose cases are not those that they count": (
        "SELECT number, cases_done FROM jobs WHERE cases_done <> "
        "(SELECT count(*) FROM job_cases WHERE job_number = number AND result IS NOT NULL)"
    ),
    "jobs that ended in another way": (
        "SELECT number, state, detail FROM jobs WHERE state NOT IN ('succeeded', 'interrupted')"
    ),
    "jobs that are charged for longer than they took": (
        f"SELECT number, took_ms FROM jobs WHERE took_ms > finished_ms - created_ms + {CLOCK_MS}"
    ),
}


def wrong_in(database: Database) -> dict[str, list[Any]]:
    """What is wrong, by its description."""
    store = database.store()
    with store.read() as session:
        sql = session.connection().exec_driver_sql
        found = {what: [tuple(row) for row in sql(query).all()] for what, query in WRONG.items()}
    store.close()
    return {what: rows for what, rows in found.items() if rows}


def job_ids(database: Database) -> list[str]:
    """Ids of all jobs."""
    store = database.store()
    with store.read() as session:
        found = list(session.connection().exec_driver_sql("SELECT id FROM jobs").scalars())
    store.close()
    return found


def calls_charged(database: Database) -> dict[str, int]:
    """Calls of an op that each user is charged for."""
    store = database.store()
    with store.read() as session:
        rows = session.connection().exec_driver_sql(
            "SELECT user_name, sum(requests) FROM usage WHERE op = 'permute' GROUP BY 1"
        )
        found = {name: int(count) for name, count in rows.all()}
    store.close()
    return found
