"""Episodes: turns, limits, ends and seeds, of a scripted engine and environments."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.rollout.test_chat import _tokenizer
from tests.trainer.scored import run_config
from trainer.data import Prompt, Row
from trainer.output.journal import turn_records
from trainer.rollout.engine import Request, SamplingParams
from trainer.rollout.environments import (
    EnvironmentFailed,
    GuessEnvironment,
    Reply,
    Said,
)
from trainer.rollout.episodes import EpisodePlayer
from trainer.seeding import derive
from trainer.tokenizers import decode_text
from trainer.types import Rollout, ToolCall

PARAMS = SamplingParams(max_new_tokens=100, temperature=1.0)
LIMITS = {
    "max_turns": 5,
    "max_turn_tokens": 8,
    "max_tokens": 100,
    "max_reply_tokens": 20,
    "trajectory_seconds": 9.0,
}
EOS = 1


def config_of(*, policy_tokens=40, **limits):
    """A run of plain text with these limits of its episodes."""
    return run_config(
        data={"rows": "-", "chat_template": "none"},
        environment=LIMITS | limits,
        rollout={"max_new_tokens": policy_tokens},
        seed=3,
    )


class ScriptedEngine:
    """Writes for a prompt and seed what `write` says; "…" is a turn that is cut off."""

    def __init__(self, tokenizer, write: Callable[[str, int], str]) -> None:
        self.tokenizer = tokenizer
        self.rounds: list[list[Request]] = []
        self._write = write

    def sample(self, requests, params, *, on_group=lambda _index, _group: None):
        self.rounds.append(list(requests))
        groups = []
        for index, request in enumerate(requests):
            context = decode_text(self.tokenizer, request.token_ids)
            group = tuple(
                self._completion(self._write(context, seed), request, params)
                for seed in request.seeds
            )
            on_group(index, group)
            groups.append(group)
        return groups

    def _completion(self, text, request, params):
        is_cut = text.endswith("…")
        text = text.removesuffix("…")
        ids = tuple(self.tokenizer.encode(text, add_special_tokens=False))
        ids = ids if is_cut else (*ids, EOS)
        limit = params.limit(request.max_new_tokens)
        assert len(ids) <= limit
        return Rollout.of_one_turn(
            text=text,
            token_ids=ids,
            logprobs=(-0.5,) * len(ids),
            end_reason="length" if is_cut else "stop",
        )


@dataclass
class Scripted:
    """Answers with what `answer` returns or raises."""

    answer: Callable[[Row, int, Sequence[Said]], Reply]
    is_quick: bool = True
    tools: tuple = ()
    asked: list = field(default_factory=list)

    def open(self, row, seed):
        return ()

    def reply(self, row, seed, said):
        self.asked.append((row.index, seed, [turn.text for turn in said]))
        return self.answer(row, seed, said)


def user(text, **fields):
    return Reply(messages=({"role": "user", "content": text},), **fields)


@pytest.fixture
def tokenizer(policy):
    return policy.tokenizer


@pytest.fixture
def play(tokenizer):
    def play(write, environment, *, texts=("a",), seeds=(7,), limits=None, **options):
        engine = ScriptedEngine(tokenizer, write)
        player = EpisodePlayer(engine, environment, config_of(**limits or {}))
        prompts = [
            Prompt(
                row=Row(index=n, prompt=text, answer=None, columns={}),
                text=text,
                token_ids=tuple(tokenizer.encode(text, add_special_tokens=False)),
            )
            for n, text in enumerate(texts)
        ]
        groups = player.play(prompts, [seeds] * len(prompts), PARAMS, **options)
        return groups, engine, player

    return play


def texts_of(rollout):
    return [(turn.author, turn.text) for turn in rollout.turns]


def test_turns_follow_each_other_and_nothing_is_encoded_again(play, tokenizer):
    environment = Scripted(lambda _row, _seed, said: user(f">{len(said)}"))
    limits = {"max_turns": 3}

    [[episode]], engine, _ = play(
        lambda context, _: "b" if len(context) == 1 else "c", environment, limits=limits
    )

    assert texts_of(episode) == [
        ("policy", "b"),
        ("environment", ">1"),
        ("policy", "c"),
        ("environment", ">2"),
        ("policy", "c"),
    ]
    assert (episode.end_reason, episode.is_episode) == ("turns", True)
    prompt = tuple(tokenizer.encode("a"))
    for number, [request] in enumerate(engine.rounds):
        before = [ids for turn in episode.turns[: 2 * number] for ids in turn.token_ids]
        assert request.token_ids == (*prompt, *before)
    assert episode.loss_mask == (True, True, False, False) * 2 + (True, True)
    assert episode.turn_ends == (2, 6, 10)
    assert episode.end_tokens == (1, 5, 9)
    assert episode.policy_text == "b\nc\nc"


def test_a_first_round_shares_prompts_and_later_ones_have_seeds_of_their_own(play):
    environment = Scripted(lambda _row, _seed, said: user("+", is_done=len(said) == 3))

    _, engine, _ = play(
        lambda _, seed: str(seed % 10), environment, texts=("a", "b"), seeds=(11, 12)
    )

    first, second, third = engine.rounds
    assert [request.seeds for request in first] == [(11, 12), (11, 12)]
    for number, round_ in enumerate((second, third), start=1):
        assert [request.seeds for request in round_] == [
            (derive(seed, "turn", number),) for _ in "ab" for seed in (11, 12)
        ]


def test_members_of_a_group_play_the_same_game_and_rows_different_ones(play):
    environment = Scripted(lambda _row, _seed, _said: Reply(is_done=True))

    play(lambda _context, _seed: "b", environment, texts=("a", "b"), seeds=(1, 2))

    seeds = {(row, seed) for row, seed, _ in environment.asked}
    assert seeds == {(n, derive(3, "environment", n)) for n in (0, 1)}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (user(".", is_done=True, reward=1.0, episode_reward=0.5), "done"),
        (user("-", reward=0.25), "turns"),
    ],
)
def test_rewards_stand_at_the_turn_and_the_episode(play, reply, reason):
    limits = {"max_turns": 1}

    [[episode]], _, _ = play(lambda *_: "b", Scripted(lambda *_: reply), limits=limits)

    assert episode.end_reason == reason
    assert episode.turns[0].reward == reply.reward
    assert episode.reward == reply.episode_reward
    # a reply that no one answers stands there only where it ended the episode
    assert len(episode.turns) == (2 if reason == "done" else 1)


def test_a_turn_without_a_call_ends_an_episode_with_tools_as_its_own(play):
    environment = Scripted(lambda *_: Reply(is_done=True), tools=({"name": "add"},))

    [[episode]], _, _ = play(lambda *_: "b", environment)

    assert episode.end_reason == "stop"
    assert episode.has_end_token


def test_a_turn_that_is_cut_off_is_not_answered(play):
    environment = Scripted(lambda *_: user("+"))

    [[episode]], _, _ = play(lambda *_: "bcd…", environment)

    assert (episode.end_reason, environment.asked) == ("length", [])
    assert episode.reward is None


@pytest.mark.parametrize(
    ("limits", "lengths"),
    [
        # of 40 policy tokens each turn takes 4
        ({"policy_tokens": 9}, [8, 5, 1]),
        # a prompt of 1 token, turns of 4 and replies of 2
        ({"max_tokens": 14}, [8, 7, 1]),
        ({"max_tokens": 13}, [8, 6]),
    ],
)
def test_a_turn_has_what_is_left_of_each_limit(play, limits, lengths):
    [[episode]], engine, _ = play(
        lambda context, _: "bcd" if len(context) < 13 else "b…",
        Scripted(lambda *_: user("++")),
        limits=limits,
    )

    assert [request.max_new_tokens for [request] in engine.rounds] == lengths
    assert episode.end_reason == "length"
    assert 1 + episode.num_tokens <= limits.get("max_tokens", 100)
    assert episode.num_policy_tokens <= limits.get("policy_tokens", 40)


def test_a_long_reply_is_cut_and_says_so(play):
    environment = Scripted(
        lambda _row, _seed, said: user("0" * 50, is_done=len(said) == 2)
    )

    [[episode]], _, _ = play(
        lambda *_: "b", environment, limits={"max_reply_tokens": 10}
    )

    [reply, _] = [turn for turn in episode.turns if turn.author == "environment"]
    assert reply.text.startswith("0" * 10 + "\n")
    assert "10 of 50" in reply.text


def test_a_reply_whose_characters_have_several_tokens_is_cut_by_tokens():
    tokenizer = _tokenizer(None)
    engine = ScriptedEngine(tokenizer, lambda *_: "b")
    environment = Scripted(lambda *_: user("\N{COMET}" * 15, is_done=True))
    row = Row(index=0, prompt="a", answer=None, columns={})
    prompt = Prompt(row=row, text="a", token_ids=(2,))

    [[episode]] = EpisodePlayer(engine, environment, config_of()).play(
        [prompt], [(7,)], PARAMS
    )

    assert "20 of 45" in episode.turns[1].text


def failing(text, **options):
    def answer(row, _seed, _said):
        if row.index == 0:
            raise EnvironmentFailed(text, **options)
        return user("+", is_done=True, episode_reward=1.0)

    return answer


@pytest.mark.parametrize("is_quick", [True, False])
@pytest.mark.parametrize(
    ("is_timeout", "reason"), [(True, "timeout"), (False, "failed")]
)
def test_a_failed_reply_ends_that_episode_alone(play, is_quick, is_timeout, reason):
    environment = Scripted(failing("no disk", is_timeout=is_timeout), is_quick=is_quick)

    groups, _, _ = play(lambda *_: "b", environment, texts=("a", "b"), seeds=(1, 2))

    for episode in groups[0]:
        assert (episode.end_reason, episode.error) == (reason, "no disk")
        assert episode.turns[-1].author == "policy"
    assert [episode.end_reason for episode in groups[1]] == ["done", "done"]


@pytest.mark.parametrize("is_quick", [True, False])
def test_any_error_of_an_environment_fails_its_episode_alone(play, is_quick):
    def answer(row, _seed, _said):
        return user("+", is_done=True) if row.index else {}["gone"]

    groups, _, _ = play(
        lambda *_: "b", Scripted(answer, is_quick=is_quick), texts=("a", "b")
    )

    [[failed], [played]] = groups
    assert (failed.end_reason, failed.error) == ("failed", "KeyError: 'gone'")
    assert played.end_reason == "done"


def test_an_error_of_the_engine_waits_for_no_reply(play):
    gate = threading.Event()

    def answer(_row, _seed, said):
        gate.wait(20)
        return user("+", is_done=True)

    def write(context, seed):
        if seed == 2:
            raise RuntimeError("no memory")
        return "b"

    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="no memory"):
        play(
            write,
            Scripted(answer, is_quick=False),
            texts=("a", "b"),
            seeds=(1, 2),
        )
    gate.set()

    assert time.monotonic() - begin < 10


def test_tool_messages_of_an_environment_that_reads_calls_itself_keep_their_name(play):
    reply = Reply(messages=({"role": "tool", "name": "look", "content": "a wall"},))
    environment = Scripted(lambda _row, _seed, said: reply)

    [[episode]], _, _ = play(lambda *_: "b", environment, limits={"max_turns": 2})

    [record] = [r for r in turn_records(episode) if r.author == "tool"]
    assert (record.name, record.calls[0].result) == ("look", "a wall")


def test_an_episode_whose_environment_takes_too_long_is_stopped(play):
    def answer(_row, _seed, said):
        if len(said) == 2:
            time.sleep(0.6)
        return user("+")

    [[episode]], _, _ = play(
        lambda *_: "b", Scripted(answer), limits={"trajectory_seconds": 0.5}
    )

    assert episode.end_reason == "timeout"
    assert "0.5 s" in episode.error
    assert len(episode.policy_turns) == 2


def test_fast_episodes_go_on_while_a_slow_environment_answers(play):
    gate = threading.Event()
    rounds = count()

    def answer(row, _seed, said):
        if row.index == 0 and len(said) == 1:
            assert gate.wait(20)
        if row.index == 1 and len(said) == 4:
            gate.set()  # three rounds later: no one waited for the slow one
        return user("+", is_done=len(said) == 4)

    groups, engine, player = play(
        lambda *_: f"{next(rounds) % 10}",
        Scripted(answer, is_quick=False),
        texts=("a", "b"),
    )

    assert [len(round_) for round_ in engine.rounds[:4]] == [2, 1, 1, 1]
    assert all(len(episode.policy_turns) == 4 for [episode] in groups)
    assert player.idle_seconds > 0


def test_threads_and_rounds_change_no_token(play):
    """The turns of slow replies fall into other rounds than those of quick ones."""

    def answer(row, seed, said):
        if not environment.is_quick:
            time.sleep((seed % 7) / 100)
        return user("+-"[len(said) % 2], is_done=len(said) == 3 + row.index % 2)

    results = []
    for is_quick in (True, False):
        environment = Scripted(answer, is_quick=is_quick)
        groups, _, _ = play(
            lambda context, seed: f"{(seed + len(context)) % 10}",
            environment,
            texts=("a", "b", "c"),
            seeds=(5, 6, 7),
        )
        results.append([[(e.token_ids, e.end_reason) for e in g] for g in groups])

    assert results[0] == results[1]


def test_groups_are_reported_once_all_their_episodes_have_ended(play):
    reported = []
    environment = Scripted(
        lambda row, _seed, said: user("+", is_done=len(said) > row.index)
    )

    groups, _, _ = play(
        lambda *_: "b",
        environment,
        texts=("a", "b"),
        seeds=(1, 2),
        on_group=lambda index, group: reported.append((index, group)),
    )

    assert reported == [(0, groups[0]), (1, groups[1])]


def test_metrics_and_calls_of_replies_are_kept(play):
    call = ToolCall(name="add", arguments={"a": 1}, result="2", seconds=0.5)
    replies = {
        1: Reply(
            messages=({"role": "tool", "name": "add", "content": "2"},),
            calls=(call,),
            metrics={"hits": 1.0, "tries": 1.0},
        ),
        2: Reply(is_done=True, metrics={"tries": 2.0}),
    }
    environment = Scripted(lambda _row, _seed, said: replies[len(said)])

    [[episode]], _, _ = play(lambda *_: "b", environment)

    assert episode.metrics == {"hits": 1.0, "tries": 2.0}
    assert episode.turns[1].calls == (call,)
    assert episode.turns[1].messages == [(0, 1, call)]


# The game


def replies_of(target, guesses, prompt="5 24 ?"):
    row = Row(index=0, prompt=prompt, answer=target, columns={})
    said = [Said(text=guess, content=guess) for guess in guesses]
    game = GuessEnvironment()
    return [game.reply(row, 9, said[: n + 1]) for n in range(len(said))]


def test_guess_says_higher_lower_and_hit():
    replies = replies_of("17", ["9", "20", "8", "17"])

    assert [reply.messages[0]["content"] for reply in replies] == ["+", "-", "+", "."]
    # of 20 numbers 15 are left, then 10, still 10, and none
    rewards = [reply.reward for reply in replies]
    assert rewards == pytest.approx([5 / 20, 5 / 15, 0.0, 1.0])
    assert [reply.episode_reward for reply in replies] == [0.0, 0.0, 0.0, 1.0]
    assert [reply.is_done for reply in replies] == [False, False, False, True]


@pytest.mark.parametrize("text", ["", "x", "1 2", "٣", "-4", "9" * 5_000, "1.0"])
def test_guess_ends_with_what_is_no_number(text):
    [reply] = replies_of("17", [text])

    assert reply.messages[0]["content"] == "!"
    assert (reply.is_done, reply.reward, reply.episode_reward) == (True, 0.0, 0.0)


def test_guess_draws_a_number_by_the_seed_where_the_row_has_none():
    row = Row(index=0, prompt="5 7 ?", answer=None, columns={})
    game = GuessEnvironment()
    guesses = [Said(text=f"{n}", content=f"{n}") for n in (5, 6, 7)]

    hits = [
        [game.reply(row, seed, [guess]).episode_reward for guess in guesses]
        for seed in range(6)
    ]

    assert hits == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]] * 2


@given(st.text(max_size=30) | st.integers(0, 60).map(str))
def test_guess_answers_whatever_is_said(text):
    [reply] = replies_of("17", [text])

    assert reply.messages[0]["content"] in ("+", "-", ".", "!")


def test_guess_draws_where_the_answer_is_no_number_of_the_game():
    for answer in ("9" * 5_000, "3", "x", ""):
        row = Row(index=0, prompt="5 7 ?", answer=answer, columns={})
        reply = GuessEnvironment().reply(row, 0, [Said(text="5", content="5")])
        assert reply.episode_reward == 1.0


@pytest.mark.parametrize("prompt", ["", "5", "24 5 ?", "a b", ()])
def test_a_row_that_is_no_game_is_refused(prompt):
    row = Row(index=3, prompt=prompt, answer=None, columns={})

    with pytest.raises(EnvironmentFailed, match=r"row 3 \(line 4\)"):
        GuessEnvironment().open(row, 0)


# Engines that processes ask together


class JointScripted(ScriptedEngine):
    """One process's part: each question waits for that of the other."""

    def __init__(self, tokenizer, write, shared, rank):
        super().__init__(tokenizer, write)
        self._shared, self._rank = shared, rank

    def is_needed_by_any(self, *, own):
        self._shared["needs"][self._rank] = own
        self._shared["barrier"].wait()
        is_needed = any(self._shared["needs"])
        self._shared["barrier"].wait()
        return is_needed

    def sample(self, requests, params, **options):
        self._shared["barrier"].wait()
        return super().sample(requests, params, **options)


