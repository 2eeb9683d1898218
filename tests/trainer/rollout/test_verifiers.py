"""Episodes that a library drives: of a process that answers as a test has it."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.trainer.rollout.test_chat import ADD, _templates, _tokenizer
from tests.trainer.rollout.test_episodes import (
    LIMITS,
    PARAMS,
    ScriptedEngine,
    config_of,
    texts_of,
)
from tests.trainer.scored import run_config
from tests.trainer.tiny import config_tree
from trainer.__main__ import main
from trainer.commands import preview
from trainer.config import EnvironmentConfig, RunConfig
from trainer.data import Prompt, PromptRenderer, Row
from trainer.output.metrics import episode_metrics
from trainer.rollout import verifiers
from trainer.rollout.environments import EnvironmentFailed, Said
from trainer.rollout.episodes import EpisodePlayer, make_environment
from trainer.rollout.verifiers import Taskset, reply_of, turn_line
from trainer.seeding import derive
from trainer.types import REWRITTEN, ToolCall

# Answers the nth line of an episode with the lines that its task has for it.
PROCESS = """
import json, os, sys, time
taskset, options = sys.argv[-2:]
log = open(json.loads(options)["log"], "a")
plays = {}
for text in sys.stdin:
    log.write(text)
    log.flush()
    line = json.loads(text)
    number = line.get("episode")
    for n in range(line.get("limit", 0)):
        print(json.dumps({"task": {"n": n}} | json.loads(options)["first"]))
    if "limit" in line:
        print(json.dumps({"schema": {"title": taskset}}), flush=True)
    if "task" in line:
        plays[number] = list(line["task"]["script"])
    for answer in plays[number].pop(0) if plays.get(number) else ():
        if answer == "die":
            sys.exit("no more memory")
        if answer == "sleep":
            time.sleep(600)
        print(json.dumps({"episode": number, "seconds": 0.5} | answer), flush=True)
