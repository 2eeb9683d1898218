"""The prompt preview, rendered by the engine in a pooled process."""

import json
import re
from collections.abc import Iterator
from html import unescape
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from dashboard.datasets import token_preview, tokenizer_pool
from dashboard.datasets.imports import store_upload
from dashboard.datasets.models import DatasetVersion, Upload
from dashboard.datasets.row import Row
from dashboard.datasets.tokenizer_pool import Busy, TokenizerPool
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_run, store_dataset
from tests.dashboard.datasets.chat_model import save_chat_model


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("chat") / "model"
    save_chat_model(folder)
    return str(folder)


@pytest.fixture
def version(team) -> DatasetVersion:
    rows = [
        Row(prompt="3 plus 4?", answer="7", columns={"level": 2}),
        Row(prompt=[{"role": "user", "content": "<b>4</b>"}], answer="8"),
        Row(prompt="x" * 3_000),
    ]
    return store_dataset(team, rows)


@pytest.fixture(scope="module")
def kept() -> Iterator[TokenizerPool]:
    pool = TokenizerPool()
    yield pool
    for process in pool.processes.values():
        process.close()


@pytest.fixture
def patient(kept, monkeypatch) -> None:
    """One process for this file, without a timeout."""
    monkeypatch.setattr(token_preview, "tokenizers", kept)
    monkeypatch.setattr(tokenizer_pool, "WAIT_SECONDS", 60.0)
    # The database gives each test's team another key.
    ask = kept.ask
    monkeypatch.setattr(kept, "ask", lambda *, team_id, **rest: ask(team_id=1, **rest))


def url(version: DatasetVersion) -> str:
    return f"/alpha/datasets/{version.dataset_id}/prompt"


def ask(client: Client, version: DatasetVersion, model: str, **form: Any) -> str:
    form = {name.replace("data_", "data."): text for name, text in form.items()}
    answer = client.post(url(version), {"model": model, **form})
    assert answer.status_code == 200
    return answer.text


def shown(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", "", page)).split())


@pytest.mark.usefixtures("patient")
def test_special_tokens_are_marked_and_tokens_are_counted(
    alice_client, version, model
) -> None:
    page = ask(alice_client, version, model)

    special = '<span class="visually-hidden"> special token </span>'
    assert f"{special}&lt;u&gt;</span><span>3 plus 4?</span>" in page
    assert f'{special}&lt;a&gt;</span><span class="preview-begin ' in page
    assert "11 tokens" in shown(page)


@pytest.mark.usefixtures("patient")
def test_template_and_prefix_are_those_of_the_run(alice_client, version, model) -> None:
    text = shown(
        ask(
            alice_client,
            version,
            model,
            data_prompt_template="Level {level}: {prompt}",
            data_completion_prefix="<think>",
            data_chat_template="none",
        )
    )

    assert "Level 2: 3 plus 4?<think>" in text
    assert "completion prefix" in text
    assert "special token" not in text


@pytest.mark.usefixtures("patient")
def test_template_errors_are_shown(alice_client, version, model) -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"data_prompt_template": "{levle}"}, "{levle}, which row 0"),
        ({"data_system_prompt": "Add up."}, "System role"),
        ({"data_prompt_template": "{prompt}", "row": "1"}, "list of messages"),
        ({"data_chat_template": "always"}, "Chat template:"),
        ({"data_system_prompt": "x" * 20_001}, "System prompt:"),
        ({"data_chat_template_kwargs": "{"}, "JSON object"),
        ({"data_chat_template_kwargs": "[1]"}, "data.chat_template_kwargs"),
        ({"data_chat_template_kwargs": '{"thinks": true}'}, "not read thinks"),
    ]
    for form, what in cases:
        assert what in shown(ask(alice_client, version, model, **form))


@pytest.mark.usefixtures("patient")
def test_another_row_is_shown_and_its_text_stays_text(
    alice_client, version, model
) -> None:
    page = ask(alice_client, version, model, row="1")

    assert "<span>&lt;b&gt;4&lt;/b&gt;</span>" in page
    assert 'name="row" value="1"' in page


@pytest.mark.usefixtures("patient")
def test_the_middle_of_a_long_prompt_is_hidden(alice_client, version, model) -> None:
    page = ask(alice_client, version, model, row="2")

    assert "3,002 tokens" in shown(page)
    assert "… 1,002 tokens hidden …" in page
    assert page.count("x") < 2_100


