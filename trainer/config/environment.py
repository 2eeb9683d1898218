"""Settings of the environment that answers the policy between its turns."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainer.config.part import NoEffect, Part, about

NO_ENVIRONMENT: NoEffect = {"there is no environment": {"environment.kind": ["none"]}}


def _of_environment(**facts: Any) -> dict[str, Any]:
    return about(no_effect=NO_ENVIRONMENT, of_run=True, **facts)


class EnvironmentConfig(Part):
    """Turns between the policy and what answers it."""

    kind: Literal["none", "guess"] = Field(
        "none",
        title="Environment",
        description="What answers the policy between its turns. none: a completion is "
        "one turn.",
        json_schema_extra=about(
            choices={
                "none": "one turn per completion",
                "guess": "a game: find a number by higher and lower",
            },
            of_run=True,
        ),
    )
    max_turns: int = Field(
        8,
        ge=1,
        le=1_000,
        description="Maximum turns of the policy in an episode.",
        json_schema_extra=_of_environment(unit="turns", section="Limits"),
    )
    max_turn_tokens: int = Field(
        0,
        ge=0,
        le=131_072,
        description="Maximum tokens of the policy in a turn. 0: what is left of "
        "rollout.max_new_tokens, which is the limit for all turns together.",
        json_schema_extra=_of_environment(unit="tokens"),
    )
    max_tokens: int = Field(
        0,
        ge=0,
        le=1_048_576,
        title="Episode limit",
        description="Maximum tokens of prompt, policy and replies together. Memory is "
        "planned for so many. Required with an environment.",
        json_schema_extra=_of_environment(unit="tokens"),
    )
    max_reply_tokens: int = Field(
        1_024,
        ge=1,
        le=131_072,
        description="A longer message of the environment is cut, with a note in it.",
        json_schema_extra=_of_environment(unit="tokens"),
    )
    call_seconds: float = Field(
        10.0,
        gt=0,
        le=3_600,
        title="Time limit of a call",
        description="A call of a tool or of the environment that takes longer fails.",
        json_schema_extra=_of_environment(unit="seconds"),
    )
    trajectory_seconds: float = Field(
        120.0,
        gt=0,
        le=86_400,
        title="Time limit of an episode",
        description="An episode whose environment takes longer in total is stopped and "
        "has no score.",
        json_schema_extra=_of_environment(unit="seconds"),
    )

    @property
    def is_there(self) -> bool:
        return self.kind != "none"