"""
AGAIN = {"messages": [{"role": "user", "content": "1?"}]}
DONE = {"end": "done", "reward": 0.75, "metrics": {"length": 2.0, "none": None}}


def stop(text, end="failed"):
    return {"end": end, "error": text}


@pytest.fixture
def taskset(tmp_path, monkeypatch):
    program, log = tmp_path / "process.py", tmp_path / "log.jsonl"
    program.write_text(PROCESS)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv(verifiers.PYTHON, str(python))
    config = EnvironmentConfig(
        kind="verifiers",
        taskset="words",
        options={"log": str(log)},
        trajectory_seconds=LIMITS["trajectory_seconds"],
    )
    taskset = Taskset(config)
    taskset.log = log
    yield taskset
    taskset.close()


@pytest.fixture
def play(policy, taskset):
    def play(write, *scripts, seeds=(7,), limits=None):
        tokenizer = policy.tokenizer
        engine = ScriptedEngine(tokenizer, write)
        player = EpisodePlayer(engine, taskset, config_of(**limits or {}))
        prompts = [
            Prompt(
                row=Row(
                    index=n,
                    prompt="a?",
                    answer=None,
                    columns={"task": {"script": script}},
                ),
                text="a?",
                token_ids=tuple(tokenizer.encode("a?", add_special_tokens=False)),
                messages=({"role": "user", "content": "a?"},),
            )
            for n, script in enumerate(scripts)
        ]
        return player.play(prompts, [seeds] * len(scripts), PARAMS), engine

    return play


def lines_of(taskset):
    return [json.loads(line) for line in taskset.log.read_text().splitlines()]


def test_turns_are_sampled_from_ids_with_seeds_of_their_own(play, taskset, policy):
    groups, engine = play(
        lambda context, _: "b" if len(context) == 2 else "c",
        [[AGAIN], [AGAIN], [DONE]],
        seeds=(11, 12),
    )

    for episode in groups[0]:
        assert texts_of(episode) == [
            ("policy", "b"),
            ("environment", "1?"),
            ("policy", "c"),
            ("environment", "1?"),
            ("policy", "c"),
        ]
        assert (episode.end_reason, episode.reward) == ("done", 0.75)
        assert episode.metrics == {"length": 2.0}
        assert episode.turns[1].seconds == 0.5
    # the first round shares its prompt; what was sampled is never encoded again
    assert [request.seeds for request in engine.rounds[0]] == [(11, 12)]
    asked = [request for round_ in engine.rounds[1:] for request in round_]
    assert sorted(request.seeds for request in asked) == sorted(
        (derive(seed, "turn", number),) for seed in (11, 12) for number in (1, 2)
    )
    prompt = tuple(policy.tokenizer.encode("a?"))
    before = [t for turn in groups[0][0].turns[:4] for t in turn.token_ids]
    assert asked[-1].token_ids == (*prompt, *before)
    first, *later = [
        line for line in lines_of(taskset) if line["episode"] == id_of(taskset)
    ]
    assert first["messages"] == [{"role": "user", "content": "a?"}]
    assert first["turn"] == {"role": "assistant", "content": "b"}
    assert [line["turn"]["content"] for line in later] == ["c", "c"]
    assert [line["seconds"] for line in (first, *later)] == [9.0, 8.5, 8.0]


def id_of(taskset):
    return lines_of(taskset)[0]["episode"]


@pytest.mark.parametrize(
    ("text", "limits", "reason"),
    [
        ("b…", {}, "length"),
        ("b", {"max_turns": 1}, "turns"),
        ("b", {"max_tokens": 6}, "length"),
        ("b", {"trajectory_seconds": 0.4}, "timeout"),
    ],
)
def test_a_limit_ends_an_episode_which_is_scored_all_the_same(
    play, taskset, text, limits, reason
):
    script = [[], [DONE]] if text == "b…" else [[AGAIN], [DONE]]

    [[episode]], _ = play(lambda *_: text, script, limits=limits)

    assert (episode.end_reason, episode.reward) == (reason, 0.75)
    assert texts_of(episode) == [("policy", "b")]
    reported, over = lines_of(taskset)
    assert reported["finish"] == ("length" if text == "b…" else "stop")
    assert "turn" not in over


def test_tools_of_rows_are_called_as_the_chat_template_has_them(taskset):
    tokenizer = _tokenizer(_templates()["qwen3"])
    config = run_config(
        data={"rows": "-", "max_prompt_tokens": 1_000},
        environment=LIMITS
        | {"max_tokens": 2_000, "max_turn_tokens": 200, "max_reply_tokens": 99},
        rollout={"max_new_tokens": 400},
    )
    result = {"messages": [{"role": "tool", "name": "add", "content": "3"}]}
    columns = {"task": {"script": [[result], [DONE]]}, "tools": [ADD]}
    row = Row(index=0, prompt="1+2", answer=None, columns=columns)
    prompt = PromptRenderer(tokenizer, config.data).render(row)
    call = '<tool_call>\n{"name": "add", "arguments": {"unit": "a"}}\n</tool_call>'
    engine = ScriptedEngine(
        tokenizer, lambda context, _: "b" if "</tool_response>" in context else call
    )
    player = EpisodePlayer(engine, taskset, config)

    [[episode]] = player.play([prompt], [(7,)], replace(PARAMS, max_new_tokens=400))

    assert [turn.author for turn in episode.turns] == [
        "policy",
        "environment",
        "policy",
    ]
    [answered] = episode.turns[1].calls
    assert (answered.name, answered.arguments, answered.result) == (
        "add",
        {"unit": "a"},
        "3",
    )
    first, second = lines_of(taskset)
    assert first["tools"] == [ADD]
    [function] = [call["function"] for call in first["turn"]["tool_calls"]]
    assert function == {"name": "add", "arguments": '{"unit": "a"}'}
    assert second["turn"] == {"role": "assistant", "content": "b"}


@pytest.mark.parametrize("end", ["failed", "timeout"])
def test_a_failed_episode_has_a_reason_and_no_reward(play, end):
    groups, _ = play(lambda *_: "b", [[stop("no disk", end)]], [[DONE]])

    assert [group[0].end_reason for group in groups] == [end, "done"]
    assert (groups[0][0].error, groups[0][0].reward) == ("no disk", None)


def test_an_episode_whose_conversation_is_rewritten_is_counted(play):
    [[lost], [other]], _ = play(
        lambda *_: "b", [[{"end": "rewritten"}]], [[stop("no disk")]]
    )

    assert [lost.end_reason, other.end_reason] == ["failed", "failed"]
    assert (lost.error, lost.reward) == (REWRITTEN, None)
    group = SimpleNamespace(completions=[lost, other])
    assert episode_metrics([group])["episode/frac_rewritten"] == 0.5


def test_a_taskset_that_always_fails_leaves_no_score(play):
    groups, _ = play(lambda *_: "b", [[stop("no disk")]], [[stop("no disk")]])

    assert [group[0].end_reason for group in groups] == ["failed", "failed"]
    assert {group[0].error for group in groups} == {"no disk"}


def test_a_process_is_started_again_once(play, taskset):
    groups, _ = play(lambda *_: "b", [[DONE]], [["die"]])

    assert [group[0].end_reason for group in groups] == ["done", "failed"]
    assert "no more memory" in groups[1][0].error
    groups, _ = play(lambda *_: "b", [[DONE]])
    assert groups[0][0].end_reason == "done"
    with pytest.raises(ValueError, match="no more memory"):
        play(lambda *_: "b", [["die"]])


def test_a_process_that_hangs_is_one_that_died(play, monkeypatch):
    monkeypatch.setattr(verifiers, "_GRACE_SECONDS", 0.2 - LIMITS["trajectory_seconds"])

    groups, _ = play(lambda *_: "b", [[DONE]], [["sleep"]])

    assert [group[0].end_reason for group in groups] == ["done", "failed"]


def test_an_interrupted_step_leaves_no_episodes_behind(play, taskset):
    def write(context, _seed):
        if len(context) > 2:
            raise KeyboardInterrupt
        return "b"

    with pytest.raises(KeyboardInterrupt):
        play(write, [[AGAIN]])

    groups, _ = play(lambda *_: "b", [[DONE]])
    assert groups[0][0].end_reason == "done"


def test_a_missing_library_is_reported_before_a_run(monkeypatch, tmp_path):
    monkeypatch.setenv(verifiers.PYTHON, str(tmp_path / "python"))
    config = EnvironmentConfig(kind="verifiers", taskset="words", max_tokens=9)

    with pytest.raises(ValueError, match="make environments"):
        make_environment(config)


def test_a_row_without_a_task_is_refused(taskset):
    row = Row(index=4, prompt="a", answer=None, columns={"task": "b"})

    with pytest.raises(EnvironmentFailed, match="line 5"):
        taskset.open(row, 0)
    assert taskset.open(replace(row, columns={"task": {}}), 0) == ()


def test_several_processes_are_refused(model_folder, rows_path):
    environment = {"kind": "verifiers", "taskset": "words", "max_tokens": 600}
    tree = config_tree(model_folder, rows_path, environment=environment)
    RunConfig.model_validate(tree)

    with pytest.raises(ValueError, match="one training process"):
        RunConfig.model_validate(tree | {"distributed": {"num_processes": 2}})
    with pytest.raises(ValueError, match=r"environment\.taskset"):
        RunConfig.model_validate(tree | {"environment": {"kind": "verifiers"}})


def test_calls_have_ids_and_are_answered_with_results():
    calls = (
        ToolCall(name="add", arguments={"a": 1}),
        ToolCall(name="add", arguments="{a"),
    )
    said = [Said(text="…", content="I add.", calls=calls)]
    results = [
        {"role": "tool", "name": "add", "content": content}
        for content in ("2", "error")
    ]

    line = turn_line(said, is_cut=False)
    reply = reply_of({"messages": results, "seconds": 1.0}, calls)

    functions = [call["function"] for call in line["turn"]["tool_calls"]]
    assert [f["arguments"] for f in functions] == ['{"a": 1}', "{a"]
    assert len({call["id"] for call in line["turn"]["tool_calls"]}) == 2
    assert line["finish"] == "tool_calls"
    assert [call.result for call in reply.calls] == ["2", "error"]
    assert [turn["content"] for turn in reply.messages] == ["2", "error"]
    cut = turn_line(said, is_cut=True)
    assert (cut["finish"], "tool_calls" in cut["turn"]) == ("length", False)


def test_tasks_are_written_as_rows(taskset, capsys):
    asked = {"messages": [{"role": "user", "content": "a?"}], "tools": [{"n": 1}]}

    def tasks(first, *arguments):
        options = json.dumps({"log": str(taskset.log), "first": first})
        return main(["tasks", "words", "--options", options, *arguments])

    assert tasks(asked, "--limit", "2") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["columns"] for row in rows] == [
        {"task": {"n": n}, "tools": [{"n": 1}]} for n in (0, 1)
    ]
    assert rows[0]["prompt"] == asked["messages"]
    assert tasks(asked, "--schema") == 0
    assert json.loads(capsys.readouterr().out) == {"title": "words"}
    assert tasks({"error": "no word"}) == 2
    assert "no word" in capsys.readouterr().err
    assert tasks({"end": "done", "reward": 1.0, "metrics": {}}) == 2
    assert "asks nothing" in capsys.readouterr().err


def test_a_preview_of_a_task_reads_the_tools_of_its_row(taskset, monkeypatch):
    monkeypatch.setattr(preview, "end_ids", lambda _tokenizer: {1})
    question = {
        "index": 0,
        "row": {"prompt": "1+2", "answer": None, "columns": {"task": {}}},
        "data": {},
        "environment": {"kind": "verifiers", "taskset": "words"},
        "seed": 0,
    }
    tokenizer = _tokenizer(_templates()["qwen2_5_vl"])  # writes no calls

    assert preview.answer(tokenizer, question)["refusals"] == []
    question["row"]["columns"]["tools"] = [ADD]
    assert len(preview.answer(tokenizer, question)["refusals"]) == 1
