"""The event log: numbered JSON lines that a trainer writes.

`events.jsonl` is the engine's only output besides checkpoints. Lines are numbered from
1 within an attempt (one trainer process of a run), so a reader detects missing and
repeated lines. Non-finite numbers are written as null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

# Of an episode also: turns, it had as many as it may; done, its environment ended it;
# failed, its environment failed; timeout, it took too long. unknown: of an outside
# trainer that does not tell.
EndReason = Literal["stop", "length", "turns", "done", "failed", "timeout", "unknown"]
# mixed: rewards differ, the group teaches. The others are dead: every completion
# correct, at the recipe's lowest reward, at another one, or without a score.
Signal = Literal["mixed", "all_right", "all_wrong", "tied", "unscorable"]


class _Record(BaseModel):
    """A frozen part of the log; unknown names are errors, and NaN becomes null."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class Event(_Record):
    """The fields that every event has."""

    line: int = Field(ge=1)
    attempt: int = Field(ge=1)
    time: float  # seconds since 1970
    step: int = Field(ge=0)  # 0: before the first step


class _RunBegun(Event):
    """The model, data and machine of a run that starts or resumes."""

    num_steps: int
    num_parameters: int
    num_train_rows: int
    num_eval_rows: int
    device: str
    versions: dict[str, str]
    engine: str | None = None  # what samples: vLLM 0.32.0. None: it does not tell
    # trainer.config.RunConfig; {}: of an older version, or an outside trainer
    config: dict[str, Any] = Field({}, exclude_if=lambda config: not config)


class RunStarted(_RunBegun):
    type: Literal["run_started"] = "run_started"


class RunResumed(_RunBegun):
    """`step` is the last step that the checkpoint holds."""

    type: Literal["run_resumed"] = "run_resumed"
    checkpoint: str


class PhaseStarted(Event):
    """A phase of a run with several begins; `step` is its first one."""

    type: Literal["phase_started"] = "phase_started"
    name: str
    first_step: int = Field(ge=1)
    last_step: int = Field(ge=1)


class SettingsChanged(Event):
    """Settings that hold from the step behind `step` on were changed meanwhile."""

    type: Literal["settings_changed"] = "settings_changed"
    number: int = Field(ge=1)  # of the run's changes
    settings: dict[str, int]  # by path: optim.num_steps


# Of a turn: places in a text, and seconds and rewards.
MAX_PLACE, MAX_NUMBER = 2**31 - 1, 1e9


class CallRecord(_Record):
    """A tool that the policy called, and what came back."""

    name: str
    arguments: str  # as JSON, or as the policy wrote it; of all texts the beginning
    result: str = ""
    error: str = ""  # why there is no result


class TurnRecord(_Record):
    """A turn of an episode."""

    author: Literal["policy", "environment", "tool"]
    name: str = ""  # of the tool
    # Its message in the text of the completion; around it stands what the chat
    # template writes.
    start: int = Field(ge=0, le=MAX_PLACE)
    end: int = Field(ge=0, le=MAX_PLACE)  # exclusive
    # Where its tokens end, exclusive; null: an outside trainer does not tell.
    token_end: int | None = Field(None, ge=0, le=MAX_PLACE)
    # That the environment took, and the reward that it gave.
    seconds: float | None = Field(None, ge=0, le=MAX_NUMBER)
    reward: float | None = Field(None, ge=-MAX_NUMBER, le=MAX_NUMBER)
    calls: list[CallRecord] = []


def policy_text(text: str, turns: Iterable[Mapping[str, Any]]) -> str:
    """Return what the policy wrote of a completion, a line a turn: all that rules
    judge.

    Args:
        turns: the fields of their records; none: it is one of the policy.
    """
    own = [text[t["start"] : t["end"]] for t in turns if t["author"] == "policy"]
    return "\n".join(own) if own else text