def test_processes_ask_together_until_none_has_an_episode_left(tokenizer):
    shared = {"barrier": threading.Barrier(2, timeout=20), "needs": [False, False]}
    engines = [
        JointScripted(tokenizer, lambda *_: "b", shared, rank) for rank in range(2)
    ]
    results = [None, None]

    def play(rank, num_turns):
        environment = Scripted(
            lambda _row, _seed, said: user("+", is_done=len(said) == num_turns)
        )
        player = EpisodePlayer(engines[rank], environment, config_of())
        row = Row(index=0, prompt="a", answer=None, columns={})
        prompt = Prompt(row=row, text="a", token_ids=(2,))
        results[rank] = player.play([prompt], [(1,)], PARAMS)

    threads = [
        threading.Thread(target=play, args=pair, daemon=True)
        for pair in ((0, 1), (1, 4))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert [len(result[0][0].policy_turns) for result in results] == [1, 4]
    assert [[len(r) for r in engine.rounds] for engine in engines] == [
        [1, 0, 0, 0],
        [1, 1, 1, 1],
    ]


def test_a_process_with_a_slow_reply_stalls_no_other(tokenizer):
    shared = {"barrier": threading.Barrier(2, timeout=20), "needs": [False, False]}
    engines = [
        JointScripted(tokenizer, lambda *_: "b", shared, rank) for rank in range(2)
    ]
    gate, results = threading.Event(), [None, None]

    def answer(rank):
        def reply(_row, _seed, said):
            if rank == 0:
                assert gate.wait(20)
            elif len(said) == 3:
                gate.set()  # two rounds later
            return user("+", is_done=len(said) == (1 if rank == 0 else 3))

        return reply

    def play(rank):
        environment = Scripted(answer(rank), is_quick=False)
        player = EpisodePlayer(engines[rank], environment, config_of())
        row = Row(index=0, prompt="a", answer=None, columns={})
        prompt = Prompt(row=row, text="a", token_ids=(2,))
        results[rank] = player.play([prompt], [(1,)], PARAMS)

    threads = [threading.Thread(target=play, args=(r,), daemon=True) for r in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)

    assert [len(result[0][0].policy_turns) for result in results] == [1, 3]