@pytest.mark.usefixtures("patient")
def test_a_row_beyond_the_bound_is_not_sent_to_the_engine(
    alice_client, version, model, monkeypatch
) -> None:
    monkeypatch.setattr(token_preview, "MAX_ROW_CHARS", 1_000)

    assert "1,000" in shown(ask(alice_client, version, model, row="2"))


def test_a_pending_preview_polls(alice_client, version, monkeypatch):
    def wait(**_: Any) -> dict[str, Any]:
        raise Busy("Loading.")

    monkeypatch.setattr(token_preview.tokenizers, "ask", wait)
    waiting = ask(alice_client, version, "org/m")
    problem = {"problem": "no tokenizer"}
    monkeypatch.setattr(token_preview.tokenizers, "ask", lambda **_: problem)
    page = ask(alice_client, version, "org/m")

    assert "Loading." in waiting
    assert "delay:1s" in waiting
    assert "no tokenizer" in page
    assert "delay:1s" not in page


def test_long_pieces_are_cut(
    monkeypatch,
):
    # Loaded with the test that needs it: it takes seconds.
    from trainer.commands import preview as prompt_previews

    monkeypatch.setattr(prompt_previews, "decode_text", lambda _, ids: "a" * len(ids))
    monkeypatch.setattr(prompt_previews, "SHOWN_CHARS", 5)
    tokenizer = SimpleNamespace(all_special_ids=[9], added_tokens_decoder={})

    pieces = prompt_previews.cut_up(tokenizer, [1, 1, 9, 1, 1, 1, 1, 9])  # type: ignore[arg-type]

    assert pieces == [("aa", False), ("a", True), ("aa…", False)]


def test_viewers_and_other_teams_start_no_tokenizer(
    bob_client, charlie_client, version
):
    assert "Viewers cannot" in bob_client.get(url(version)).text
    assert bob_client.post(url(version), {"model": "m"}).status_code == 403
    assert charlie_client.post(url(version), {"model": "m"}).status_code == 404


def test_the_page_is_filled_in_from_its_address(alice_client, version):
    page = alice_client.get(
        url(version), {"model": "org/m", "data.system_prompt": "Think <first>."}
    ).text

    assert 'value="org/m"' in page
    assert "Think &lt;first&gt;.</textarea>" in page


@pytest.mark.parametrize("tab", ["prompt", "statistics"])
def test_the_model_of_the_newest_run_is_suggested(alice_client, version, team, tab):
    for path in ("org/older", "org/newest"):
        Run.objects.filter(pk=make_run(team).pk).update(
            config={"model": {"path": path}}
        )

    page = alice_client.get(f"/alpha/datasets/{version.dataset_id}/{tab}").text

    assert 'name="model" value="org/newest"' in page


def test_the_launch_form_uses_the_prompt_settings(alice_client, version):
    page = alice_client.get(
        "/alpha/runs/new",
        {"dataset": version.pk, "model": "org/m", "data.prompt_template": "{prompt}!"},
    ).text

    assert "{prompt}!</textarea>" in page
    assert 'hx-post="/alpha/runs/new/prompt"' in page


@pytest.mark.usefixtures("patient")
def test_the_launch_form_shows_what_its_own_settings_make(
    alice_client, version, model
) -> None:
    form = {
        "dataset": version.pk,
        "model": "",
        "model_other": model,
        "data.prompt_template": "Add: {prompt}",
        "data.max_prompt_tokens": "12",
    }

    text = shown(alice_client.post("/alpha/runs/new/prompt", form).text)

    assert "16 tokens" in text
    assert "Add: 3 plus 4?" in text


@pytest.mark.usefixtures("patient")
def test_the_launch_form_checks_the_environment(alice_client, version, model) -> None:
    form = {
        "dataset": version.pk,
        "model_other": model,
        "environment.kind": "tools",
        "environment.tools": '["calculator"]',
        "data.chat_template": "none",
        "data.max_prompt_tokens": "99",
    }

    def check(**changes: str) -> tuple[Any, str]:
        changes = {name.replace("__", "."): text for name, text in changes.items()}
        answer = alice_client.post("/alpha/runs/new/prompt", form | changes)
        found = re.search(r'<div id="environment-check"(.*)</div>', answer.text, re.S)
        assert found
        return answer.context["preview"], found[1]

    preview, text = check()
    assert len(preview.refusals) == text.count("data-refusal") == 1
    assert preview.pieces
    preview, text = check(environment__tools="[]")
    assert preview.problem in unescape(text)
    assert "environment.tools" in preview.problem
    preview, text = check(environment__kind="guess", row="1")  # no game
    assert "<b>4</b>" in preview.problem
    source = "def reply(row, seed, said):\n    return 'no'\n"
    source += "def open(row, seed):\n    return 'Hello 7'"
    own = {"environment__kind": "python", "environment__source": source}
    preview, text = check(**own, seed="-")
    assert (preview.refusals, preview.problem) == ((), "")
    preview, text = check(environment__kind="none")
    assert (preview.refusals, preview.problem, "<p" in text) == ((), "", False)


