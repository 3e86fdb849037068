"""Makes /openapi.json tell the bodies that the routes read themselves. Knows schemas, no route."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

_REFERENCE = "#/components/schemas/{model}"

_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Error")}}},
    }
    for status, description in (("4XX", "The request cannot be honoured"), ("5XX", "Server or model failed"))
}


def json_body(schema: type[BaseModel]) -> dict[str, Any]:
    """Return the `openapi_extra` of a route whose body has this schema."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model=schema.__name__)}}},
        },
    }


def install_openapi(app: FastAPI, *bodies: type[BaseModel]) -> None:
    """Put the schemas that `json_body` refers to into the application's document. Called after the routes."""
    plain = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            described = plain()
            schemas = described.setdefault("components", {}).setdefault("schemas", {})
            schemas["Error"] = _ERROR_SCHEMA
            for body in bodies:
                _add(schemas, body)
            app.openapi_schema = described
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way to change the document


def _add(schemas: dict[str, Any], body: type[BaseModel]) -> None:
    described = body.model_json_schema(ref_template=_REFERENCE)
    schemas.update(described.pop("$defs", {}))
    schemas[body.__name__] = described
