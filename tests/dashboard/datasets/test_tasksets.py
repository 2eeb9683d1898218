"""Rows made of the tasks of a verifiers taskset."""

import sys
from html import unescape
from typing import Any, ClassVar

import pytest

from dashboard.datasets import generators
from dashboard.datasets.generators import list_tasksets, open_taskset
from dashboard.datasets.models import DatasetVersion, ImportJob
from dashboard.datasets.selections import make_generated
from dashboard.jobs.kinds import JobCancelled
from dashboard.project.environment import ROOT
from tests.dashboard.jobs.working import do_all
from trainer.rewards.child import Child, NoReply, TimedOut

LIBRARY = ROOT / ".venv-environments" / "bin" / "python"
URL = "/alpha/datasets/environments?task=words"
FORM = {"name": "Words", "size": "5"}
TASK = {"judges": [], "stops": {}, "prompt": "a.txt", "own": {"fn": None, "weight": 1}}
SCHEMA = {
    "properties": {
        "id": {"type": "string", "default": ""},
        "system_prompt": {"type": "string", "default": ""},
        "split": {"enum": ["train", "test"], "default": "train", "type": "string"},
        "words": {"type": "array", "items": {"type": "string"}, "default": ["a"]},
        "length": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "count": {"type": "integer", "exclusiveMinimum": 0, "default": 1},
        "share": {
            "type": "number",
            "minimum": 0,
            "exclusiveMaximum": 1,
            "default": 0.5,
        },
        "has_tools": {"type": "boolean", "default": True},
        "task": {"$ref": "#/$defs/Task", "default": TASK},
    }
}
ROW = {
    "prompt": [{"role": "user", "content": "a?\0"}],
    "answer": None,
    "columns": {"task": {"word": "a"}, "tools": [{"name": "add"}]},
}


class FakeChild:
    """A process that writes `script`, and then ends."""

    script: tuple[Any, ...] = ()
    code = 0
    words = b""
    started: ClassVar[list[tuple[str, ...]]] = []
    ended = 0

    def __init__(self, *arguments: str, stderr: Any, **_: Any) -> None:
        type(self).started.append(arguments)
        self._lines = iter((SCHEMA,) if "--schema" in arguments else self.script)
        stderr.write(self.words)

    def read(self, *, timeout_seconds: float) -> dict[str, Any]:
        line = next(self._lines, None)
        if line is None:
            raise NoReply("it ended")
        if line == "wait":
            raise TimedOut("later")
        return line

    @property
    def exit_code(self) -> int:
        return self.code

    def end(self) -> None:
        type(self).ended += 1


@pytest.fixture(autouse=True)
def child(monkeypatch, settings) -> type[FakeChild]:
    class Scripted(FakeChild):
        started: ClassVar[list[tuple[str, ...]]] = []

    monkeypatch.setattr(generators, "Child", Scripted)
    settings.TASKSETS = frozenset({"words"})
    settings.TASKSETS_PYTHON = "/nowhere/python"
    open_taskset.cache_clear()
    return Scripted


def test_installed_tasksets_and_those_allowed_by_name_are_listed(
    settings, tmp_path, alice_client, bob_client
):
    package = tmp_path / "reverse_text-1.2.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: reverse-text\nVersion: 1.2\n"
        "Requires-Dist: verifiers>=0.4\n"
    )
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH={tmp_path}\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    settings.TASKSETS_PYTHON = str(python)

    assert list_tasksets() == {"words": "", "reverse-text": "1.2"}
    page = alice_client.get("/alpha/datasets/environments")
    listed = [(False, "words", ""), (True, "reverse-text", "1.2")]
    assert page.context["tasksets"] == listed
    assert page.text.count("COHORT_TASKSETS") == 1
    assert page.text.count('name="task"') == 1
    assert 'name="task"' not in bob_client.get("/alpha/datasets/environments").text


def test_without_verifiers_the_page_names_its_command(alice_client, settings):
    settings.TASKSETS = frozenset({"*"})

    assert list_tasksets() == {}
    assert "make environments" in alice_client.get("/alpha/datasets/environments").text


