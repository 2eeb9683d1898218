"""A checkpoint and its base model answer side by side.

One question is answered by real models in a real child; what befalls the others is told
by a stand-in at the child's edge here, and by the real one in test-slow.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import User
from dashboard.datasets.models import DatasetRow
from dashboard.probes.chat import warm
from dashboard.probes.chat.desk import Desk
from dashboard.probes.chat.news import change
from dashboard.probes.chat.services import TooMany, ask, stop, what_it_waits_for
from dashboard.probes.models import Chat
from dashboard.runs.checkpoints.shelf import Shelf
from dashboard.runs.models import Checkpoint, Run
from tests.dashboard.checkpoints.real_model import model_files
from tests.dashboard.checkpoints.saved import Saving
from trainer.rewards.child import NoReply

TEMPLATE = "{% for m in messages %}{{ m['content'] }}={% endfor %}"


class StandIn:
    """Speaks as `trainer.commands.chat` does, at once: for the same seed the same."""

    pid = 0

    def __init__(self, *arguments: str, environment: dict[str, str]) -> None:
        paths = [b for a, b in pairwise(arguments) if a == "--model"]
        gone = [path for path in paths if not Path(path).is_dir()]
        problem = {"problem": f"There is no model folder {''.join(gone[:1])}."}
        self._lines: deque[dict[str, Any]] = deque(
            [problem if gone else {"device": "cpu"}]
        )
        self._is_alive = True

    def is_alive(self) -> bool:
        return self._is_alive

    def kill(self) -> None:
        self._is_alive = False

    end = kill

    def write(self, message: dict[str, Any]) -> None:
        self._lines.clear()
        places = range(message.get("num_samples", 0))
        for model in (0, 1):
            for place in places:
                text = f"{message['seed']} {place}"
                written = {"text": text[:1], "num_tokens": 1}
                self._lines.append({"model": model, "written": {str(place): written}})
            for place in places:
                text = f"{message['seed']} {place}"
                told = {"text": text, "num_tokens": 3, "end_reason": "stop"}
                self._lines.append({"model": model, "place": place, "completion": told})
        self._lines.append({"done": True})

    def read(self, *, timeout_seconds: float) -> dict[str, Any]:
        if not self._lines:
            raise NoReply(f"it took longer than {timeout_seconds:g} s")
        return self._lines.popleft()


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.slow)])
def child(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "stand-in":
        monkeypatch.setattr(warm, "Child", StandIn)
        monkeypatch.setattr("os.setpriority", lambda *_: None)
    return str(request.param)


@pytest.fixture(scope="module")
def real_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    found = model_files(tmp_path_factory.mktemp("base") / "model")
    return {**found, "model/chat_template.jinja": TEMPLATE.encode()}


@pytest.fixture
def files(child: str, request: pytest.FixtureRequest) -> dict[str, bytes]:
    if child == "stand-in":
        return {"model/model.safetensors": bytes(100)}
    found: dict[str, bytes] = request.getfixturevalue("real_files")
    return found


@pytest.fixture
def checkpoint(
    saving: Saving, files: dict[str, bytes], data_folder: Path
) -> Checkpoint:
    base = data_folder / "base"
    base.mkdir(parents=True)
    for name, content in files.items():
        (base / Path(name).name).write_bytes(content)
    saving.run.config["model"]["path"] = str(base)
    saving.run.config["data"]["system_prompt"] = None
    saving.run.save(update_fields=["config"])
    return saving.save(files=files)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk("worker-1")
    yield desk
    desk.forget_models()


def put(checkpoint: Checkpoint, user: User, **changes: Any) -> Chat:
    given: dict[str, Any] = {
        "row": DatasetRow(position=3, prompt="1+1=", answer="2", columns={}),
        "num_samples": 2,
        "max_new_tokens": 6,
        "temperature": 1.0,
        "seed": 5,
    }
    checkpoint = Checkpoint.objects.select_related("run__team").get(pk=checkpoint.pk)
    return ask(checkpoint=checkpoint, user=user, **given | changes)


@pytest.mark.slow
@pytest.mark.parametrize("child", ["real"], indirect=True)
def test_both_answer_with_scores_and_stay_loaded(
    checkpoint: Checkpoint, alice: User, desk: Desk, bob_client: Client
) -> None:
    chat = put(checkpoint, alice)

    desk.look()

    chat.refresh_from_db()
    assert (chat.state, chat.error) == ("finished", "")
    own, base = chat.answers
    assert len(own["completions"]) == len(base["completions"]) == 2
    # The same weights and seeds say the same.
    assert own == base
    first, second = own["completions"]
    assert first["text"] != second["text"]
    assert first["reward"] is not None
    assert set(first["rules"]) == {"answer", "format"}
    html = bob_client.get(f"/alpha/chats/{chat.pk}/").content.decode()
    assert "Step 1" in html
    assert f"Base: {checkpoint.run.model_label}" in html
    assert "data-open" not in html  # nothing more will come

    assert desk._models is not None
    child = desk._models.child
    again = put(checkpoint, alice, seed=6)
    desk.look()
    again.refresh_from_db()
    assert again.state == "finished"
    assert desk._models.child is child

    reply = put(checkpoint, alice, previous=again, reply="3+3")
    desk.look()
    reply.refresh_from_db()
    assert reply.state == "finished", reply.error
    assert reply.answers[0].get("problem") is None
    said = reply.question["turns"][0]
    assert [turn["role"] for turn in said] == ["assistant", "user"]
    assert said[0]["content"] == again.answers[0]["completions"][0]["text"]
    assert "reward" not in reply.answers[0]["completions"][0]


def test_a_base_that_cannot_be_loaded_says_so(
    checkpoint: Checkpoint, alice: User, desk: Desk
) -> None:
    checkpoint.run.config["model"]["path"] = "/nowhere/model"
    checkpoint.run.save(update_fields=["config"])
    chat = put(checkpoint, alice)

    desk.look()

    chat.refresh_from_db()
    assert chat.state == "failed"
    assert "There is no model folder /nowhere/model" in chat.error


def test_files_that_go_while_they_are_loaded_are_told(
    checkpoint: Checkpoint,
    alice: User,
    desk: Desk,
    saving: Saving,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Run.objects.filter(pk=checkpoint.run_id).update(best_by="none")
    Shelf(checkpoint.run_id).let_go(checkpoint.name)
    chat = put(checkpoint, alice)
    # The trainer deletes it when the worker has just found it.
    monkeypatch.setattr(
        "dashboard.probes.chat.warm.check_memory",
        lambda paths: shutil.rmtree(saving.folder / checkpoint.name),
    )

    desk.look()

    chat.refresh_from_db()
    assert chat.state == "failed"
    assert "was deleted" in chat.error


def test_short_memory_is_said_before_anything_is_loaded(
    checkpoint: Checkpoint, alice: User, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "_available_bytes", lambda: 10)
    chat = put(checkpoint, alice)

    desk.look()

    chat.refresh_from_db()
    assert chat.state == "failed"
    assert "Both models" in chat.error


def test_a_worker_that_cannot_see_the_files_leaves_it(
    saving: Saving, alice: User, desk: Desk
) -> None:
    checkpoint = saving.save()
    saving.save()
    saving.prune(1)
    Checkpoint.objects.filter(pk=checkpoint.pk).update(name="step-000009-epoch-1")
    chat = put(checkpoint, alice)

    desk.look()

    chat.refresh_from_db()
    assert chat.state == "queued"
    assert "step-000009-epoch-1" in chat.notice
    assert what_it_waits_for(chat).startswith("No training worker")


def test_a_team_asks_a_few_at_once_and_stops_them(
    saving: Saving, alice: User, alice_client: Client
) -> None:
    checkpoint = saving.save()
    chats = [put(checkpoint, alice) for _ in range(3)]
    with pytest.raises(TooMany, match="3 questions"):
        put(checkpoint, alice)

    alice_client.post(f"/alpha/chats/{chats[0].pk}/stop")

    chats[0].refresh_from_db()
    assert chats[0].state == "stopped"
    put(checkpoint, alice)


def test_a_stop_reaches_a_question_that_is_being_answered(
    checkpoint: Checkpoint, alice: User, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = put(checkpoint, alice)
    real = desk._ready

    def stopped(*args: Any) -> Any:
        stop(chat, chat.created_by)
        return real(*args)

    monkeypatch.setattr(desk, "_ready", stopped)

    desk.look()

    chat.refresh_from_db()
    assert chat.state == "stopped"
    assert desk._models is None


def on_first_words(
    monkeypatch: pytest.MonkeyPatch, chat: Chat, act: Callable[[], None]
) -> list[dict[str, Any]]:
    """Does it once the checkpoint has written something; what was stored by then."""
    seen: list[dict[str, Any]] = []

    def spy(*args: Any, **values: Any) -> bool:
        done = change(*args, **values)
        first = chat_of(chat).answers[0]["completions"][0]
        if first and not seen:
            seen.append(first)
            act()
        return done

    monkeypatch.setattr("dashboard.probes.chat.desk.change", spy)
    return seen


def chat_of(chat: Chat) -> Chat:
    return Chat.objects.get(pk=chat.pk)


def test_what_is_written_is_stored_before_the_answer_has_ended(
    checkpoint: Checkpoint, alice: User, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = put(checkpoint, alice, num_samples=1, max_new_tokens=40)
    pages = []
    seen = on_first_words(monkeypatch, chat, lambda: pages.append(chat_of(chat)))

    desk.look()

    (begun,) = seen
    done = chat_of(chat).answers[0]["completions"][0]
    assert (begun["end_reason"], begun["num_tokens"] > 0) == (None, True)
    assert "reward" not in begun
    assert done["text"].startswith(begun["text"])
    assert done["end_reason"] in ("stop", "length")
    assert chat_of(chat).seq > pages[0].seq


def test_a_stopped_answer_is_kept_and_the_models_stay_loaded(
    checkpoint: Checkpoint,
    alice: User,
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    bob_client: Client,
) -> None:
    chat = put(checkpoint, alice, num_samples=1, max_new_tokens=50)
    seen = on_first_words(monkeypatch, chat, lambda: stop(chat, chat.created_by))

    desk.look()
    monkeypatch.undo()

    stopped = chat_of(chat)
    assert (stopped.state, stopped.error) == ("stopped", "")
    assert stopped.answers[0]["completions"][0]["text"].startswith(seen[0]["text"])
    html = bob_client.get(f"/alpha/chats/{chat.pk}/").content.decode()
    assert "Stopped by hand" in html
    # Its models answer the next question, and nothing of the last one is left.
    child = desk._models and desk._models.child
    again = put(checkpoint, alice, seed=9, num_samples=1)
    desk.look()
    assert chat_of(again).state == "finished"
    assert desk._models is not None
    assert desk._models.child is child
    assert chat_of(again).answers[0] == chat_of(again).answers[1]


def test_what_a_lost_process_had_written_is_kept(
    checkpoint: Checkpoint,
    alice: User,
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    bob_client: Client,
) -> None:
    chat = put(checkpoint, alice, num_samples=1, max_new_tokens=50)

    def lose() -> None:
        assert desk._models is not None
        desk._models.child.kill()
        # What it had written into the pipe is lost with it.
        desk._models.child.read = lost  # type: ignore[method-assign]

    def lost(*, timeout_seconds: float) -> dict[str, Any]:
        raise NoReply("it was ended by SIGKILL")

    seen = on_first_words(monkeypatch, chat, lose)

    desk.look()

    failed = chat_of(chat)
    assert failed.state == "failed"
    assert "ended by SIGKILL" in failed.error
    assert failed.answers[0]["completions"] == seen
    assert failed.answers[1]["completions"] == [None]
    html = bob_client.get(f"/alpha/chats/{chat.pk}/").content.decode()
    assert "broken off" in html
    assert "Not answered." in html
    assert "Reply to both" not in html


def test_an_answer_without_end_is_ended(
    checkpoint: Checkpoint, alice: User, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = put(checkpoint, alice)
    monkeypatch.setattr("dashboard.probes.chat.watch.MOST_SECONDS", 0.0)

    desk.look()

    assert chat_of(chat).state == "failed"
    assert "took more than" in chat_of(chat).error
    assert desk._models is None


def test_a_page_without_a_socket_is_told_the_same(
    saving: Saving, alice: User, bob_client: Client, charlie_client: Client
) -> None:
    chat = put(saving.save(), alice, num_samples=1)
    written = {"text": "ab", "num_tokens": 2, "end_reason": None}
    answers = [{"completions": [written]}, {"completions": [None]}]
    change(chat.pk, Chat.objects.all(), answers=answers)
    address = f"/alpha/chats/{chat.pk}/stream.json"

    frame = bob_client.get(address).json()
    same = bob_client.get(f"{address}?after={frame['seq']}&epoch=1").json()

    assert frame["type"] == "snapshot"
    assert [(t["model"], t["place"], t["text"]) for t in frame["texts"]] == [
        (0, 0, "ab")
    ]
    assert same == {"type": "ping", "seq": frame["seq"]}
    assert bob_client.get(f"{address}?after=x").status_code == 400
    other = f"/other/chats/{chat.pk}/stream.json"
    assert charlie_client.get(other).status_code == 404


def test_the_page_finds_prompts_and_asks(alice_client: Client, saving: Saving) -> None:
    checkpoint = saving.save()
    version = saving.run.dataset_version
    DatasetRow.objects.bulk_create(
        DatasetRow(version=version, position=n, prompt=f"{n} + 1 =", answer=str(n + 1))
        for n in range(100)
    )
    address = f"/alpha/runs/{saving.run.pk}/chat/"

    html = alice_client.get(f"{address}?q=42+%2B").content.decode()
    assert "42 + 1 =" in html
    assert "7 + 1 =" not in html
    drawn = alice_client.get(f"{address}?random=1")
    assert "prompt=" in drawn["Location"]
    settings = {
        "checkpoint": checkpoint.name,
        "temperature": "0.7",
        "max_new_tokens": "8",
        "seed": "1",
        "num_samples": "1",
    }
    asked = alice_client.post(address, {**settings, "prompt": "42"})
    chat = Chat.objects.get()
    assert f"chat={chat.pk}" in asked["Location"]
    assert chat.question["row"] == {
        "prompt": "42 + 1 =",
        "answer": "43",
        "columns": {},
    }
    typed = alice_client.post(address, {**settings, "text": "Hello <b>"})
    shown = alice_client.get(typed["Location"]).content.decode()
    assert "Hello &lt;b&gt;" in shown
    for wrong in ({"prompt": "100"}, {}, {"prompt": "1", "seed": "-1"}):
        assert alice_client.post(address, {**settings, **wrong}).status_code == 422


def test_strangers_and_viewers(
    charlie_client: Client, bob_client: Client, saving: Saving, alice: User
) -> None:
    chat = put(saving.save(), alice)
    address = f"/alpha/runs/{saving.run.pk}/chat/"

    assert charlie_client.get(address).status_code == 404
    assert charlie_client.get(f"/other/chats/{chat.pk}/").status_code == 404
    assert charlie_client.post(f"/other/chats/{chat.pk}/stop").status_code == 404
    assert bob_client.get(address).status_code == 200
    assert bob_client.post(address).status_code == 403
