"""Routers whose models of answers are for the description only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import TypeAdapter

from warpcall_service.http.openapi_parts import REFERENCES, Schema, ref

JSON = "application/json"


class Router(APIRouter):
    """A router whose handlers return responses, and that takes `response_model` for the description.

    FastAPI would make a validator of each model at each start of the server, in 0.3 s, and use none.

    Attributes:
        models: classes to which the routes refer; `schemas_of` describes them.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.models: list[type[Any]] = []

    def add_api_route(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        response_model: Any = None,
        status_code: int | None = None,
        responses: Mapping[int | str, Schema] | None = None,
        **options: Any,
    ) -> None:
        """Add a route as FastAPI does, but with references in place of models that are classes."""
        described = {status: {**response} for status, response in (responses or {}).items()}
        if isinstance(response_model, type):
            described.setdefault(status_code or 200, {}).setdefault("model", response_model)
            response_model = None
        for response in described.values():
            if "model" in response:
                self.models.append(model := response.pop("model"))
                response.setdefault("content", {})[JSON] = {"schema": ref(model)}
                response.setdefault("description", "Successful Response")
        super().add_api_route(
            path,
            endpoint,
            response_model=response_model,
            status_code=status_code,
            responses=described,
            **options,
        )


def schemas_of(models: Sequence[type[Any]]) -> Schema:
    """The schemas of models of answers, and of those in them, by their names."""
    _, schemas = TypeAdapter.json_schemas(
        [(model.__name__, "serialization", TypeAdapter(model)) for model in models],
        ref_template=REFERENCES,
    )
    return dict(schemas["$defs"])