def test_a_job_makes_rows_with_their_environment(alice_client, child):
    child.script = ("wait", ROW, ROW)
    options = {"option-split": "test", "option-words": "b\r\nc", "option-length": "3"}

    page = alice_client.get(URL)
    answer = alice_client.post(URL, FORM | options)
    (job,) = do_all("dataset.generate")

    assert "seed" not in page.context["form"].fields
    assert 'name="option-id"' not in page.text
    assert answer["Location"].startswith("/alpha/datasets/imports/")
    assert (job.state, job.error) == ("done", "")
    version = DatasetVersion.objects.get()
    expected = {"split": "test", "words": ["b", "c"], "length": 3, "has_tools": False}
    assert version.environment == {
        "kind": "verifiers",
        "taskset": "words",
        "options": expected,
        "max_tokens": 4_096,
    }
    assert version.source == {"kind": "taskset", "task": "words", "options": expected}
    shown = 'taskset words (split="test", words=["b", "c"], length=3, has_tools=false)'
    assert {version.source_text, version.environment_text} == {shown}
    page = alice_client.get("/alpha/datasets/environments")
    assert shown in unescape(page.text)
    row = version.rows.get(position=1)
    assert row.prompt_value == [{"role": "user", "content": "a?␀"}]
    assert row.columns == ROW["columns"]
    *_, last = child.started
    assert last[:4] == ("trainer", "tasks", "--limit", "5")
    assert last[-2:] == ("--", "words")
    assert alice_client.get(f"/alpha/datasets/{version.dataset_id}/").status_code == 200


def test_options_that_name_other_code_need_an_operator(alice_client, settings):
    named = alice_client.get(URL).context["options"].fields
    refused = alice_client.post(URL, FORM | {"option-task": '{"judges": [1]}'})
    open_taskset.cache_clear()
    settings.TASKSETS = frozenset({"*"})
    settings.TASKSETS_PYTHON = "/nowhere/python"

    assert "system_prompt" not in named
    assert named["task"].default == {"stops": {}, "own": {"weight": 1}}
    assert refused.context["form"].has_error("__all__", "datasets.taskset_refused")
    *_, task = open_taskset("words", "").options
    assert (task.path, task.default) == ("task", TASK)
    assert "system_prompt" in [
        field.path for field in open_taskset("words", "").options
    ]


def test_a_failed_job_tells_the_last_words_and_is_filled_in_again(alice_client, child):
    location = alice_client.post(URL, FORM | {"option-share": "0.25"})["Location"]
    child.code, child.words = 2, b"Trace:\n  in x\nwidth\n  too wide\n"

    (job,) = do_all("dataset.generate")

    assert job.state == "failed"
    assert job.error == "words failed: width too wide"
    own = ImportJob.objects.get()
    assert f"{URL}&amp;job={own.pk}" in alice_client.get(location).text
    child.code = 0
    again = alice_client.get(f"{URL}&job={own.pk}")
    assert again.context["form"]["name"].value() == "Words"
    assert again.context["options"].texts["share"] == "0.25"
    assert again.context["options"].texts["has_tools"] == ""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            b"Trace:\n  in x\nwidth: 1 is too few [type=value_error, input_value=[1], "
            b"input_type=list]\n    For further information visit https://a.dev/v\n",
            "width: 1 is too few",
        ),
        (b"", "Fatal Python error: Segmentation fault"),
    ],
)
def test_a_dump_of_threads_is_no_reason(alice_client, child, said, reason):
    alice_client.post(URL, FORM)
    child.code, child.words = (
        2,
        said
        + (
            b"Fatal Python error: Segmentation fault\n\n"
            b"Current thread 0x0071 (most recent call first):\n  <no Python frame>\n"
        ),
    )

    (job,) = do_all("dataset.generate")

    assert job.error == f"words failed: {reason}"