class ScoredCompletion(_Record):
    """A completion of a group, as sampled and scored."""

    text: str  # of all turns
    # The policy's. null, here and below: an outside trainer does not tell
    num_tokens: int | None
    end_reason: EndReason
    reward: float | None  # null: no rule could score it
    rules: dict[str, float | None]  # each rule's score, before its weight
    advantage: float | None
    mean_logprob: float | None  # nats per token, under the policy that sampled it
    logs: dict[str, str] = {}  # what rules printed, by rule; see num_notes
    errors: dict[str, str] = {}  # why rules failed to give a score
    # Of an episode; other completions have none, in the log neither.
    turns: list[TurnRecord] = Field([], exclude_if=lambda turns: not turns)


Age = Annotated[int, Field(ge=0, le=2**31 - 1)]  # in updates


class GroupScored(Event):
    type: Literal["group_scored"] = "group_scored"
    prompt_index: int = Field(ge=0)  # the row's place in rows.jsonl
    prompt: str  # as the model saw it
    # The answer that the row begins, with which the prompt ends; and of episodes of a
    # model with a chat template the conversation before it. Others have none, in the
    # log neither.
    begun: str = Field("", exclude_if=lambda begun: not begun)
    messages: list[dict[str, Any]] = Field([], exclude_if=lambda messages: not messages)
    answer: str | list[str] | None  # of a list, any is right
    reward_mean: float | None
    reward_std: float | None  # within the group, ddof as configured
    signal: Signal
    is_trained: bool = True  # false: dynamic sampling left it out of the batch
    # Updates between the weights that sampled it and its first one; None: not sampled
    # by the policy, or an outside trainer does not tell.
    age: Age | None = Field(None, exclude_if=lambda age: age is None)
    num_notes: int = Field(0, ge=0)  # logs and errors, those left out for room too
    completions: list[ScoredCompletion]


TokenId = Annotated[int, Field(ge=0, lt=2**32)]
# Of each token, rounded to 5 significant digits; null: there is none, or no number.
TokenNumbers = list[float | None]


class MeasuredCompletion(_Record):
    """Token values of a completion, from the first update on it.

    All lists have the same tokens. A value that the run does not have is null instead
    of a list; one that a token does not have, such as the ratio of a token outside the
    loss, is null in the list.
    """

    num_tokens: int  # of the completion; of a long one the first are sent
    ids: list[TokenId]
    # Each token as it is decoded alone; a part of a character is "\ufffd".
    pieces: list[str]
    special: list[TokenId]  # offsets of the special tokens
    logprob: TokenNumbers | None  # nats, under the policy that the update began with
    # Under the one that the batch began with, where `ratio` does not tell it, as with
    # "gspo"; else it is logprob - ln ratio, or there is none.
    old_logprob: TokenNumbers | None = None
    sampling_logprob: TokenNumbers | None  # as the rollout engine reported it
    # Left out where the reference is no teacher.
    teacher_logprob: TokenNumbers | None = Field(
        None, exclude_if=lambda numbers: numbers is None
    )
    entropy: TokenNumbers | None  # nats, of the policy's distribution at the token
    kl: TokenNumbers | None  # to the reference, by the configured estimator
    ratio: TokenNumbers | None  # π/π_old; with "gspo" the sequence's
    # -1: the lower bound took the gradient, 1: the upper, 2: the dual, 0: none did;
    # with "cispo", whose bounds leave a gradient, where the weight was bounded
    clipped: list[Literal[-1, 0, 1, 2] | None] | None
    advantage: TokenNumbers | None
    # of ∇ log π of the token in the update, see trainer.token_values
    coefficient: TokenNumbers | None

    @model_validator(mode="after")
    def _lists_agree(self) -> Self:
        lists = {name: value for name, value in self if isinstance(value, list)}
        del lists["special"]
        for name, values in lists.items():
            if len(values) != len(self.ids):
                raise ValueError(
                    f"There are {len(self.ids)} token ids, but {len(values)} values "
                    f'of "{name}". Pass one value per token.'
                )
        return self


class TokensMeasured(Event):
    """Token values of one of a step's groups, behind all of its `GroupScored`."""

    type: Literal["tokens_measured"] = "tokens_measured"
    prompt_index: int = Field(ge=0)
    completions: list[MeasuredCompletion]


Count = Annotated[int, Field(ge=0, lt=2**32)]
MAX_COMPLETIONS = 65_536  # of a step, with a gap of each


