"""The rule of an LLM judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from trainer.internet import Refused, read_url
from trainer.rewards.judge import time_limit
from trainer.rewards.model_judge.asking import (
    Endpoint,
    Judge,
    JudgeUnavailable,
    open_client,
    replies,
)
from trainer.rewards.model_judge.client import KEY_NAME, Reply
from trainer.rewards.model_judge.ledger import Ledger
from trainer.rewards.model_judge.question import (
    Question,
    ReadAs,
    Unreadable,
    make_question,
    read_score,
    refuse_bad_template,
    reply_format,
)
from trainer.rewards.rule import (
    Batching,
    Example,
    Outcome,
    Params,
    Rule,
    Sample,
    Unscorable,
    count_usage,
)
from trainer.rewards.session import Session, current_session

_SYSTEM = "You grade replies of a language model, strictly and regardless of style."
_TEMPLATE = """Prompt:

{prompt}

Reply:

{completion}

Is the reply correct, complete and clear? Explain in a few sentences, then score it."""


class LlmJudgeParams(Params):
    base_url: str = Field(
        min_length=1,
        max_length=500,
        title="URL",
        description="Base URL of an OpenAI-compatible endpoint, such as "
        "https://api.openai.com/v1. Addresses other than public https "
        "must be allowed by the server's COHORT_JUDGE_HOSTS.",
    )
    model: str = Field(
        min_length=1,
        max_length=200,
        description="Model name at the endpoint.",
    )
    key_name: str = Field(
        "",
        pattern=KEY_NAME,
        title="API key name",
        description="NAME of the variable COHORT_JUDGE_KEY_NAME with the key, in the "
        "training worker's environment. Empty: no key.",
    )
    template: str = Field(
        _TEMPLATE,
        max_length=20_000,
        title="Question",
        description="Template with {prompt}, {completion}, {answer}, any column or "
        "dotted path, and for a reasoning step {before}, the text before it.",
    )
    system: str = Field(
        _SYSTEM,
        max_length=20_000,
        title="System prompt",
        description="Instructions. Cohort adds how the data is marked, and the "
        "format of the reply.",
    )
    read_as: ReadAs = Field(
        "last_number",
        title="Score location",
        description="last_number: the last line. json_field: a field of a JSON "
        "object. yes_no: the last line is yes (1) or no (0).",
    )
    field: str = Field(
        "score",
        min_length=1,
        max_length=100,
        description="Field of the JSON object.",
    )
    low: float = Field(1.0, ge=-1e6, le=1e6, description="Judge score that maps to 0.")
    high: float = Field(
        10.0, ge=-1e6, le=1e6, description="Judge score that maps to 1."
    )
    temperature: float | None = Field(
        0.0,
        ge=0,
        le=2,
        description=(
            "Sampling temperature of the judge. Empty: not sent, for models "
            "without one."
        ),
    )
    max_tokens: int = Field(
        512,
        ge=1,
        le=65_536,
        description="Maximum tokens of a reply. A truncated reply gives no score.",
        json_schema_extra={"unit": "tokens"},
    )
    token_limit_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens",
        description="Request field for max_tokens. Newer OpenAI models require "
        "max_completion_tokens.",
    )
    timeout_seconds: float = Field(
        60.0,
        ge=0.1,
        le=600,
        description="Timeout of one request.",
        json_schema_extra={"unit": "seconds"},
    )
    max_tries: int = Field(
        4,
        ge=1,
        le=10,
        description="Requests per completion while the endpoint is overloaded or "
        "unreachable, with exponential backoff.",
    )
    max_concurrency: int = Field(
        8, ge=1, le=64, description="Concurrent requests per process."
    )
    budget_calls: int = Field(
        20_000,
        ge=1,
        le=100_000_000,
        description="Maximum number of requests to this model per run. After that, "
        "completions get no score.",
    )
    budget_tokens: int = Field(
        20_000_000,
        ge=1,
        le=1_000_000_000_000,
        description="Maximum number of prompt and reply tokens per run.",
        json_schema_extra={"unit": "tokens"},
    )

    _check_template = field_validator("template")(refuse_bad_template)

    @field_validator("base_url")
    @classmethod
    def _url_is_readable(cls, url: str) -> str:
        read_url(url)
        return url.rstrip("/")

    @model_validator(mode="after")
    def _range_has_a_width(self) -> Self:
        if self.low >= self.high:
            raise ValueError(
                f"low is {self.low:g} and high is {self.high:g}; high must be "
                "greater. If lower is better, give the rule a negative weight."
            )
        return self


def score_by_judge(samples: Sequence[Sample], params: LlmJudgeParams) -> list[Outcome]:
    """(score - low) / (high - low) of each, where the judge gives a score.

    No score if the endpoint is unreachable, the reply cannot be parsed or the budget
    is used up.
    """
    questions = [_question_or_none(sample, params) for sample in samples]
    to_ask = [question for question in questions if isinstance(question, Question)]
    session = current_session()
    answers = _ask(to_ask, params, session)
    for reply in answers:
        if isinstance(reply, Reply):
            count_usage(reply.usage)
    replied = iter(answers)
    return [
        question
        if isinstance(question, Unscorable)
        else _score(next(replied), params, session)
        for question in questions
    ]


def check_judge(params: LlmJudgeParams) -> None:
    """Check that it could be asked from here, without asking it.

    Raises:
        ValueError: it could not.
    """
    try:
        open_client(_endpoint(params)).close()
    except Refused as error:
        raise ValueError(str(error)) from None


def make_judges_question(sample: Sample, params: LlmJudgeParams) -> Question:
    """Return what the judge is asked of a completion.

    Raises:
        NotApplicable: the row has not what the template names.
    """
    form = reply_format(
        params.read_as, field=params.field, low=params.low, high=params.high
    )
    return make_question(f"{params.system}\n\n{form}", params.template, sample)


def _question_or_none(sample: Sample, params: LlmJudgeParams) -> Question | Unscorable:
    try:
        return make_judges_question(sample, params)
    except Unscorable as error:
        return error


def _ask(
    questions: Sequence[Question], params: LlmJudgeParams, session: Session
) -> list[Reply | JudgeUnavailable]:
    if not questions:
        return []
    ledger = session.keep(
        Ledger,
        lambda: Ledger(
            session.folder,
            attempts=session.attempts,
            rank=session.rank,
            num_processes=session.num_processes,
        ),
    )
    endpoint = _endpoint(params)
    try:
        if session.is_run:
            judge = session.keep(endpoint, lambda: Judge(endpoint, ledger))
            return _replies(judge, questions, params)
        judge = Judge(endpoint, ledger)
        try:
            return _replies(judge, questions, params)
        finally:
            judge.close()
    except Refused as error:
        return [JudgeUnavailable(str(error))] * len(questions)


def _replies(
    judge: Judge, questions: Sequence[Question], params: LlmJudgeParams
) -> list[Reply | JudgeUnavailable]:
    def is_readable(reply: Reply) -> bool:
        try:
            _read(reply, params)
        except Unreadable:
            return reply.is_cut  # and would be again, until max_tokens is raised
        return True

    return replies(judge, questions, deadline=time_limit(), is_readable=is_readable)


def _score(
    reply: Reply | JudgeUnavailable, params: LlmJudgeParams, session: Session
) -> Outcome:
    if isinstance(reply, JudgeUnavailable):
        session.warn(str(reply))
        return Unscorable(str(reply))
    try:
        return _read(reply, params)
    except Unreadable as error:
        problem = str(error)
    session.warn(
        f"Some replies of the judge {params.model} cannot be parsed, so their "
        f"completions have no score. The first: {problem}.",
        about=f"unreadable {params.base_url} {params.model}",
    )
    return Unscorable(f"The judge's reply cannot be parsed: {problem}.")


def _read(reply: Reply, params: LlmJudgeParams) -> float:
    """
    Raises:
        Unreadable: it has no score.
    """
    if reply.is_cut:
        raise Unreadable(
            f"it was truncated at {params.max_tokens:,} tokens; raise max_tokens"
        )
    return read_score(
        reply.text,
        params.read_as,
        field=params.field,
        low=params.low,
        high=params.high,
    )


def _endpoint(params: LlmJudgeParams) -> Endpoint:
    return Endpoint(
        base_url=params.base_url,
        key_name=params.key_name,
        model=params.model,
        max_tokens=params.max_tokens,
        token_limit_field=params.token_limit_field,
        temperature=params.temperature,
        timeout_seconds=params.timeout_seconds,
        max_tries=params.max_tries,
        max_concurrency=params.max_concurrency,
        budget_calls=params.budget_calls,
        budget_tokens=params.budget_tokens,
    )


_SETTINGS = {"base_url": "https://judge.example.com/v1", "model": "judge-large"}
RULE = Rule(
    kind="llm_judge",
    title="LLM judge",
    summary="A language model at an OpenAI-compatible endpoint scores the completion.",
    params_model=LlmJudgeParams,
    # A call waits for its slowest reply; another one's questions fill the threads then.
    batching=Batching(
        score=score_by_judge,
        most_at_once=lambda params: 1_024,
        num_calls=lambda params: params.max_concurrency,
    ),
    example_pass=Example(
        sample=Sample("Why is the sky blue?", "Air scatters blue light most."),
        params=_SETTINGS,
    ),
    example_fail=Example(
        sample=Sample("Why is the sky blue?", "It mirrors the sea."),
        params=_SETTINGS,
    ),
    check=check_judge,
    check_row=make_judges_question,
)