def test_the_launch_form_names_missing_fields(alice_client, version):
    own = {"dataset": str(version.pk), "model_other": "org/m"}
    cases: list[tuple[dict[str, str], str]] = [
        ({"model_other": "org/m"}, "Choose a dataset"),
        ({"dataset": own["dataset"]}, "Choose a model"),
        ({**own, "data.max_prompt_tokens": "a"}, "data.max_prompt_tokens:"),
    ]
    for form, what in cases:
        assert what in shown(alice_client.post("/alpha/runs/new/prompt", form).text)


@pytest.fixture
def sent(team, alice) -> Upload:
    rows = [
        {"question": "3 plus 4?", "hint": "Count.", "solution": "7"},
        {"question": "", "hint": "None.", "solution": "8"},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file = SimpleUploadedFile("rows.jsonl", lines)
    return store_upload(team=team, user=alice, file=file, dataset=None)


def ask_before(client: Client, upload: Upload, model: str, **form: Any) -> str:
    form = {name.replace("data_", "data."): text for name, text in form.items()}
    given = {"model": model, "prompt": "question", "name": "Rows", **form}
    answer = client.post(f"/alpha/datasets/uploads/{upload.pk}/prompt", given)
    assert answer.status_code == 200
    return answer.text


@pytest.mark.usefixtures("patient")
def test_before_the_import_the_chosen_columns_are_rendered(
    alice_client, sent, model
) -> None:
    question = ask_before(alice_client, sent, model)
    hint = ask_before(
        alice_client,
        sent,
        model,
        prompt="hint",
        columns=["question"],
        data_prompt_template="{prompt} So: {question}",
    )

    assert "3 plus 4?" in shown(question)
    assert "<u>" in shown(question)
    assert question.count("preview-special") == 2
    assert "Count. So: 3 plus 4?" in shown(hint)
    assert not DatasetVersion.objects.exists()


@pytest.mark.usefixtures("patient")
def test_the_preview_before_an_import_shows_row_errors(
    alice_client, sent, model
) -> None:
    page = ask_before(alice_client, sent, model, row="1")

    assert "Line 2" in shown(page)
    assert "Row 1" in page
    assert "preview-text" not in page


def test_the_preview_before_an_import_needs_a_model(alice_client, sent):
    assert "Choose a model" in ask_before(alice_client, sent, "")


def test_the_preview_reports_a_missing_file(alice_client, sent):
    sent.path.unlink()

    assert "is missing" in ask_before(alice_client, sent, "org/model")


def test_the_mapping_page_has_a_preview_for_members(alice_client, bob_client, sent):
    address = f"/alpha/datasets/uploads/{sent.pk}"

    assert 'id="prompt-preview"' in alice_client.get(address).text
    assert 'id="prompt-preview"' not in bob_client.get(address).text


def test_unknown_tokens_are_counted():
    # Loaded with the test that needs it: it takes seconds.
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    from trainer.commands.preview import answer

    words = Tokenizer(WordLevel({"<unk>": 0, "3": 1, "+": 2}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    row = {"prompt": "3 + 4 apples", "answer": None, "columns": {}}
    question = {"index": 0, "row": row, "data": {}}
    knows_less = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    ends_so = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", eos_token="<unk>"
    )

    assert answer(knows_less, question)["num_unknown"] == 2
    assert answer(ends_so, question)["num_unknown"] == 0


def test_the_preview_counts_unknown_tokens(alice_client, version, monkeypatch):
    answer = {
        "pieces": [["3 plus ", False], ["<unk>", True]],
        "last_pieces": [],
        "num_tokens": 3,
        "num_unknown": 1,
        "num_left_out": 0,
    }
    monkeypatch.setattr(token_preview.tokenizers, "ask", lambda **_: answer)

    page = ask(alice_client, version, "a/model")

    assert "1 of the 3" in shown(page)
