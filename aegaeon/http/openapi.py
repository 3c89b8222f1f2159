"""Request bodies in the OpenAPI document; the gateway reads them itself."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from aegaeon.http.body import Body

_REFERENCE = "#/components/schemas/{model}"
_bodies: dict[str, type[Body]] = {}


def body_of(kind: type[Body]) -> dict[str, Any]:
    """For ``openapi_extra`` of a route."""
    _bodies[kind.__name__] = kind
    schema = {"$ref": _REFERENCE.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe_bodies(app: FastAPI) -> None:
    """Put the schemas that routes refer to into the application's document."""
    document = app.openapi()
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name, kind in _bodies.items():
        schema = kind.model_json_schema(ref_template=_REFERENCE)
        schemas.update(schema.pop("$defs", {}))
        schemas[name] = schema
