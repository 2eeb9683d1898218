"""Scores groups while others are sampled, as a whole or by reasoning step."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise, takewhile
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from trainer.config import RewardConfig
from trainer.data import Prompt
from trainer.host import num_cores, tick
from trainer.rewards.rule import Sample, compile_pattern
from trainer.rewards.scoring import Score, add_usage, without_special_tokens
from trainer.rewards.spec import Recipe, reads_token_ids
from trainer.rewards.workers import GroupScorer, Scored
from trainer.tokenizers import decode_text
from trainer.types import Group, Rollout, StepScore, ToolCall

Boundary = Literal["end", "begin"]
ENVIRONMENT = "environment"  # names what one measured, among what rules did


@dataclass(frozen=True)
class Step:
    """A part of a completion and the exclusive offset of its last token.

    >>> Step("3+5=8,8-7=1.", 11)
    """

    text: str
    end: int


def cut_steps(
    completion: Rollout,
    *,
    pattern: str,
    tokenizer: PreTrainedTokenizerBase,
    boundary: Boundary = "end",
) -> list[Step]:
    """Cut a completion behind each match of an RE2 pattern, or before each.

    The match belongs to the step that it ends, or begins, and a token to the step in
    which it ends. A part that is blank or in which no token ends is no step of its own
    and joins the next one; what is behind the last cut is the last step, the ending
    token with it. There is always at least one step, and together they are the whole
    completion. The steps of an episode are the policy's turns.
    """
    if completion.is_episode:
        turns = zip(completion.policy_turns, completion.turn_ends, strict=True)
        return [Step(turn.text, end) for turn, end in turns]
    text = completion.text
    written = completion.token_ids[: -1 if completion.has_end_token else None]
    cuts = [(0, 0)]  # in the text, in the tokens
    # Half a surrogate pair is no UTF-8, which RE2 reads; its stand-in is as long.
    readable = text.encode("utf-8", "replace").decode("utf-8")
    for match in compile_pattern(pattern).finditer(readable):
        if match.end() == match.start():
            continue
        text_end = match.end() if boundary == "end" else match.start()
        begin, num_tokens = cuts[-1]
        end = _num_tokens_until(text_end, text, written, tokenizer, at_least=num_tokens)
        if text[begin:text_end].strip() and end > num_tokens:
            cuts.append((text_end, end))
    if len(cuts) > 1 and not text[cuts[-1][0] :].strip():
        cuts.pop()  # a blank rest joins the step before it
    cuts.append((len(text), completion.num_tokens))
    return [
        Step(text[begin:text_end], end)
        for (begin, _), (text_end, end) in pairwise(cuts)
    ]


def turn_scores(episode: Rollout) -> tuple[StepScore, ...]:
    """Return the environment's rewards as those of reasoning steps; none of an episode
    that failed.
    """
    turns = zip(episode.turn_ends, episode.policy_turns, strict=True)
    return tuple(
        StepScore(end, None if episode.error else turn.reward) for end, turn in turns
    )


def messages_of(completion: Rollout) -> list[dict[str, Any]]:
    """Return an episode's turns as messages; none of another completion."""
    if not completion.is_episode:
        return []
    return [
        {"role": "assistant", "content": turn.text, "reward": turn.reward}
        if turn.author == "policy"
        else _reply_message(turn.text[start:end], call)
        for turn in completion.turns
        for start, end, call in turn.messages
    ]


def sample_of(prompt: Prompt, text: str, **fields: Any) -> Sample:
    """Return a text, which a policy wrote to a prompt, as rules read it."""
    return Sample(
        prompt=prompt.text.removesuffix(prompt.begun),
        completion=without_special_tokens(text, prompt.special_tokens),
        answer=prompt.row.answer,
        columns=prompt.row.columns,
        messages=prompt.messages,
        is_chat=not isinstance(prompt.row.prompt, str),
        **fields,
    )


def _reply_message(text: str, call: ToolCall | None) -> dict[str, Any]:
    if call is None:
        return {"role": "user", "content": text}
    return {"role": "tool", "content": text, "name": call.name, "call": asdict(call)}


def _num_tokens_until(
    text_end: int,
    text: str,
    token_ids: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    *,
    at_least: int,
) -> int:
    """Return how many tokens end at or before a place in the text they decode to."""

    def end_of(num_tokens: int) -> int:
        return _num_begun(decode_text(tokenizer, token_ids[:num_tokens]), text)

    counts = range(len(token_ids) + 1)
    return bisect_right(counts, text_end, lo=at_least + 1, key=end_of) - 1


def _num_begun(decoded: str, text: str) -> int:
    """Return characters of a text that its first tokens, decoded alone, complete or
    begin.

    A character may be spread over several tokens. The first of them decode to
    replacement characters, one or more as the tokenizer likes; the character counts
    as begun.
    """
    if text.startswith(decoded):
        return len(decoded)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(decoded, text, strict=False))
    return min(sum(1 for _ in same) + 1, len(text))


# A worker and math-verify behind it take 95 MB, and 4 ms for a completion: so many
# score 2,000 a second.
_MOST_WORKERS = 8


