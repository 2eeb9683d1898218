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
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from trainer.config import DataConfig, EnvironmentConfig, RunConfig
from trainer.console import print_traceback
from trainer.data import Prompt, PromptRenderer, Row, tools_of
from trainer.events import EndReason
from trainer.host import tick
from trainer.rewards.judge import limited_to
from trainer.rewards.rule import Message
from trainer.rewards.sandbox.pool import asking_for
from trainer.rollout.chat import Between, ChatFormat
from trainer.rollout.engine import (
    JointEngine,
    OnGroup,
    Request,
    RolloutEngine,
    SamplingParams,
    ignore,
)
from trainer.rollout.environments import (
    Environment,
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
from trainer.types import Rollout, ToolCall, Turn

# Replies that are waited for at the same time. Each has a sandbox of its own, as calls
# of one owner wait for each other.
_NUM_OWNERS = 8
# Once the engine is free, so long for more replies, so that a round has more episodes.
_GATHER_SECONDS = 0.2


class Sampler(Protocol):
    """Gives prompts their completions."""

    idle_seconds: float  # in which the engine waited for replies

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
        ...


def make_sampler(engine: RolloutEngine, config: RunConfig) -> Sampler:
    """Return what plays the run's environment; without one it samples single turns."""
    environment = make_environment(config.environment)
    if environment is None:
        return SingleTurns(engine)
    limits = Limits.of(config)
    if isinstance(environment, Taskset):
        return TasksetPlayer(engine, environment, config, limits=limits)
    chat = ChatFormat(engine.tokenizer, config.data, tools=environment.tools)
    return EpisodePlayer(engine, environment, chat, limits=limits, seed=config.seed)


def make_renderer(
    tokenizer: PreTrainedTokenizerBase,
    config: RunConfig,
    *,
    num_embeddings: int | None = None,
) -> PromptRenderer:
    """Return what renders a run's rows: with its environment's tools and opening."""
    return renderer_of(
        tokenizer,
        config.data,
        make_environment(config.environment),
        seed=config.seed,
        num_embeddings=num_embeddings,
    )


def renderer_of(
    tokenizer: PreTrainedTokenizerBase,
    data: DataConfig,
    environment: Environment | None,
    *,
    seed: int,
    num_embeddings: int | None = None,
) -> PromptRenderer:
    """Return what renders rows with the environment's tools and opening."""
    if environment is None:
        return PromptRenderer(tokenizer, data, num_embeddings=num_embeddings)

    def open_row(row: Row) -> Sequence[Message]:
        try:
            return environment.open(row, environment_seed(seed, row))
        except EnvironmentFailed as error:
            raise ValueError(str(error)) from error

    return PromptRenderer(
        tokenizer,
        data,
        num_embeddings=num_embeddings,
        tools=environment.tools,
        opening=open_row,
    )


def make_environment(config: EnvironmentConfig) -> Environment | None:
    """Return the environment of a run; None: a completion is one turn.

    Raises:
        ValueError: its source is none, or there is no sandbox for it.
    """
    try:
        return _environment_of(config)
    except EnvironmentFailed as error:
        raise ValueError(str(error)) from error


def _environment_of(config: EnvironmentConfig) -> Environment | None:
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
    tools = tools_of(row) if isinstance(environment, Taskset) else environment.tools
    chat = ChatFormat(tokenizer, config.data, tools=tools)
    for reason in chat.check(eos_ids):
        raise ValueError(
            f"{reason} So it has no episodes: choose another model, or set "
            "environment.kind to none."
        )
    if isinstance(environment, PythonEnvironment):
        environment.check(row)


def drops_thinking(tokenizer: PreTrainedTokenizerBase, config: RunConfig) -> bool:
    """Return whether episodes keep thoughts that the chat template leaves out."""
    environment = make_environment(config.environment)
    return (
        environment is not None
        and ChatFormat(tokenizer, config.data, tools=environment.tools).drops_thinking
    )


class SingleTurns:
    """Samples one turn of each completion."""

    idle_seconds = 0.0

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine

    def play(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        on_group: OnGroup = ignore,
    ) -> list[tuple[Rollout, ...]]:
        requests = [
            Request(token_ids=prompt.token_ids, seeds=tuple(own))
            for prompt, own in zip(prompts, seeds, strict=True)
        ]
        return self._engine.sample(requests, params, on_group=on_group)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that an episode may have."""

    turns: int
    turn_tokens: int  # of the policy in a turn
    policy_tokens: int  # of the policy in all turns
    tokens: int  # of prompt, policy and replies together
    reply_tokens: int  # of a message of the environment
    seconds: float  # that its environment takes

    @classmethod
    def of(cls, config: RunConfig) -> Limits:
        environment, most = config.environment, config.rollout.max_new_tokens
        return cls(
            turns=environment.max_turns,
            turn_tokens=environment.max_turn_tokens or most,
            policy_tokens=most,
            tokens=environment.max_tokens,
            reply_tokens=environment.max_reply_tokens,
            seconds=environment.trajectory_seconds,
        )


@dataclass(kw_only=True)
class _Episode:
    """A completion on its way."""

    index: int  # of its prompt
    prompt: Prompt
    seed: int
    turns: list[Turn] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    last: Rollout | None = None  # the policy's last turn as it was sampled
    seconds: float = 0.0  # that its environment has taken
    end_reason: EndReason | None = None
    error: str = ""
    reward: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The prompt and all that followed."""
        ids = [self.prompt.token_ids, *(turn.token_ids for turn in self.turns)]
        return tuple(token for part in ids for token in part)

    def room(self, limits: Limits) -> int:
        """Return how many tokens the policy's next turn may have."""
        lengths = [len(turn.token_ids) for turn in self.turns]
        by_policy = sum(
            length
            for turn, length in zip(self.turns, lengths, strict=True)
            if turn.author == "policy"
        )
        return min(
            limits.turn_tokens,
            limits.policy_tokens - by_policy,
            limits.tokens - len(self.prompt.token_ids) - sum(lengths),
        )

    def rollout(self) -> Rollout:
        assert self.last is not None
        assert self.end_reason is not None
        return Rollout(
            turns=tuple(self.turns),
            end_reason=self.end_reason,
            is_stopped_by_text=self.last.is_stopped_by_text,
            is_episode=True,
            error=self.error,
            reward=self.reward,
            metrics=self.metrics,
        )


class EpisodePlayer:
    """Plays episodes in rounds: an engine samples, then the environment answers."""

    def __init__(
        self,
        engine: RolloutEngine,
        environment: Environment,
        chat: ChatFormat,
        *,
        limits: Limits,
        seed: int,
    ) -> None:
        self._engine = engine
        self._environment = environment
        self._chat = chat
        self._limits = limits
        self._seed = seed
        self.idle_seconds = 0.0  # in which the engine waited for replies

    def play(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        on_group: OnGroup = ignore,
    ) -> list[tuple[Rollout, ...]]:
        """Return for each prompt one completion per seed, in order.

        A turn's seed follows from the completion's and its number alone, so tokens do
        not depend on how episodes fall into rounds, as far as the engine's arithmetic
        allows.
        """
        groups = [
            [_Episode(index=index, prompt=prompt, seed=seed) for seed in own]
            for index, (prompt, own) in enumerate(zip(prompts, seeds, strict=True))
        ]
        left = [len(group) for group in groups]

        def end(episode: _Episode) -> None:
            left[episode.index] -= 1
            if left[episode.index] == 0:
                group = tuple(member.rollout() for member in groups[episode.index])
                on_group(episode.index, group)

        waiting = [episode for group in groups for episode in group]
        with closing(self._replies()) as replies:
            while self._goes_on(is_needed=bool(waiting or replies.open)):
                self._sample(waiting, params, on_turn=replies.ask)
                waiting = []
                for episode in self._collect(replies):
                    if episode.end_reason is None:
                        waiting.append(episode)
                    elif replies.has_ended(episode):
                        end(episode)
        return [tuple(member.rollout() for member in group) for group in groups]

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
        batches = _batches(episodes)
        requests = [
            Request(
                token_ids=batch[0].token_ids,
                seeds=tuple(_turn_seed(episode) for episode in batch),
                max_new_tokens=batch[0].room(self._limits),
            )
            for batch in batches
        ]
        taken: set[int] = set()

        def take(index: int, completions: tuple[Rollout, ...]) -> None:
            taken.add(index)
            for episode, completion in zip(batches[index], completions, strict=True):
                episode.last = completion
                turn = completion.turns[0]
                ended = completion.has_end_token
                episode.turns.append(replace(turn, has_end_token=ended))
                episode.said.append(self._chat.parse(completion.text))
                on_turn(episode)

        # all processes ask together
        if requests or isinstance(self._engine, JointEngine):
            sampled = self._engine.sample(requests, params, on_group=take)
            for index, completions in enumerate(sampled):
                if index not in taken:
                    take(index, completions)

    def _collect(self, replies: _Replies) -> Iterator[_Episode]:
        """Give episodes whose reply is there: at least one, if there is any."""
        begin, is_any = time.monotonic(), False
        while replies.open:
            for episode, answer in replies.take():
                self._go_on(episode, answer)
                yield episode
                is_any = True
            # Others wait for this process where all ask together.
            is_enough = is_any or isinstance(self._engine, JointEngine)
            if is_enough and time.monotonic() > begin + _GATHER_SECONDS:
                break
        if not self._environment.is_quick:
            self.idle_seconds += time.monotonic() - begin

    def _go_on(self, episode: _Episode, answer: _Answer) -> None:
        """Take up a reply: the episode ends, or the policy's turn comes next."""
        limits, last = self._limits, episode.last
        assert last is not None
        episode.seconds += answer.seconds
        if answer.error is not None:
            episode.error = str(answer.error)
            is_late = answer.error.is_timeout
            episode.end_reason = "timeout" if is_late else "failed"
            return
        reply = answer.reply
        if reply is None:  # of a turn that was cut off, which is not answered
            episode.end_reason = "length"
            return
        episode.turns[-1] = replace(episode.turns[-1], reward=reply.reward)
        if reply.episode_reward is not None:
            episode.reward = reply.episode_reward
        episode.metrics |= reply.metrics
        if episode.seconds > limits.seconds:
            episode.error = (
                f"The environment took {episode.seconds:.0f} s of at most "
                f"{limits.seconds:g} s. Raise environment.trajectory_seconds."
            )
            episode.end_reason = "timeout"
            return
        try:
            between = self._between(reply, last)
        except ValueError as error:  # the chat template cannot write it
            episode.error, episode.end_reason = str(error), "failed"
            return
        turn = Turn(
            author="environment",
            text=between.text,
            token_ids=between.ids,
            logprobs=None,
            calls=tuple(reply.calls) or _calls_of(reply.messages),
            seconds=answer.seconds,
            shown=between.shown,
        )
        ahead = replace(episode, turns=[*episode.turns, turn])
        if reply.is_done:
            made_calls = bool(episode.said[-1].calls)
            is_own = bool(self._environment.tools) and not made_calls
            # A limit may have come before.
            episode.end_reason = episode.end_reason or ("stop" if is_own else "done")
            if reply.messages and ahead.room(limits) >= 0:
                episode.turns = ahead.turns
        elif len(episode.said) == limits.turns:
            episode.end_reason = "turns"
        elif ahead.room(limits) < 1:
            episode.end_reason = "length"
        else:
            episode.turns = ahead.turns

    def _between(self, reply: Reply, last: Rollout) -> Between:
        messages = [self._cut(message) for message in reply.messages]
        return self._chat.between(
            messages, last_id=last.token_ids[-1], ended=last.has_end_token
        )

    def _cut(self, message: Message) -> Message:
        """Cut a message that is too long, and say so in it."""
        content, most = message["content"], self._limits.reply_tokens
        if len(content) <= most:  # a token has a character at least
            return message
        tokenizer = self._engine.tokenizer
        ids = tokenizer.encode(content, add_special_tokens=False)
        if len(ids) <= most:
            return message
        kept = decode_text(tokenizer, ids[:most])
        note = f"\n… {most:,} of {len(ids):,} tokens"
        return {**message, "content": kept + note}

    def _replies(self) -> _Replies:
        return _Replies(self._environment, limits=self._limits, seed=self._seed)


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The reply to a turn of the policy, or the failure in its place."""

    reply: Reply | None = None  # None: it was not asked for, or failed
    error: EnvironmentFailed | None = None
    seconds: float = 0.0


class _Replies:
    """Asks an environment: at once where it is quick, else in threads."""

    def __init__(self, environment: Environment, *, limits: Limits, seed: int) -> None:
        self._environment = environment
        self._limits = limits
        self._seed = seed
        self._threads: ThreadPoolExecutor | None = None
        self._owners: SimpleQueue[str] = SimpleQueue()
        self._there: list[tuple[_Episode, _Answer]] = []
        self._asked: dict[Future[_Answer], _Episode] = {}

    @property
    def open(self) -> int:
        """The number of episodes that were asked about and not yet taken."""
        return len(self._there) + len(self._asked)

    def ask(self, episode: _Episode) -> None:
        """Ask for the reply to an episode's last turn."""
        assert episode.last is not None
        if episode.last.end_reason == "length":
            self._there.append((episode, _Answer()))
        elif self._environment.is_quick:
            self._there.append((episode, self._answer(episode)))
        else:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(
                    _NUM_OWNERS, thread_name_prefix="episodes"
                )
                for number in range(_NUM_OWNERS):
                    self._owners.put(f"episodes {number}")
            future = self._threads.submit(self._answer_in_thread, episode)
            self._asked[future] = episode

    def take(self) -> list[tuple[_Episode, _Answer]]:
        """Return the replies that have come; without any, wait a moment for one."""
        answered, self._there = self._there, []
        timeout = 0 if answered else _GATHER_SECONDS
        done, _ = wait(self._asked, timeout=timeout, return_when=FIRST_COMPLETED)
        tick()
        # in the order of asking, not of ending
        for future in [future for future in self._asked if future in done]:
            answered.append((self._asked.pop(future), future.result()))
        return answered

    def has_ended(self, episode: _Episode) -> bool:
        """Return whether an episode that goes on no more has all it will have."""
        return True

    def close(self) -> None:
        if self._threads is not None:
            # An error does not wait for calls that go on.
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _answer_in_thread(self, episode: _Episode) -> _Answer:
        owner = self._owners.get()
        try:
            left = self._limits.seconds - episode.seconds
            with asking_for(owner), limited_to(left):
                return self._answer(episode)
        finally:
            self._owners.put(owner)

    def _answer(self, episode: _Episode) -> _Answer:
        row, begin = episode.prompt.row, time.monotonic()
        try:
            seed = environment_seed(self._seed, row)
            reply = self._environment.reply(row, seed, tuple(episode.said))
        except EnvironmentFailed as error:
            return _Answer(error=error, seconds=time.monotonic() - begin)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
            print_traceback(error)
            failed = EnvironmentFailed(f"{type(error).__name__}: {first_line(error)}")
            return _Answer(error=failed, seconds=time.monotonic() - begin)
        return _Answer(reply=reply, seconds=time.monotonic() - begin)


class TasksetPlayer(EpisodePlayer):
    """Plays episodes that a taskset drives."""

    def __init__(
        self,
        engine: RolloutEngine,
        taskset: Taskset,
        config: RunConfig,
        *,
        limits: Limits,
    ) -> None:
        self._chat_of = partial(ChatFormat, engine.tokenizer, config.data)
        super().__init__(
            engine, taskset, self._chat_of(), limits=limits, seed=config.seed
        )
        self._taskset = taskset

    def play(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        on_group: OnGroup = ignore,
    ) -> list[tuple[Rollout, ...]]:
        # all tasks of a taskset have the same tools
        tools = [tool for prompt in prompts[:1] for tool in tools_of(prompt.row)]
        self._chat = self._chat_of(tools=tools)
        return super().play(prompts, seeds, params, on_group=on_group)

    def _replies(self) -> _Replies:
        return _TasksetReplies(self._taskset, limits=self._limits)


class _TasksetReplies(_Replies):
    """Tells a taskset the policy's turns, and takes what it says to them."""

    def __init__(self, taskset: Taskset, *, limits: Limits) -> None:
        self._taskset = taskset
        self._limits = limits
        self._playing: dict[int, _Episode] = {}
        self._waited: set[int] = set()

    @property
    def open(self) -> int:
        return len(self._waited)

    def ask(self, episode: _Episode) -> None:
        assert episode.last is not None
        task: dict[str, Any] = {}
        if id(episode) not in self._playing:
            row = episode.prompt.row
            task = {"task": row.columns["task"], "tools": tools_of(row)}
            task["messages"] = episode.prompt.messages
            self._playing[id(episode)] = episode
        is_cut = episode.last.end_reason == "length"
        self._write(episode, **task, **turn_line(episode.said, is_cut=is_cut))
        if is_cut:
            episode.end_reason = "length"
            self._write(episode)

    def take(self) -> list[tuple[_Episode, _Answer]]:
        tick()
        try:
            line = self._taskset.read(timeout_seconds=_GATHER_SECONDS)
        except EnvironmentFailed as error:
            lost = [self._playing.pop(key) for key in sorted(self._waited)]
            self._waited.clear()
            return [(episode, _Answer(error=error)) for episode in lost]
        if line is None or line["episode"] not in self._waited:
            return []
        episode = self._playing[line["episode"]]
        self._waited.remove(line["episode"])
        if "end" in line:
            del self._playing[line["episode"]]
        try:
            reply = reply_of(line, episode.said[-1].calls)
        except EnvironmentFailed as error:
            return [(episode, _Answer(error=error, seconds=line["seconds"]))]
        return [(episode, _Answer(reply=reply, seconds=line["seconds"]))]

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
        self._waited.add(id(episode))
        left = max(self._limits.seconds - episode.seconds, 0.0)
        self._taskset.write(episode=id(episode), seconds=left, **fields)


def _calls_of(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Return the calls whose results an environment that read them itself gives."""
    if not all(message["role"] == "tool" for message in messages):
        return ()
    return tuple(
        ToolCall(name=message.get("name", ""), arguments={}, result=message["content"])
        for message in messages
    )


def _turn_seed(episode: _Episode) -> int:
    number = len(episode.said)
    return derive(episode.seed, "turn", number) if number else episode.seed


def _batches(episodes: Sequence[_Episode]) -> list[list[_Episode]]:
    """Put those that begin with the same prompt together; others are alone."""
    batches: list[list[_Episode]] = []
    for episode in episodes:
        is_first = not episode.said
        if is_first and batches and batches[-1][0].prompt is episode.prompt:
            batches[-1].append(episode)
        else:
            batches.append([episode])
    return batches
