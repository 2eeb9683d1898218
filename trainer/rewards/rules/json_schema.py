"""Is the completion, or a part of it, JSON of the wanted schema?

jsonschema is imported where it is needed: a GPU machine may have pydantic and RE2
alone, and every process that knows the rules would wait for it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from trainer.rewards.extraction import TAG_NAME, last_block, last_fence
from trainer.rewards.json_documents import NotJson, read_json
from trainer.rewards.rule import Example, Params, Rule
from trainer.rewards.sample import Sample


class JsonSchemaParams(Params):
    source: Literal["fence_or_whole", "whole", "fence", "tags"] = Field(
        "fence_or_whole",
        title="JSON stands in",
        description="The last fenced block (```) where there is one, else the whole "
        "completion; one of the two alone; or the last pair of tags.",
    )
    tag: str = Field(
        "answer", pattern=TAG_NAME, description="Name of the tags, without brackets."
    )
    wanted: str = Field(
        "{}",
        title="Schema",
        min_length=2,
        max_length=20_000,
        description="JSON Schema, draft 2020-12. Its patterns are RE2's, its "
        "references stay inside it, and unevaluatedItems, unevaluatedProperties and "
        "$dynamicRef are not known. {}: any JSON.",
    )
    valid_json_score: float = Field(
        0.0, ge=0, le=1, description="Score of JSON that does not fit the schema."
    )

    @field_validator("wanted")
    @classmethod
    def _schema_can_be_checked_by(cls, wanted: str) -> str:
        from trainer.rewards.json_schemas import (  # noqa: PLC0415 - see above
            refuse_bad_schema,
        )

        return refuse_bad_schema(wanted)


def score_json(sample: Sample, params: JsonSchemaParams) -> float:
    """1 for JSON that fits the schema, `valid_json_score` for other JSON, else 0.

    JSON that is nested deeper than 32 levels, or whose numbers no float holds, is
    none; JSON that takes more than 20,000 steps to check does not fit.
    """
    text = _place(sample.completion, params)
    if text is None:
        return 0.0
    try:
        document = read_json(text)
    except NotJson:
        return 0.0
    from trainer.rewards.json_schemas import accepts  # noqa: PLC0415 - see above

    return 1.0 if accepts(params.wanted, document) else params.valid_json_score


def _place(completion: str, params: JsonSchemaParams) -> str | None:
    if params.source == "tags":
        return last_block(completion, params.tag)
    if params.source == "whole":
        return completion
    fenced = last_fence(completion)
    if fenced is None and params.source == "fence_or_whole":
        return completion
    return fenced


_SCHEMA = (
    '{"type": "object", "required": ["city"], '
    '"properties": {"city": {"type": "string"}}}'
)
RULE = Rule(
    kind="json_schema",
    title="JSON of a schema",
    summary="The completion, or a part of it, is JSON that fits a JSON Schema.",
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