def test_a_taskset_that_does_not_start_leads_back(alice_client, child):
    child.code, child.words = 2, b"no module words\n"

    answer = alice_client.get(URL, follow=True)

    assert answer.redirect_chain == [("/alpha/datasets/environments", 302)]
    assert "no module words" in answer.text


def test_an_invalid_option_is_refused_at_its_field(alice_client, child):
    for path, text in (
        ("length", "many"),
        ("share", "nan"),
        ("share", "-0.5"),
        ("share", "1"),
        ("count", "0"),
        ("split", "other"),
        ("task", "{"),
        ("words", "b" * 30_000),
    ):
        answer = alice_client.post(URL, FORM | {f"option-{path}": text})

        assert answer.status_code == 422
        if path != "words":
            assert set(answer.context["options"].errors) == {path}
    fields = answer.context["options"].fields
    assert (fields["count"].bounds, fields["count"].minimum) == ("above 0", None)
    assert fields["share"].bounds == "0 or more, below 1"
    form = answer.context["form"]
    assert form.has_error("__all__", "datasets.invalid_options")
    assert form.non_field_errors()[0].startswith("Task options ")
    assert ImportJob.objects.count() == 0


def test_only_members_start_tasksets_that_are_allowed(
    alice_client, bob_client, charlie_client, child, settings
):
    assert bob_client.get(URL).status_code == 404
    assert bob_client.post(URL, FORM).status_code == 403
    assert charlie_client.get(URL).status_code == 404
    assert alice_client.get(URL.replace("words", "other")).status_code == 404
    assert child.started == []

    alice_client.post(URL, FORM)
    settings.TASKSETS = frozenset()
    (job,) = do_all("dataset.generate")
    assert "COHORT_TASKSETS" in job.error
    assert all("--schema" in arguments for arguments in child.started)


def test_a_stopped_job_ends_the_process_that_it_waits_for(alice_client, child):
    alice_client.get(URL)
    alice_client.post(URL, FORM)
    child.script, before = ("wait",) * 9, child.ended
    reported = []

    def stop(*progress: int) -> None:
        reported.append(progress)
        if len(reported) == 3:
            raise JobCancelled

    with pytest.raises(JobCancelled):
        make_generated(
            ImportJob.objects.get(), on_read=stop, on_stored=print, on_made=print
        )

    assert reported == [(0, 5)] * 3
    assert child.ended == before + 1


@pytest.mark.slow
@pytest.mark.skipif(not LIBRARY.exists(), reason="needs `make environments`")
def test_the_library_gives_options_and_rows(
    alice_client, settings, monkeypatch, tmp_path
):
    monkeypatch.setattr(generators, "Child", Child)
    tasksets = ROOT / "tests" / "trainer" / "rollout" / "tasksets"
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{tasksets}"\nexec {LIBRARY} "$@"\n'
    )
    python.chmod(0o755)
    settings.TASKSETS_PYTHON = str(python)
    settings.TASKSETS = frozenset({"cohort_words"})
    url = URL.replace("words", "cohort_words")

    assert list_tasksets()["openenv"] == "comes with verifiers"
    page = alice_client.get(url)
    fields = page.context["options"].fields
    assert fields["has_tools"].kind == "switch"
    assert list(fields)[-1] == "system_prompt" or "system_prompt" not in fields
    alice_client.post(url, FORM | {"option-words": "x\ny", "option-has_tools": "on"})
    (job,) = do_all("dataset.generate")

    assert (job.state, job.error) == ("done", "")
    version = DatasetVersion.objects.get()
    assert version.num_rows == 2
    assert version.environment["options"] == {"words": ["x", "y"], "has_tools": True}
    assert version.rows.get(position=1).columns["task"]["word"] == "y"
    assert version.rows.get(position=1).columns["tools"]

    open_taskset.cache_clear()
    settings.TASKSETS = frozenset({"no_such_taskset"})
    answer = alice_client.get(URL.replace("words", "no_such_taskset"), follow=True)
    assert "no_such_taskset" in str(*answer.context["messages"])
