"""The description of the API is made once, beside the event loop; its fields have the SDK's texts."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import fields
from pathlib import Path

import pytest
from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.routing import Route

from tests.service.app_routes import services
from warpcall.jobs import JobDetails
from warpcall_service.api.openapi_route import openapi_json
from warpcall_service.http.openapi_parts import Schema


def request(root_path: str = "") -> Request:
    return Request({"type": "http", "method": "GET", "headers": [], "root_path": root_path})


def test_a_client_that_leaves_takes_the_description_from_nobody() -> None:
    begun, goes_on, made = threading.Event(), threading.Event(), []

    def describe() -> Schema:
        begun.set()
        assert goes_on.wait(60)
        made.append(1)
        return {"openapi": "3.1.0"}

    async def two_clients() -> bytes:
        handle = openapi_json(describe)
        first = asyncio.ensure_future(handle(request()))
        await asyncio.to_thread(begun.wait, 60)  # the event loop goes on meanwhile
        first.cancel()
        second = asyncio.ensure_future(handle(request()))
        await asyncio.sleep(0)
        goes_on.set()
        return bytes((await second).body)

    assert json.loads(asyncio.run(two_clients())) == {"openapi": "3.1.0"}
    assert made == [1]


def test_a_description_that_failed_is_made_again() -> None:
    failures = [RuntimeError("only once")]

    def describe() -> Schema:
        if failures:
            raise failures.pop()
        return {"openapi": "3.1.0"}

    async def asked_twice() -> bytes:
        handle = openapi_json(describe)
        with pytest.raises(RuntimeError, match="only once"):
            await handle(request())
        return bytes((await handle(request())).body)

    assert json.loads(asyncio.run(asked_twice())) == {"openapi": "3.1.0"}


def test_below_a_prefix_the_description_names_it_as_the_server() -> None:
    async def asked(root_path: str) -> object:
        return json.loads(bytes((await openapi_json(lambda: {"a": 1})(request(root_path))).body))

    assert asyncio.run(asked("/gpu/")) == {"a": 1, "servers": [{"url": "/gpu"}]}
    assert asyncio.run(asked("")) == {"a": 1}


def test_all_routes_are_made_before_the_first_request(tmp_path: Path) -> None:
    """FastAPI makes the routes of an included router, which is one entry, when a request arrives."""

    async def kinds() -> set[type]:
        async with services(tmp_path) as found:
            return {type(route) for route in found.app.routes}

    assert asyncio.run(kinds()) == {APIRoute, Route}


def test_every_field_is_described_by_the_text_below_it_also_an_inherited_one() -> None:
    described = TypeAdapter(JobDetails).json_schema(mode="serialization")["properties"]

    assert described["id"]["description"] == "Name of the job on its server."
    assert described["request"]["description"] != described["id"]["description"]
    assert [f.name for f in fields(JobDetails) if not described[f.name].get("description")] == []