class _Sums(_Record):
    """Columns of one length."""

    num_tokens: list[Count] = Field(max_length=MAX_COMPLETIONS)

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        for name, values in self:
            if len(values) != len(self.num_tokens):
                raise ValueError(
                    f'"{name}" has {len(values)} entries, but num_tokens has '
                    f"{len(self.num_tokens)}."
                )
        return self


class GapSums(_Sums):
    """The gap d = ln π - ln μ over the tokens of each completion, 4 digits."""

    sum: TokenNumbers
    absolute: TokenNumbers  # Σ|d|
    min: TokenNumbers  # null, here and below: the completion has no such token
    max: TokenNumbers
    k3: TokenNumbers  # Σ(e^d - 1 - d)


class GapBins(_Sums):
    """The same over the tokens of each bin."""

    sum: TokenNumbers
    absolute: TokenNumbers
    squares: TokenNumbers  # Σd²
    k3: TokenNumbers
    largest: TokenNumbers  # |d|


# With μ the sampler's probability of a token. old: π is the trainer's before the
# batch's first update. current: it is that of the first update on the token's
# minibatch, which other minibatches have moved.
Against = Literal["old", "current"]
# Why π and μ say little of each other. restricted: tokens were drawn with top_p or its
# like; temperature: they are of different ones; unknown: no token of
# the loss has a μ.
Incomparable = Literal["restricted", "temperature", "unknown"]
# Of sampler and trainer the one that rounds more.
NumberFormat = Literal["bfloat16", "float16", "float32"]


class MismatchMeasured(Event):
    """The gap between sampler and trainer, of a step's groups that were trained on.

    It stands behind them, and in front of `StepFinished`. Bins and edges are those of
    `cohort.mismatch`. The policy's tokens in the loss count, if they have a μ.
    """

    type: Literal["mismatch_measured"] = "mismatch_measured"
    against: Against = "old"
    incomparable: Incomparable | None = None
    age: Age | None = None  # of the oldest group
    dtype: NumberFormat | None = None  # of another trainer, if it tells
    # Of the groups in their order; none: an outside trainer does not tell.
    prompts: list[Annotated[int, Field(ge=0, le=2**31 - 1)]] = []
    sizes: list[Annotated[int, Field(ge=0, le=65_535)]] = []
    # Of their completions, one behind the other.
    advantages: TokenNumbers = []
    sums: GapSums
    positions: GapBins
    probabilities: GapBins
    gaps: list[Count]  # tokens with d between two edges
    # With π - μ between two edges, where the advantage is negative, 0 and positive.
    differences: list[list[Count]]

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        from cohort.mismatch import (  # noqa: PLC0415 - imports numpy
            DIFFERENCE_EDGES,
            GAP_EDGES,
            NUM_POSITIONS,
            PROBABILITY_EDGES,
            SIGNS,
        )

        num = len(self.sums.num_tokens)
        lengths = {
            "completions in groups": (sum(self.sizes) if self.sizes else num, num),
            "advantages": (len(self.advantages) or num, num),
            "sizes of groups": (len(self.sizes), len(self.prompts)),
            "bins by position": (len(self.positions.num_tokens), NUM_POSITIONS),
            "bins by probability": (
                len(self.probabilities.num_tokens),
                len(PROBABILITY_EDGES) + 1,
            ),
            "bins of gaps": (len(self.gaps), len(GAP_EDGES) + 1),
            "bins of differences": (
                [len(counts) for counts in self.differences],
                [len(DIFFERENCE_EDGES) + 1] * len(SIGNS),
            ),
        }
        for name, (length, expected) in lengths.items():
            if length != expected:
                raise ValueError(f"Got {length} {name}; expected {expected}.")
        return self


class StepFinished(Event):
    type: Literal["step_finished"] = "step_finished"
    metrics: dict[str, float | None]


class RankMeasured(_Record):
    """The resources that one process of a run used in a step."""

    node: str  # the host's name
    device: str  # NVIDIA H100 80GB HBM3; cpu
    memory_bytes: int | None  # used on the GPU by all processes; on a CPU, resident
    memory_total_bytes: int | None  # of the GPU, or of the machine
    # generate, score, logprobs, update, sync: own work, without waiting for other
    # ranks; work: of the whole step; wait: for other ranks; step: both
    seconds: dict[str, float | None]


