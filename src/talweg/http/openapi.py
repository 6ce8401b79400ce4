"""The OpenAPI document of a list of calls, made from what each of them declares."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from talweg.errors import (
    BadRequest,
    BodyTooLarge,
    BodyTooSlow,
    Internal,
    NotAcceptable,
    Overloaded,
    TalwegError,
    Unavailable,
    UnsupportedMedia,
)
from talweg.http.answering import Failure
from talweg.http.calls import Answer, Call, RawAnswer, RawBody, header_names

Json = dict[str, Any]

_REFERENCE: Final = "#/components/schemas/{name}"


def declared_errors(call: Call) -> tuple[type[TalwegError], ...]:
    """How a call may fail: what it declares, and what every call of its sort has in common."""
    # Any request may be wrong (a query that nobody asked for), come too much, or meet a server that stops.
    errors: list[type[TalwegError]] = [BadRequest, Internal, Overloaded, Unavailable]
    if call.body is not None:
        errors += [BodyTooLarge, BodyTooSlow, UnsupportedMedia]
    if isinstance(call.answer, RawAnswer):
        errors.append(NotAcceptable)
    return tuple(dict.fromkeys([*errors, *call.errors]))


def openapi(calls: Iterable[Call], title: str, version: str) -> Json:
    """An OpenAPI 3.1 document of those calls that are to be listed."""
    listed = [call for call in calls if call.listed]
    schemas = _Schemas(listed)
    paths: dict[str, Json] = {}
    for call in listed:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call, schemas)
    tags = dict.fromkeys(call.tag for call in listed if call.tag)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "tags": [{"name": tag} for tag in tags],
        "paths": paths,
        "components": {"schemas": schemas.components},
    }


class _Schemas:
    """The JSON schemas of everything that the calls take and answer."""

    def __init__(self, calls: Sequence[Call]) -> None:
        parameters = {call.parameters for call in calls if call.parameters is not None}
        bodies = {kind for call in calls for kind in (call.body, call.answer) if isinstance(kind, type)}
        # By name, so that the document is the same each time.
        kinds = sorted(parameters | bodies | {Answer, Failure}, key=lambda kind: kind.__qualname__)
        references, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
        self.references: dict[type, Json] = dict(zip(kinds, references, strict=True))
        self._parameters: dict[type, Json] = {}
        for kind in parameters:
            name = self.references[kind]["$ref"].rpartition("/")[2]
            self._parameters[kind] = components[name] if kind in bodies else components.pop(name)
        self.components = dict(sorted(components.items()))

    def fields(self, kind: type) -> Json:
        """The schema of a call's parameters: shown one by one, not as the object that they are to us."""
        return self._parameters[kind]


def _operation(call: Call, schemas: _Schemas) -> Json:
    operation: Json = {"summary": call.summary, "operationId": _operation_id(call)}
    if call.tag:
        operation["tags"] = [call.tag]
    if call.parameters is not None:
        operation["parameters"] = list(_parameters(call, schemas))
    if isinstance(call.body, RawBody):
        operation["requestBody"] = {"required": True, "content": _raw(call.body.media_types)}
        if call.body.description:
            operation["requestBody"]["description"] = call.body.description
    elif call.body is not None:
        content = {"application/json": {"schema": schemas.references[call.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    operation["responses"] = {"200": _success(call, schemas), **dict(_failures(call, schemas))}
    return operation


def _operation_id(call: Call) -> str:
    words = [call.method.lower(), *(part.strip("{}") for part in call.path.split("/") if part)]
    return "_".join(words).replace("-", "_").replace(".", "_")


def _parameters(call: Call, schemas: _Schemas) -> Iterator[Json]:
    assert call.parameters is not None
    described = schemas.fields(call.parameters)
    headers = header_names(call.parameters)
    for field in msgspec.structs.fields(call.parameters):
        schema = dict(described["properties"][field.encode_name])
        place = "path" if field.name in call.places else "header" if field.name in headers else "query"
        shown: Json = {"name": headers.get(field.name, field.encode_name), "in": place}
        if place == "path" or field.encode_name in described.get("required", ()):
            shown["required"] = True
        if "description" in schema:
            shown["description"] = schema.pop("description")
        yield {**shown, "schema": schema}


def _success(call: Call, schemas: _Schemas) -> Json:
    if not isinstance(call.answer, RawAnswer):
        reference = schemas.references[call.answer or Answer]
        return {"description": "It succeeded.", "content": {"application/json": {"schema": reference}}}
    success: Json = {
        "description": call.answer.description or "It succeeded.",
        "content": _raw(call.answer.media_types),
    }
    if call.answer.headers:
        success["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in call.answer.headers
        }
    return success


def _raw(media_types: Iterable[str]) -> Json:
    """Bytes, of which a JSON schema can say nothing."""
    return {media_type: {"schema": {}} for media_type in media_types}


def _failures(call: Call, schemas: _Schemas) -> Iterator[tuple[str, Json]]:
    errors = sorted(declared_errors(call), key=lambda error: (error.status, error.code))
    for status, group in groupby(errors, key=lambda error: error.status):
        kinds = list(group)
        codes = {"properties": {"code": {"enum": [kind.code for kind in kinds]}}}
        schema = {"allOf": [schemas.references[Failure], codes]}
        failure: Json = {
            "description": " ".join(f"`{kind.code}`: {_first_sentence(kind)}" for kind in kinds),
            "content": {"application/json": {"schema": schema}},
        }
        if status == Unavailable.status:
            seconds = {"description": "Seconds to wait before trying again.", "schema": {"type": "integer"}}
            failure["headers"] = {"Retry-After": seconds}
        yield str(status), failure


def _first_sentence(kind: type[TalwegError]) -> str:
    text = " ".join((kind.__doc__ or "").split())
    return text.partition(". ")[0].rstrip(".") + "."
