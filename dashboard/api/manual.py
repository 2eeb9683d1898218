"""The page about the API: OpenAPI's document as people read it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlencode

from dashboard.api.document import openapi_document
from dashboard.api.examples import example_of

SCOPES = {
    "AnyToken": "any",
    "ReadToken": "read",
    "WriteToken": "write",
    "IngestToken": "ingest",
    "AdminToken": "admin",
}
BASE = "/api/v1"
BYTES = "application/octet-stream"


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldRow:
    name: str
    place: str  # path, query, header, body or form
    kind: str
    about: str
    is_required: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationEntry:
    id: str
    method: str
    path: str
    title: str
    about: str
    scope: str
    fields: list[FieldRow]
    query: str  # of the example: "?runs=7%2C8" or ""
    body: str  # as JSON, or ""
    form: list[tuple[str, str]]
    is_file: bool
    is_part: bool  # the body is bytes of a file
    status: str
    answer: str

    @property
    def address(self) -> str:
        """With the examples of its parameters in it."""
        return f"{self.path}{self.query}"

    def curl(self, base: str) -> str:
        """`base` ends with BASE, with which addresses begin."""
        parts = ["curl"]
        if self.method != "GET":
            parts.append(f"-X {self.method}")
        parts.append('-H "Authorization: Bearer $COHORT_TOKEN"')
        if self.body:
            parts += ["-H 'Content-Type: application/json'", f"-d '{self.body}'"]
        if self.is_part:
            parts += [f"-H 'Content-Type: {BYTES}'", "--data-binary @part"]
        parts += [f"-F '{name}={value}'" for name, value in self.form]
        if self.is_file:
            parts.append("-OJ")
        address = f"{base}{self.address.removeprefix(BASE)}"
        return " \\\n  ".join([*parts, f"'{address}'"])


@cache
def read_manual() -> dict[str, list[OperationEntry]]:
    """Operations by what they are about, in the document's order."""
    document = openapi_document()
    found: defaultdict[str, list[OperationEntry]] = defaultdict(list)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            entry = _operation(path, method, operation, document)
            found[operation["tags"][0]].append(entry)
    return dict(found)


def _operation(
    path: str, method: str, operation: Mapping[str, Any], document: Mapping[str, Any]
) -> OperationEntry:
    parts = document["components"]["schemas"]
    kind, body = _body(operation, parts)
    status, answer = _answer(operation)
    parameters = operation.get("parameters", [])
    return OperationEntry(
        id=operation["operationId"],
        method=method.upper(),
        path=_filled(path, parameters, parts),
        title=operation["summary"],
        about=_plain(operation.get("description", "")),
        scope=SCOPES[next(iter(operation["security"][0]))],
        fields=[*_parameters(parameters, parts), *_fields(kind, body, parts)],
        query=_query(parameters),
        body=json.dumps(_needed(body, parts)) if kind == "body" else "",
        form=_form(body, parts) if kind == "form" else [],
        is_file=answer == "",
        is_part=BYTES in operation.get("requestBody", {}).get("content", {}),
        status=status,
        answer=answer,
    )


def _filled(path: str, parameters: Any, parts: Any) -> str:
    for each in parameters:
        if each["in"] == "path":
            value = each.get("example", example_of(each["schema"], parts))
            path = path.replace(f"{{{each['name']}}}", str(value or 7))
    return path


def _query(parameters: Any) -> str:
    """Those that are needed, and those that have an example."""
    shown = {
        each["name"]: each["schema"]["examples"][0]
        for each in parameters
        if each["in"] == "query" and each["schema"].get("examples")
    }
    return f"?{urlencode(shown)}" if shown else ""


def _body(operation: Mapping[str, Any], parts: Any) -> tuple[str, Mapping[str, Any]]:
    content = operation.get("requestBody", {}).get("content", {})
    for media, kind in (("application/json", "body"), ("multipart/form-data", "form")):
        if media in content:
            return kind, _resolved(content[media]["schema"], parts)
    return "", {}


def _resolved(schema: Mapping[str, Any], parts: Any) -> Mapping[str, Any]:
    if "$ref" in schema:
        return dict(parts[schema["$ref"].rsplit("/", 1)[1]])
    return schema


def _needed(body: Mapping[str, Any], parts: Any) -> dict[str, Any]:
    """What has to be sent, and what has an example."""
    required = body.get("required", [])
    return {
        name: example_of(each, parts)
        for name, each in body.get("properties", {}).items()
        if name in required or each.get("examples")
    }


def _form(body: Mapping[str, Any], parts: Any) -> list[tuple[str, str]]:
    shown = _needed(body, parts)
    shown.pop("file", None)
    return [("file", "@rows.jsonl"), *((n, str(v)) for n, v in shown.items())]


def _parameters(parameters: Any, parts: Any) -> Iterator[FieldRow]:
    for each in parameters:
        schema = each["schema"]
        about = each.get("description") or schema.get("description") or ""
        yield FieldRow(
            name=each["name"],
            place=each["in"],
            kind=describe_kind(schema, parts),
            about=_plain(about),
            is_required=bool(each.get("required")),
        )


def _fields(kind: str, body: Mapping[str, Any], parts: Any) -> Iterator[FieldRow]:
    for name, schema in body.get("properties", {}).items():
        yield FieldRow(
            name=name,
            place=kind,
            kind=describe_kind(schema, parts),
            about=_plain(schema.get("description", "")),
            is_required=name in body.get("required", []),
        )


def _plain(text: str) -> str:
    return text.replace("`", "")


def describe_kind(schema: Mapping[str, Any], parts: Any) -> str:
    """In few words: "integer, 1 to 200", "one of a, b", "list of text"."""
    schema = _resolved(schema, parts)
    options = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    if len(options) == 1:
        return describe_kind(options[0], parts)
    if options:
        return " or ".join(describe_kind(each, parts) for each in options)
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if schema.get("format") in ("binary", "date"):
        return {"binary": "file", "date": "day, YYYY-MM-DD"}[schema["format"]]
    kind = {"string": "text", "array": "list"}.get(schema.get("type", ""), "")
    kind = kind or str(schema.get("type", "anything"))
    if "items" in schema:
        return f"list of {describe_kind(schema['items'], parts)}"
    return kind + _bounds(schema)


def _bounds(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None and high < 2**31 - 1:
        return f", {low:,} to {high:,}"
    longest = schema.get("maxLength")
    return f", {longest:,} characters at most" if longest else ""


def _answer(operation: Mapping[str, Any]) -> tuple[str, str]:
    """The first status that is a success, and an example of it as JSON."""
    status = min(s for s in operation["responses"] if s.startswith("2"))
    content = operation["responses"][status].get("content", {})
    example = content.get("application/json", {}).get("example")
    text = "" if example is None else json.dumps(example, indent=2, ensure_ascii=False)
    return status, text
