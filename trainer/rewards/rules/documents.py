"""Rules for JSON with a schema and well-formed XML.

The input is untrusted and parsed defensively. jsonschema is imported on first use: a
GPU machine may have only pydantic and RE2, and importing it would slow down every
process that loads the rules.
"""

from __future__ import annotations

from typing import Literal, NoReturn
from xml.parsers import expat

from pydantic import Field, field_validator

from trainer.rewards.extraction import (
    TAG_NAME,
    find_part,
    reply_of,
    thinking_field,
)
from trainer.rewards.rule import Example, Params, Rule, Sample
from trainer.rewards.strict_json import NotJson, read_json


class JsonSchemaParams(Params):
    source: Literal["fence_or_whole", "whole", "fence", "tags"] = Field(
        "fence_or_whole",
        title="JSON location",
        description="The last fenced block (```) if there is one, else the whole "
        "completion; only one of these; or the last pair of tags.",
    )
    tag: str = Field(
        "answer", pattern=TAG_NAME, description="Tag name without brackets."
    )
    wanted: str = Field(
        "{}",
        title="Schema",
        min_length=2,
        max_length=20_000,
        description="JSON Schema, draft 2020-12, with RE2 patterns and references "
        "within the schema only. unevaluatedItems, unevaluatedProperties "
        "and $dynamicRef are not supported. {}: any JSON.",
    )
    valid_json_score: float = Field(
        0.0, ge=0, le=1, description="Score of JSON that does not match the schema."
    )
    read_thinking: bool = thinking_field()

    @field_validator("wanted")
    @classmethod
    def _schema_can_be_checked_by(cls, wanted: str) -> str:
        from trainer.rewards.rules.json_schemas import (  # noqa: PLC0415 - see above
            refuse_bad_schema,
        )

        return refuse_bad_schema(wanted)


def score_json(sample: Sample, params: JsonSchemaParams) -> float:
    """Return 1 for JSON that fits the schema, `valid_json_score` for other JSON, else
    0.

    JSON that is nested deeper than 32 levels, or whose numbers no float holds, is
    none; JSON that takes more than 20,000 steps to check does not fit.
    """
    reply = reply_of(sample, read_thinking=params.read_thinking)
    source = params.source.removesuffix("_or_whole")
    text = find_part(reply, source, tag=params.tag, languages=("json",))
    if text is None:
        if params.source != "fence_or_whole":
            return 0.0
        text = reply
    try:
        document = read_json(text)
    except NotJson:
        return 0.0
    from trainer.rewards.rules.json_schemas import accepts  # noqa: PLC0415 - see above

    return 1.0 if accepts(params.wanted, document) else params.valid_json_score


_SCHEMA = (
    '{"type": "object", "required": ["city"], '
    '"properties": {"city": {"type": "string"}}}'
)
JSON_SCHEMA = Rule(
    kind="json_schema",
    title="JSON Schema",
    summary="The completion, or a part of it, is JSON that matches a JSON Schema.",
    params_model=JsonSchemaParams,
    score=score_json,
    example_pass=Example(
        sample=Sample("Where?", 'Here:\n```json\n{"city": "Paris"}\n```'),
        params={"wanted": _SCHEMA},
    ),
    example_fail=Example(
        sample=Sample("Where?", '{"city": 75000}'), params={"wanted": _SCHEMA}
    ),
)


_NAME = "[A-Za-z_][A-Za-z0-9_.:-]{0,63}"


class XmlWellFormedParams(Params):
    source: Literal["whole", "fence", "tags"] = Field(
        "whole",
        title="XML location",
        description="The whole completion, the last fenced block (```), or the last "
        "pair of tags.",
    )
    tag: str = Field(
        "answer",
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$",
        description="Tag name without brackets.",
    )
    shape: Literal["document", "fragment"] = Field(
        "document",
        description="document: one root element. fragment: any number of elements, "
        "with text between them.",
    )
    elements: str = Field(
        "",
        pattern=f"^({_NAME}(,{_NAME}){{0,31}})?$",
        description="Names of required elements, separated by commas. The score is "
        "the share of them that occur.",
    )


class _Refused(Exception):
    """A declaration of a document type, which entities could hide in."""


def score_xml(sample: Sample, params: XmlWellFormedParams) -> float:
    """Return 0 for what is not well-formed XML, else the share of the elements that
    occur.

    Document types are refused, so there are no entities to expand and no files or
    addresses to read; a fragment must hold an element. Namespaces are not looked up.
    """
    text = find_part(sample.text, params.source, tag=params.tag, languages=("xml",))
    names = None if text is None else _read_names(text.strip(), params)
    if not names:
        return 0.0
    wanted = set(params.elements.split(",")) - {""}
    return len(wanted & names) / len(wanted) if wanted else 1.0


def _read_names(text: str, params: XmlWellFormedParams) -> set[str] | None:
    """Return the names of the elements; None when the text is not well-formed."""
    names: list[str] = []

    def refuse(*_: object) -> NoReturn:
        raise _Refused

    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = lambda name, _: names.append(name)
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    if params.shape == "fragment":
        text = f"<fragment>{text}</fragment>"
    try:
        # At once: fed in pieces, a long token would be read again with each.
        parser.Parse(text.encode("utf-8", "replace"), True)
    except (expat.ExpatError, _Refused):
        return None
    return set(names[1:] if params.shape == "fragment" else names)


XML_WELL_FORMED = Rule(
    kind="xml_well_formed",
    title="Well-formed XML",
    summary="The completion, or a part of it, is well-formed XML and has the required "
    "elements.",
    params_model=XmlWellFormedParams,
    score=score_xml,
    example_pass=Example(
        sample=Sample("A book?", "<book><title>Emma</title></book>"),
        params={"elements": "title"},
    ),
    example_fail=Example(
        sample=Sample("A book?", "<book><title>Emma</book>"),
        params={"elements": "title"},
    ),
)