class RanksMeasured(Event):
    """A step of a run of several processes, by rank; in front of `StepFinished`."""

    type: Literal["ranks_measured"] = "ranks_measured"
    ranks: list[RankMeasured]


class Evaluated(Event):
    type: Literal["evaluated"] = "evaluated"
    name: str  # of the held-out set
    num_prompts: int
    samples_per_prompt: int
    metrics: dict[str, float | None]  # eval/<set>/…


class CheckpointSaved(Event):
    type: Literal["checkpoint_saved"] = "checkpoint_saved"
    name: str  # folder inside the run's checkpoints
    sha256: str  # of the checkpoint's manifest
    num_bytes: int


class Warned(Event):
    type: Literal["warned"] = "warned"
    code: str
    message: str
    value: float | None = None
    threshold: float | None = None


class RunFinished(Event):
    type: Literal["run_finished"] = "run_finished"


class RunStopped(Event):
    type: Literal["run_stopped"] = "run_stopped"
    checkpoint: str | None


class ScoreFault(_Record):
    """The failed scores of a step that one rule has for the same reason."""

    rule: str
    error: str
    count: int
    rows: list[int] = Field(default_factory=list)  # the first few of the dataset


class RunPaused(Event):
    """The run pauses until a person acts: scores fail, or the disk is full.

    If too many scores of step `step` + 1 failed, it was not trained on and the
    checkpoint is the state after `step`; null: there is none. A resumed run samples and
    scores the step again. If the disk is full, the checkpoint is the last one saved,
    and a resumed run repeats the steps after it.
    """

    type: Literal["run_paused"] = "run_paused"
    reason: str  # a sentence for the user
    share: float | None = None  # of the step's scores
    limit: float | None = None  # reward.max_error_share
    # The commonest first; the commonest 5 at most.
    faults: list[ScoreFault] = Field(default_factory=list)
    checkpoint: str | None
    needs_bytes: int | None = None  # free on the disk, to go on by itself


class RunFailed(Event):
    type: Literal["run_failed"] = "run_failed"
    error: str  # a sentence for the user
    details: str  # traceback


AnyEvent = Annotated[
    RunStarted
    | RunResumed
    | PhaseStarted
    | SettingsChanged
    | GroupScored
    | TokensMeasured
    | MismatchMeasured
    | RanksMeasured
    | StepFinished
    | Evaluated
    | CheckpointSaved
    | Warned
    | RunFinished
    | RunStopped
    | RunPaused
    | RunFailed,
    Field(discriminator="type"),
]
_adapter: TypeAdapter[Any] = TypeAdapter(AnyEvent)


class UnknownEvent(ValueError):
    """A line of a type that this version does not know; it is not damaged."""

    def __init__(self, type: str, *, time: float, step: int) -> None:
        super().__init__(f"Unknown event type {type!r}.")
        self.type = type
        self.time = time
        self.step = step


def parse_event(line: bytes | str) -> Event:
    """Parse a line of the log, written by this or a neighbouring version.

    Fields missing from an older version get their defaults, and unknown fields of a
    newer one are ignored, though they cannot be written.

    Raises:
        UnknownEvent: its type is unknown to this version.
        ValueError: it is not an event.
    """
    try:
        event: Event = _adapter.validate_json(line, extra="ignore")
    except ValidationError as error:
        fault = error.errors()[0]
        if fault["type"] == "missing" and fault["loc"][-1] == "attempt":
            return _parse_preview(line, error)
        if fault["type"] != "union_tag_invalid":
            raise
        place = _Place.model_validate_json(line, extra="ignore")
        raise UnknownEvent(place.type, time=place.time, step=place.step) from None
    return event


def _parse_preview(line: bytes | str, error: ValidationError) -> Event:
    """Return the first previews called the attempt an epoch."""
    tree = json.loads(line)
    if "epoch" not in tree:
        raise error
    event: Event = _adapter.validate_python(
        tree | {"attempt": tree["epoch"]}, extra="ignore"
    )
    return event


class _Place(Event):
    type: str = Field(max_length=100)
