"""Settings of the environment that answers the policy between its turns."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from trainer.config.part import NoEffect, Part, about
from trainer.rewards.sandbox.limits import MAX_CALL_SECONDS

NO_ENVIRONMENT: NoEffect = {"there is no environment": {"environment.kind": ["none"]}}
_MAX_CHARS = 20_000  # of a source, and of options
_MAX_DEPTH = 20  # of options
# Options of a taskset, at any depth, by which verifiers imports code of another file,
# reads a file, runs a command or an image, or calls a server.
CODE_OPTIONS = frozenset(
    {
        *("api_key_var", "base_url", "client", "collect", "command", "dataset", "env"),
        *(
            "fn",
            "harness",
            "headers",
            "headers_from_env",
            "healthcheck",
            "id",
            "image",
            "import_path",
        ),
        *("judge", "judges", "mcp_servers", "path", "provider_kwargs"),
        *("registry_path", "registry_url", "repo", "resources_url", "runtime"),
        *("system_prompt", "task_dir", "url"),
    }
)
# Tasksets of verifiers that run whatever code their options or rows name.
GENERIC_TASKSETS = frozenset({"harbor", "nemo_gym", "openenv"})
# By the kinds that read a setting: the others, for which it has no effect.
_KINDS = ("none", "tools", "python", "countdown_calculator", "guess", "verifiers")
# By kind: the setting that it cannot do without.
_NEEDED = {"tools": "tools", "python": "source", "verifiers": "taskset"}


def _only_for(*kinds: str) -> NoEffect:
    others = [kind for kind in _KINDS if kind not in kinds]
    return {"the environment does not read it": {"environment.kind": others}}


def _of_environment(**facts: Any) -> dict[str, Any]:
    return about(no_effect=NO_ENVIRONMENT, of_run=True, **facts)


class EnvironmentConfig(Part):
    """Tools or an environment that the policy uses over several turns."""

    kind: Literal[
        "none", "tools", "python", "countdown_calculator", "guess", "verifiers"
    ] = Field(
        "none",
        title="Environment",
        description="What answers the policy between its turns. none: a completion is "
        "one turn.",
        json_schema_extra=about(
            choices={
                "none": "one turn per completion",
                "tools": "results of the tools that it calls",
                "python": "your own Python",
                "countdown_calculator": "a calculator, for Countdown",
                "guess": "a game: find a number by higher and lower",
                "verifiers": "a taskset of the library verifiers",
            },
            of_run=True,
        ),
    )
    tools: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        [],
        max_length=64,
        description="Names of the tools that the policy may call: calculator, python, "
        "and functions of your own.",
        json_schema_extra=about(
            is_json=True, no_effect=_only_for("tools"), of_run=True
        ),
    )
    source: str = Field(
        "",
        max_length=_MAX_CHARS,
        title="Python",
        description="Tools: functions with types and docstrings. An environment: "
        "reply(row, seed, said), or a class with reset and step. It runs in a sandbox.",
        json_schema_extra=about(
            is_long=True, no_effect=_only_for("tools", "python"), of_run=True
        ),
    )
    packages: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        [],
        max_length=32,
        description="Packages of the sandbox that programs may import, beside those "
        "that the source imports.",
        json_schema_extra=about(
            is_json=True, no_effect=_only_for("tools", "python"), of_run=True
        ),
    )
    taskset: str = Field(
        "",
        max_length=200,
        description="Name of an installed taskset, whose code is not run in a sandbox.",
        json_schema_extra=about(no_effect=_only_for("verifiers"), of_run=True),
    )
    options: dict[str, Any] = Field(
        {},
        title="Taskset options",
        description="Settings of the taskset, as a JSON object. runtime: where its "
        'tasks run, such as {"type": "docker"} (only where COHORT_TASKSETS is *).',
        json_schema_extra=about(no_effect=_only_for("verifiers"), of_run=True),
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
        le=MAX_CALL_SECONDS,
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

    @field_validator("options")
    @classmethod
    def _are_settings(cls, options: dict[str, Any]) -> dict[str, Any]:
        level: list[Any] = [options]
        for _ in range(_MAX_DEPTH):
            level = [
                part
                for value in level
                if isinstance(value, dict | list)
                for part in (value.values() if isinstance(value, dict) else value)
            ]
        if level or len(json.dumps(options)) > _MAX_CHARS:
            raise ValueError(
                f"Task options may have at most {_MAX_DEPTH} levels and "
                f"{_MAX_CHARS:,} characters"
            )
        return options

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        needed = _NEEDED.get(self.kind)
        if needed and not getattr(self, needed):
            raise ValueError(f"Enter environment.{needed}.")
        if len({*self.tools}) < len(self.tools):
            raise ValueError("environment.tools has a name twice. Remove one.")
        return self

    @property
    def runs_code(self) -> bool:
        """True if it needs a sandbox."""
        runs = self.kind == "tools" and (self.source or "python" in self.tools)
        return bool(runs) or self.kind == "python"

    @property
    def is_there(self) -> bool:
        return self.kind != "none"
