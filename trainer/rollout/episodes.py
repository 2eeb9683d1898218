"""Episodes: a policy and its environment take turns.

All episodes that wait for the policy go into one question to the engine. What it
sampled is never encoded again; the tokens between two of its turns are appended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from threading import current_thread
from typing import Any

from transformers import PreTrainedTokenizerBase

from trainer.config import DataConfig, EnvironmentConfig, RunConfig
from trainer.console import print_traceback
from trainer.data import Prompt, PromptRenderer, Row, tools_of
from trainer.events import EndReason
from trainer.host import tick
from trainer.rewards.judge import limited_to
from trainer.rewards.rule import Message
from trainer.rewards.sandbox.pool import asking_for
from trainer.rollout.chat import ChatFormat
from trainer.rollout.engine import (
    JointEngine,
    OnGroup,
    Request,
    RolloutEngine,
    SamplingParams,
    ignore,
)
from trainer.rollout.environments import (
    EnvironmentFailed,
    GuessEnvironment,
    Reply,
    Said,
    environment_seed,
)
from trainer.rollout.tools import PythonEnvironment, ToolEnvironment
from trainer.rollout.verifiers import (
    Taskset,
    open_taskset,
    reply_of,
    turn_line,
)
from trainer.seeding import derive
from trainer.tokenizers import decode_text, first_line
from trainer.types import Rollout, ToolCall

Environment = GuessEnvironment | PythonEnvironment | ToolEnvironment | Taskset
# Replies that are waited for at the same time. Each has a sandbox of its own, as calls
# of one owner wait for each other.
_NUM_OWNERS = 8
# Once the engine is free, so long for more replies, so that a round has more episodes.
_GATHER_SECONDS = 0.2


def make_environment(config: EnvironmentConfig) -> Environment | None:
    """Return the environment of a run; None: a completion is one turn.

    Raises:
        ValueError: its source is none, or there is no sandbox for it.
    """
    match config.kind:
        case "none":
            return None
        case "guess":
            return GuessEnvironment()
        case "python":
            return PythonEnvironment(
                config.source,
                packages=config.packages,
                call_seconds=config.call_seconds,
            )
        case "tools":
            return ToolEnvironment(
                config.tools,
                source=config.source,
                packages=config.packages,
                call_seconds=config.call_seconds,
            )
        case "countdown_calculator":
            return ToolEnvironment(["calculator"])
        case "verifiers":
            return open_taskset(config.model_dump_json())


def make_renderer(
    tokenizer: PreTrainedTokenizerBase,
    data: DataConfig,
    settings: EnvironmentConfig,
    *,
    seed: int,
    num_embeddings: int | None = None,
) -> PromptRenderer:
    """Return what renders a run's rows: with its environment's tools and opening.

    Args:
        seed: of the run.
    """
    environment = make_environment(settings)
    if environment is None:
        return PromptRenderer(tokenizer, data, num_embeddings=num_embeddings)
    return PromptRenderer(
        tokenizer,
        data,
        num_embeddings=num_embeddings,
        tools=environment.tools,
        opening=lambda row: environment.open(row, environment_seed(seed, row)),
    )


def check_environment(
    tokenizer: PreTrainedTokenizerBase,
    config: RunConfig,
    row: Row,
    *,
    eos_ids: Sequence[int],
) -> None:
    """Refuse a model whose chats have no such turns as the run's environment needs, and
    an environment whose answers to a row differ.

    Raises:
        ValueError: with the reason.
    """
    environment = make_environment(config.environment)
    if environment is None:
        return
    for reason in chat_of(tokenizer, config.data, environment, row).check(eos_ids):
        raise ValueError(
            f"{reason} So it has no episodes: choose another model, or set "
            "environment.kind to none."
        )
    if isinstance(environment, PythonEnvironment):
        environment.check(row)


def drops_thinking(
    tokenizer: PreTrainedTokenizerBase, config: RunConfig, row: Row
) -> bool:
    """Return whether episodes keep thoughts that the chat template leaves out."""
    environment = make_environment(config.environment)
    return (
        environment is not None
        and chat_of(tokenizer, config.data, environment, row).drops_thinking
    )


def chat_of(
    tokenizer: PreTrainedTokenizerBase,
    data: DataConfig,
    environment: Environment,
    row: Row,
) -> ChatFormat:
    """Return the format of episodes: all tasks of a taskset have the tools of one."""
    tools = tools_of(row) if isinstance(environment, Taskset) else environment.tools
    return ChatFormat(tokenizer, data, tools=tools)


def make_sampler(engine: RolloutEngine, config: RunConfig) -> EngineSource:
    """Return what plays the run's environment; without one it samples single turns."""
    environment = make_environment(config.environment)
    if environment is None:
        return EngineSource(engine, config)
    return EpisodePlayer(engine, environment, config)


