"""Episodes of a taskset that the library itself plays: its traps, and a short run."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.environment import child_environment
from tests.trainer.tiny import ROOT, config_tree, only, read_events, write_config
from trainer.config import EnvironmentConfig
from trainer.rollout import verifiers
from trainer.rollout.environments import Said
from trainer.rollout.verifiers import Taskset, list_tasks, turn_line

PYTHON = Path(os.environ.get(verifiers.PYTHON) or verifiers._MADE)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs `make environments`"),
]
CALL = [
    {
        "id": "call00000",
        "type": "function",
        "function": {"name": "calculator_add", "arguments": '{"a": 1, "b": 2}'},
    }
]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python with the library and the tests' taskset, which has no uv."""
    folder = tmp_path_factory.mktemp("python")
    uv = folder / "uv"
    uv.write_text(f"#!/bin/sh\ntouch {folder}/uv-started\nexit 1\n")
    uv.chmod(0o755)
    python = folder / "python"
    tasksets = Path(__file__).parent / "tasksets"
    python.write_text(
        f"#!/bin/sh\nexport PATH={folder}:$PATH\n"
        f'export PYTHONPATH="$PYTHONPATH:{tasksets}"\nexec {PYTHON} "$@"\n'
    )
    python.chmod(0o755)
    return python