class Scorer(GroupScorer):
    """Scores in processes of its own while others are sampled, or in this one after."""

    def __init__(self, num_workers: int | None = 0) -> None:
        """Args: num_workers: processes; None: for slow recipes alone, as many as there
        are cores to spare, since the others take less time than sending them.
        """
        count = spare_workers() if num_workers is None else num_workers
        super().__init__(count, only_slow=num_workers is None)

    def begin(
        self,
        prompts: Sequence[Prompt],
        reward: RewardConfig,
        *,
        step: int = 1,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> Scoring:
        """Score what is sampled of some prompts, by the weights of a step of the run.

        With a tokenizer their reasoning steps are scored too.
        """
        return Scoring(self, prompts, reward, step, tokenizer)


HERE = Scorer()


def spare_workers() -> int:
    """Return one less than this process's share of the cores, which samples; at least
    one.
    """
    share = num_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(max(share - 1, 1), _MOST_WORKERS)


class Scoring:
    """The groups of some prompts on the way to their scores."""

    def __init__(
        self,
        scorer: Scorer,
        prompts: Sequence[Prompt],
        reward: RewardConfig,
        step: int,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> None:
        self._scorer = scorer
        self._step = step
        self._prompts = prompts
        self._reward = reward
        self._tokenizer = tokenizer
        self._scores: dict[int, Callable[[], Scored]] = {}
        # Of reasoning steps: where each ends, and what will be their scores.
        self._steps: dict[int, tuple[list[list[int]], Callable[[], Scored]]] = {}
        self.seconds = 0.0  # that scoring took, in all processes together

    def add(self, index: int, completions: Sequence[Rollout]) -> None:
        """Begin to score the completions of the prompt in this place.

        Rules see what the policy wrote alone, and no episode whose environment failed.
        """
        prompt, recipe = self._prompts[index], self._reward.recipe
        # Their way to a worker takes longer than most rules.
        has_ids = reads_token_ids(recipe)
        samples = [
            sample_of(
                prompt,
                completion.policy_text,
                begun=prompt.begun,
                token_ids=completion.policy_ids if has_ids else None,
                turns=messages_of(completion),
                environment_reward=completion.reward,
            )
            for completion in completions
            if not completion.error
        ]
        self._scores[index] = self._submit(prompt, recipe, samples)
        step_recipe = self._reward.step_recipe
        if step_recipe is not None and self._tokenizer is not None:
            cut = [
                cut_steps(
                    completion,
                    pattern=self._reward.step_pattern,
                    boundary=self._reward.step_boundary,
                    tokenizer=self._tokenizer,
                )
                for completion in completions
            ]
            samples = [
                sample_of(prompt, step.text, before=before)
                for steps in cut
                for step, before in zip(
                    steps,
                    accumulate((step.text for step in steps), initial=prompt.begun),
                    strict=False,
                )
            ]
            ends = [[step.end for step in steps] for steps in cut]
            self._steps[index] = ends, self._submit(prompt, step_recipe, samples)

    def finish(self, completions: Sequence[Sequence[Rollout]]) -> list[Group]:
        """Return the groups in order, and those that no one had added.

        Raises:
            ScoringFailed: a completion cannot be scored.
        """
        for index, members in enumerate(completions):
            if index not in self._scores:
                self.add(index, members)
        groups = [
            Group(
                prompt=self._prompts[index],
                completions=tuple(members),
                scores=tuple(self._scores_of(index, members)),
            )
            for index, members in enumerate(completions)
        ]
        if self._tokenizer is None:
            return groups
        return [self._with_steps(index, group) for index, group in enumerate(groups)]

    def _with_steps(self, index: int, group: Group) -> Group:
        """Give the group the scores of its steps, and what judges took for them."""
        members = group.completions
        if index not in self._steps:
            return replace(group, step_scores=tuple(map(turn_scores, members)))
        ends, result = self._steps[index]
        scored = self._result(result)
        first, *others = group.scores
        first = replace(first, usage=add_usage([first, *scored]))
        scores = iter(scored)
        steps = [
            tuple(StepScore(end, next(scores).total) for end in own) for own in ends
        ]
        return replace(
            group,
            scores=(first, *others),
            step_scores=tuple(
                turn_scores(completion) if completion.error else own
                for completion, own in zip(members, steps, strict=True)
            ),
        )

    def _scores_of(self, index: int, members: Sequence[Rollout]) -> Iterator[Score]:
        scores = iter(self._result(self._scores[index]))
        names = [rule.name for rule in self._reward.recipe.rules]
        for completion in members:
            if completion.error:
                yield Score(
                    total=None,
                    rules=dict.fromkeys(names),
                    errors=dict.fromkeys(names, completion.error),
                )
                continue
            score = next(scores)
            if completion.metrics:
                own = {ENVIRONMENT: dict(completion.metrics)}
                score = replace(score, metrics=score.metrics | own)
            yield score

    def _submit(
        self, prompt: Prompt, recipe: Recipe, samples: Sequence[Sample]
    ) -> Callable[[], Scored]:
        name = f"row {prompt.index} (line {prompt.index + 1})"
        return self._scorer.submit(recipe, samples, name=name, step=self._step)

    def _result(self, result: Callable[[], Scored]) -> list[Score]:
        scored = result()
        tick()
        self.seconds += scored.seconds
        return scored.scores