class EngineSource:
    """Completions that a rollout engine samples, each from a seed of its own.

    They have one turn each.
    """

    def __init__(self, engine: RolloutEngine, config: RunConfig) -> None:
        self._engine = engine
        self._config = config
        self.idle_seconds = 0.0  # in which the engine waited for replies

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The meaning of the completions' token ids."""
        return self._engine.tokenizer

    def complete(
        self, prompts: Sequence[Prompt], step: int, *, on_group: OnGroup = ignore
    ) -> list[tuple[Rollout, ...]]:
        """Return the completions of each prompt, `group_size` of them, in order.

        `on_group` gets a prompt's index and completions once they have ended, where
        some do before others.
        """
        seed, rollout = self._config.seed, self._config.rollout
        seeds = [
            [
                derive(seed, "sample", step, prompt.index, k)
                for k in range(rollout.group_size)
            ]
            for prompt in prompts
        ]
        params = SamplingParams.of(rollout)
        return self.play(prompts, seeds, params, on_group=on_group)

    def sync_weights(self) -> None:
        """Take up the policy's present weights, where the engine samples from it."""
        self._engine.sync_weights()

    def play(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        on_group: OnGroup = ignore,
    ) -> list[tuple[Rollout, ...]]:
        """Return for each prompt one completion per seed, in order.

        Args:
            prompts: P of them.
            seeds: of each prompt's completions, as an engine takes them.
            params: of sampling; limits of an episode come on top.
            on_group: told of a prompt once all its completions have ended, while
                others have not.
        """
        requests = [
            Request(token_ids=prompt.token_ids, seeds=tuple(own))
            for prompt, own in zip(prompts, seeds, strict=True)
        ]
        return self._engine.sample(requests, params, on_group=on_group)


# Of an episode that goes on.
_BEGUN = Rollout(turns=(), end_reason="unknown", is_episode=True)


@dataclass(kw_only=True)
class _Episode:
    """A completion on its way."""

    index: int  # of its prompt
    prompt: Prompt
    seed: int
    rollout: Rollout = _BEGUN
    said: list[Said] = field(default_factory=list)
    is_cut: bool = False  # a limit ended the policy's last turn
    seconds: float = 0.0  # that its environment has taken

    @property
    def has_ended(self) -> bool:
        return self.rollout.end_reason != _BEGUN.end_reason

    @property
    def turn_seed(self) -> int:
        """The seed of the policy's next turn.

        It follows from the completion's and the turn's number alone, so tokens do not
        depend on how episodes fall into rounds, as far as the engine's arithmetic
        allows.
        """
        number = len(self.said)
        return derive(self.seed, "turn", number) if number else self.seed