@pytest.fixture(scope="module")
def open_words(python):
    made = []

    def open_words(**options):
        config = EnvironmentConfig(
            kind="verifiers", taskset="cohort_words", options=options
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(verifiers.PYTHON, str(python))
            taskset = Taskset(config)
        made.append(taskset)
        return taskset

    yield open_words
    for taskset in made:
        taskset.close()


@pytest.fixture(scope="module")
def taskset(open_words):
    return open_words()


def play(taskset, *turns, task, tools=(), seconds=60.0, **changes):
    """The lines of an episode in which the policy says these turns."""
    fields = {
        "task": task,
        "messages": [{"role": "user", "content": task["prompt"]}],
        "tools": tools,
    } | changes
    lines = []
    for turn in turns:
        said = [Said(text="", content=turn if isinstance(turn, str) else "")]
        line = turn_line(said, is_cut=False)
        if not isinstance(turn, str):
            line["turn"]["tool_calls"] = turn
        taskset.write(episode=1, seconds=seconds, **fields, **line)
        fields = {}
        lines.append(read(taskset))
        if "end" in lines[-1]:
            break
    return lines


def read(taskset):
    while (line := taskset.read(timeout_seconds=1.0)) is None:
        pass
    return line


WORD = {"idx": 0, "prompt": "a?", "word": "a"}


def test_tasks_become_rows_and_are_played_by_them(taskset, python):
    *rows, last = list_tasks(taskset, 2)

    assert [row["columns"]["task"]["word"] for row in rows] == ["a", "b"]
    assert rows[0]["prompt"] == [{"role": "user", "content": "a?"}]
    assert {"words", "has_tools"} <= last["properties"].keys()

    asked, done = play(taskset, "b", "a", task=rows[0]["columns"]["task"])

    assert asked["messages"] == [{"role": "user", "content": "1?"}]
    # 0.5 × 1 + 2 × 0.25, and each part by its name
    assert (done["end"], done["reward"]) == ("done", 1.0)
    assert done["metrics"] == {"says_word": 1.0, "length": 0.25, "num_said": 2.0}
    assert not (python.parent / "uv-started").exists()


def test_agents_play_on_this_machine_by_our_own_harness(python):
    code = (
        "import sys, trainer.rollout.verifiers_process as process\n"
        "sys.modules[process.HARNESS] = process\n"
        "options = {'words': ['x'], 'id': 'other', **RUNTIME}\n"
        "config = process.config_of('cohort_words', options)\n"
        "print(config.model_dump_json())\n"
    )
    for runtime, kind in (
        ({}, "subprocess"),
        ({"runtime": {"type": "docker"}}, "docker"),
    ):
        done = subprocess.run(
            [python, "-c", code.replace("RUNTIME", repr(runtime))],
            env=child_environment() | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        config = json.loads(done.stdout)
        assert config["taskset"]["words"] == ["x"]
        assert config["taskset"]["id"] == "cohort_words"
        for agent in ("speaker", "other"):
            assert config[agent]["runtime"]["type"] == kind
            assert config[agent]["harness"]["id"] == "cohort_chat"


def test_its_servers_listen_here_and_want_a_token(taskset):
    play(taskset, "a", task=WORD)
    process = psutil.Process(taskset._child.pid)
    listening = [
        connection.laddr
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]

    assert listening
    for address in listening:
        assert address.ip == "127.0.0.1"
        url = f"http://127.0.0.1:{address.port}/v1/chat/completions"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url, data=b"{}")
        assert refused.value.code == 401
        refused.value.close()


@pytest.mark.parametrize(
    ("trouble", "end"),
    [
        ("raises", "failed"),  # an error of the episode, beside its trace
        ("raises at the start", "failed"),  # before any turn
        ("hangs", "timeout"),
        ("two", "rewritten"),  # another agent asks the policy
        ("rewrites", "rewritten"),  # our server answers 500; the library says reward 0
    ],
)
def test_trouble_has_a_reason_and_no_reward(taskset, trouble, end):
    task = WORD | {"trouble": trouble}

    *_, last = play(taskset, "b", "b", "a", task=task, seconds=3.0)

    assert last["end"] == end
    assert bool(last.get("error")) == (end != "rewritten")
    assert "reward" not in last


def test_another_prompt_than_the_rows_fails(taskset):
    changed = [{"role": "system", "content": "c"}, {"role": "user", "content": "a?"}]

    [last] = play(taskset, "a", task=WORD, messages=changed)
    assert last["end"] == "rewritten"
    [last] = play(taskset, "a", task={"prompt": "a?"})
    assert last["end"] == "failed"


def test_a_policy_that_takes_no_more_turns_is_scored(taskset):
    play(taskset, "b", task=WORD)

    taskset.write(episode=1, seconds=9.0)

    last = read(taskset)
    assert (last["end"], last["reward"]) == ("done", 0.5)


def test_the_time_of_the_policy_is_not_the_environments(taskset):
    play(taskset, "b", task=WORD, seconds=1.0)
    assert taskset.read(timeout_seconds=1.5) is None  # its clock stands

    taskset.write(
        episode=1, seconds=9.0, **turn_line([Said(text="", content="a")], is_cut=False)
    )
    last = read(taskset)
    assert (last["end"], last["seconds"] < 1.0) == ("done", True)


def test_a_dead_process_tells_why_and_a_new_one_ends_old_episodes(open_words):
    taskset = open_words()
    play(taskset, "b", task=WORD)
    taskset.write(
        episode=2,
        task=WORD | {"trouble": "dies"},
        messages=[{"role": "user", "content": "a?"}],
        tools=[],
        seconds=60.0,
        **turn_line([Said(text="", content="b")], is_cut=False),
    )
    with pytest.raises(verifiers.EnvironmentFailed, match="code 3"):
        read(taskset)

    taskset.write(
        episode=1, seconds=9.0, **turn_line([Said(text="", content="a")], is_cut=False)
    )
    assert read(taskset)["end"] == "failed"
    *_, last = play(taskset, "a", task=WORD)
    assert last["end"] == "done"


def test_an_unknown_taskset_is_named(python, monkeypatch):
    monkeypatch.setenv(verifiers.PYTHON, str(python))
    config = EnvironmentConfig(kind="verifiers", taskset="no_such_taskset")

    with pytest.raises(verifiers.EnvironmentFailed, match="no_such_taskset"):
        list(list_tasks(Taskset(config), 1))


def test_tools_are_listed_and_called(open_words):
    taskset = open_words(has_tools=True)
    row, _ = list_tasks(taskset, 1)
    [tool] = row["columns"]["tools"]
    wrong = [CALL[0] | {"function": {"name": "multiply", "arguments": "{}"}}]

    task = row["columns"]["task"]
    first, second, last = play(taskset, CALL, wrong, "a", task=task, tools=[tool])

    assert tool["function"]["name"] == "calculator_add"
    [message] = first["messages"]
    assert (message["role"], message["content"]) == ("tool", "3")
    assert second["messages"][0]["content"].startswith("error")
    assert (last["end"], last["reward"]) == ("done", 1.0)


def test_a_run_learns_from_episodes_of_a_taskset(model_folder, tmp_path, python):
    environment = child_environment() | {verifiers.PYTHON: str(python)}
    trainer = [sys.executable, "-m", "trainer"]
    words = json.dumps({"words": list("abcdefgh")})
    rows = tmp_path / "rows.jsonl"
    with rows.open("w") as output:
        subprocess.run(
            [*trainer, "tasks", "cohort_words", "--options", words],
            cwd=ROOT,
            env=environment,
            stdout=output,
            check=True,
        )
    tree = config_tree(
        model_folder,
        rows,
        data={"rows": str(rows), "num_eval_rows": 2, "max_prompt_tokens": 8},
        rollout={"prompts_per_step": 3, "group_size": 4, "max_new_tokens": 16},
        environment={
            "kind": "verifiers",
            "taskset": "cohort_words",
            "options": json.loads(words),
            "max_turns": 3,
            "max_turn_tokens": 6,
            "max_tokens": 64,
        },
        reward={
            "recipe": {"rules": [{"name": "environment", "kind": "environment"}]},
        },
        optim={"num_steps": 5},
        evaluation={"every_steps": 5, "samples_per_prompt": 1},
    )
    config = write_config(tmp_path, tree)
    done = subprocess.run(
        [*trainer, "run", config, "--out", tmp_path / "out"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

    events = read_events(tmp_path / "out" / "events.jsonl")
    assert len(only(events, "step_finished")) == 5
    completions = [
        completion
        for group in only(events, "group_scored")
        for completion in group["completions"]
    ]
    reasons = {completion["end_reason"] for completion in completions}
    assert reasons <= {"done", "turns", "length"}
    assert max(len(completion["turns"]) for completion in completions) > 1
    rewards = {completion["reward"] for completion in completions}
    assert rewards <= {0.5, 1.0}