class EpisodePlayer(EngineSource):
    """Plays episodes in rounds: an engine samples, then the environment answers."""

    def __init__(
        self, engine: RolloutEngine, environment: Environment, config: RunConfig
    ) -> None:
        super().__init__(engine, config)
        self._environment = environment

    def play(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        on_group: OnGroup = ignore,
    ) -> list[tuple[Rollout, ...]]:
        environment, config = self._environment, self._config
        if prompts:
            row = prompts[0].row
            self._chat = chat_of(self.tokenizer, config.data, environment, row)
        replies = _Replies(environment, config)
        if isinstance(environment, Taskset):
            replies = _TasksetReplies(environment, config)
        groups = [
            [_Episode(index=index, prompt=prompt, seed=seed) for seed in own]
            for index, (prompt, own) in enumerate(zip(prompts, seeds, strict=True))
        ]
        left = [len(group) for group in groups]
        waiting = [episode for group in groups for episode in group]
        with closing(replies):
            while self._goes_on(is_needed=bool(waiting or replies.asked)):
                self._sample(waiting, params, on_turn=replies.ask)
                waiting = []
                for episode in self._collect(replies):
                    if not episode.has_ended:
                        waiting.append(episode)
                    elif replies.has_ended(episode):
                        left[episode.index] -= 1
                        if left[episode.index] == 0:
                            group = groups[episode.index]
                            on_group(episode.index, tuple(e.rollout for e in group))
        return [tuple(episode.rollout for episode in group) for group in groups]

    def _goes_on(self, *, is_needed: bool) -> bool:
        """Return whether there is another round, for this process or one beside it."""
        if isinstance(self._engine, JointEngine):
            return self._engine.is_needed_by_any(own=is_needed)
        return is_needed

    def _sample(
        self,
        episodes: Sequence[_Episode],
        params: SamplingParams,
        *,
        on_turn: Callable[[_Episode], None],
    ) -> None:
        """Sample a turn of each episode; told of one at once where it has ended."""
        # Those that begin with the same prompt are one request; others are alone.
        by_request = groupby(episodes, lambda e: id(e if e.said else e.prompt))
        batches = [list(batch) for _, batch in by_request]
        requests = [
            Request(
                token_ids=(*batch[0].prompt.token_ids, *batch[0].rollout.token_ids),
                seeds=tuple(episode.turn_seed for episode in batch),
                max_new_tokens=self._room(batch[0].prompt, batch[0].rollout),
            )
            for batch in batches
        ]

        def take(index: int, completions: tuple[Rollout, ...]) -> None:
            batch, batches[index] = batches[index], []  # each is taken once
            for episode, completion in zip(batch, completions, strict=False):
                [turn] = completion.turns
                turn = replace(turn, has_end_token=completion.has_end_token)
                episode.rollout = replace(
                    episode.rollout,
                    turns=(*episode.rollout.turns, turn),
                    is_stopped_by_text=completion.is_stopped_by_text,
                )
                episode.is_cut = completion.end_reason == "length"
                episode.said.append(self._chat.parse(turn.text))
                on_turn(episode)

        # all processes ask together
        if requests or isinstance(self._engine, JointEngine):
            sampled = self._engine.sample(requests, params, on_group=take)
            for index, completions in enumerate(sampled):
                take(index, completions)

    def _room(self, prompt: Prompt, rollout: Rollout) -> int:
        """Return how many tokens the policy's next turn may have."""
        limits, most = self._config.environment, self._config.rollout.max_new_tokens
        return min(
            limits.max_turn_tokens or most,
            most - rollout.num_policy_tokens,
            limits.max_tokens - len(prompt.token_ids) - rollout.num_tokens,
        )

    def _collect(self, replies: _Replies) -> Iterator[_Episode]:
        """Give episodes whose reply is there: at least one, if there is any."""
        begin = time.monotonic()
        # Others wait for this process where all ask together.
        is_enough = isinstance(self._engine, JointEngine)
        while replies.asked:
            for episode, answer, seconds in replies.take():
                episode.seconds += seconds
                episode.rollout = self._take_up(episode, answer, seconds)
                yield episode
                is_enough = True
            if is_enough and time.monotonic() > begin + _GATHER_SECONDS:
                break
        if not self._environment.is_quick:
            self.idle_seconds += time.monotonic() - begin

    def _take_up(self, episode: _Episode, answer: _Answer, seconds: float) -> Rollout:
        """Return an episode with a reply: it ends, or the policy's turn comes next."""
        limits, rollout = self._config.environment, episode.rollout
        if answer is None:
            return replace(rollout, end_reason="length")
        if isinstance(answer, EnvironmentFailed):
            reason: EndReason = "timeout" if answer.is_timeout else "failed"
            return replace(rollout, error=str(answer), end_reason=reason)
        *before, last = rollout.turns
        reward, metrics = answer.episode_reward, {**rollout.metrics, **answer.metrics}
        rollout = replace(
            rollout,
            turns=(*before, replace(last, reward=answer.reward)),
            reward=rollout.reward if reward is None else reward,
            metrics=metrics,
        )
        if episode.seconds > limits.trajectory_seconds:
            late = (
                f"The environment took {episode.seconds:.0f} s of at most "
                f"{limits.trajectory_seconds:g} s. Raise "
                "environment.trajectory_seconds."
            )
            return replace(rollout, error=late, end_reason="timeout")
        try:
            turn = self._chat.between(
                [self._cut(message) for message in answer.messages],
                last_id=last.token_ids[-1],
                ended=last.has_end_token,
            )
        except ValueError as error:  # the chat template cannot write it
            return replace(rollout, error=str(error), end_reason="failed")
        calls = tuple(answer.calls) or _calls_of(answer.messages)
        turn = replace(turn, calls=calls, seconds=seconds)
        ahead = replace(rollout, turns=(*rollout.turns, turn))
        room = self._room(episode.prompt, ahead)
        if answer.is_done:
            is_own = self._environment.tools and not episode.said[-1].calls
            ended = ahead if answer.messages and room >= 0 else rollout
            if episode.has_ended:  # by a limit
                return ended
            return replace(ended, end_reason="stop" if is_own else "done")
        if len(episode.said) == limits.max_turns:
            return replace(rollout, end_reason="turns")
        return ahead if room > 0 else replace(rollout, end_reason="length")

    def _cut(self, message: Message) -> Message:
        """Cut a message that is too long, and say so in it."""
        content, most = message["content"], self._config.environment.max_reply_tokens
        ids = self.tokenizer.encode(content, add_special_tokens=False)
        if len(ids) <= most:
            return message
        note = f"\n… {most:,} of {len(ids):,} tokens"
        return {**message, "content": decode_text(self.tokenizer, ids[:most]) + note}


# The reply to a turn of the policy; None: one that was cut off is not answered.
_Answer = Reply | EnvironmentFailed | None


class _Replies:
    """Asks an environment: at once where it is quick, else in threads."""

    def __init__(self, environment: Environment, config: RunConfig) -> None:
        self._environment = environment
        self._config = config
        self._threads = ThreadPoolExecutor(_NUM_OWNERS, "episodes")
        # Episodes that were asked about and not yet taken, by what stands for a reply.
        self.asked: dict[Any, _Episode] = {}

    def ask(self, episode: _Episode) -> None:
        """Ask for the reply to an episode's last turn."""
        if episode.is_cut or self._environment.is_quick:
            future = Future[tuple[_Answer, float]]()
            future.set_result(self._answer(episode))
        else:
            future = self._threads.submit(self._answer, episode)
        self.asked[future] = episode

    def take(self) -> list[tuple[_Episode, _Answer, float]]:
        """Return the replies that have come, and the seconds that each took; without
        any, wait a moment for one.
        """
        done, _ = wait(self.asked, _GATHER_SECONDS, return_when=FIRST_COMPLETED)
        tick()
        # in the order of asking, not of ending
        ordered = [future for future in self.asked if future in done]
        return [(self.asked.pop(future), *future.result()) for future in ordered]

    def has_ended(self, episode: _Episode) -> bool:
        """Return whether an episode that goes on no more has all it will have."""
        return True

    def close(self) -> None:
        # An error does not wait for calls that go on.
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _answer(self, episode: _Episode) -> tuple[_Answer, float]:
        if episode.is_cut:
            return None, 0.0
        row, begin = episode.prompt.row, time.monotonic()
        left = self._config.environment.trajectory_seconds - episode.seconds
        answer: _Answer
        try:
            with asking_for(current_thread().name), limited_to(left):
                seed = environment_seed(self._config.seed, row)
                answer = self._environment.reply(row, seed, tuple(episode.said))
        except EnvironmentFailed as error:
            answer = error
        except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
            print_traceback(error)
            answer = EnvironmentFailed(f"{type(error).__name__}: {first_line(error)}")
        return answer, time.monotonic() - begin


class _TasksetReplies(_Replies):
    """Tells a taskset the policy's turns, and takes what it says to them."""

    def __init__(self, taskset: Taskset, config: RunConfig) -> None:
        super().__init__(taskset, config)
        self._taskset = taskset
        self._playing: set[int] = set()  # what it knows, by the keys of `asked`

    def ask(self, episode: _Episode) -> None:
        task: dict[str, Any] = {}
        if id(episode) not in self._playing:
            self._playing.add(id(episode))
            row, messages = episode.prompt.row, episode.prompt.messages
            task = {"task": row.columns["task"], "tools": tools_of(row)}
            task["messages"] = messages
        self._write(episode, **task, **turn_line(episode.said, is_cut=episode.is_cut))
        if episode.is_cut:
            episode.rollout = replace(episode.rollout, end_reason="length")
            self._write(episode)

    def take(self) -> list[tuple[_Episode, _Answer, float]]:
        tick()
        try:
            line = self._taskset.read(timeout_seconds=_GATHER_SECONDS)
        except EnvironmentFailed as error:
            lost, self.asked = self.asked, {}
            self._playing -= lost.keys()
            return [(episode, error, 0.0) for episode in lost.values()]
        episode = self.asked.pop(line["episode"], None) if line else None
        if line is None or episode is None:
            return []
        if "end" in line:
            self._playing.remove(line["episode"])
        return [(episode, reply_of(line, episode.said[-1].calls), line["seconds"])]

    def has_ended(self, episode: _Episode) -> bool:
        if id(episode) not in self._playing:
            return True
        self._write(episode)
        return False

    def close(self) -> None:
        if self._playing:
            self._taskset.close()

    def _write(self, episode: _Episode, **fields: Any) -> None:
        """Wait for what the taskset says to a turn, or to none: it takes no more."""
        self.asked[id(episode)] = episode
        left = self._config.environment.trajectory_seconds - episode.seconds
        self._taskset.write(episode=id(episode), seconds=max(left, 0.0), **fields)


def _calls_of(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Return the calls whose results an environment that read them itself gives."""
    if not all(message["role"] == "tool" for message in messages):
        return ()
    return tuple(
        ToolCall(name=message.get("name", ""), arguments={}, result=message["content"])
        for message in messages
    )
