"""The memory panel of the launch form."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.runs.launch.fit import (
    ALWAYS,
    SAMPLING,
    UPDATING,
    Memory,
    estimate_memory,
)
from dashboard.runs.queue.hosts import Device, known_devices
from dashboard.supervision.models import Worker
from tests.dashboard.runs.launching import make_config, make_dataset, make_recipe
from trainer.config import RunConfig
from trainer.sizes.memory import estimate

SIZES = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "intermediate_size": 512,
    "vocab_size": 8_000,
}
GIB = 2**30


@pytest.fixture
def model(tmp_path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SIZES))
    return folder


def _config(path: object, **parts: Any) -> RunConfig:
    model = {"path": str(path), **parts.pop("model", {})}
    return RunConfig.model_validate(make_config(model=model, **parts))


def _worker(name: str, *, gpus: tuple[int, ...] = (), memory: int = 32 * GIB) -> Worker:
    now = timezone.now()
    return Worker.objects.create(
        name=name,
        host=name,
        pid=1,
        hardware={
            "memory_bytes": memory,
            "gpus": [{"name": "NVIDIA L4", "memory_bytes": size} for size in gpus],
        },
        started_at=now,
        last_seen=now,
    )


def _summary(client: Client, team: Team, model: object, **fields: str) -> Any:
    form = {
        "name": "brave-otter",
        "model_other": str(model),
        "dataset": (team.datasets.first() or make_dataset(team).dataset)
        .versions.get()
        .pk,
        "recipe": (team.recipes.first() or make_recipe(team).recipe).versions.get().pk,
        **fields,
    }
    return client.post(f"/{team.slug}/runs/new/summary", form)


def test_the_panel_is_the_engines_estimate(db, model):
    config = _config(model)

    memory = estimate_memory(config)

    expected = estimate(config, SIZES)
    assert memory.total == expected.total
    assert memory.ppo_critic == expected.ppo_critic
    assert sum(part.num_bytes for part in memory.parts) == expected.total


def test_the_bars_parts_follow_one_another_to_its_end(db, model):
    parts = estimate_memory(_config(model, loss={"kl_coef": 0.1})).parts

    ends = [part.start_percent + part.percent for part in parts]
    assert [part.start_percent for part in parts[1:]] == pytest.approx(ends[:-1])
    assert ends[-1] == pytest.approx(100)
    assert "Reference model" in {part.title for part in parts}


def test_a_teacher_is_a_part_of_its_own_size(db, model, tmp_path):
    folder = tmp_path / "teacher"
    folder.mkdir()
    sizes = SIZES | {"num_hidden_layers": 2 * SIZES["num_hidden_layers"]}
    (folder / "config.json").write_text(json.dumps(sizes))
    config = _config(model, reference={"model": str(folder)})

    parts = {part.title: part.num_bytes for part in estimate_memory(config).parts}

    teachers = {str(folder): sizes}
    assert parts["Teacher"] == estimate(config, SIZES, teachers=teachers).reference
    assert parts["Teacher"] > parts["Weights"]
    missing = _config(model, reference={"model": "org/teacher"})
    assert "config.json" in estimate_memory(missing).problem


def test_one_step_off_needs_all_parts_at_once(db, model):
    config = _config(
        model,
        rollout={"one_step_off": True},
        loss={"importance_correction": "token_truncate"},
    )

    memory = estimate_memory(config)

    assert memory.others == ()
    titles = {part.title for part in memory.parts}
    assert {ALWAYS["snapshot"], UPDATING["gradients"], SAMPLING["kv_cache"]} <= titles
    assert sum(part.num_bytes for part in memory.parts) == memory.total


LONG = {"rollout": {"max_new_tokens": 4_096}}
PHASES = [
    {"name": "short", "num_steps": 1},
    {"name": "long", "num_steps": 1, "changes": LONG},
]


def _reward(*folders: object) -> dict[str, Any]:
    rules = [
        {"name": f"m{n}", "kind": "reward_model", "params": {"path": str(folder)}}
        for n, folder in enumerate(folders)
    ]
    return {"recipe": {"rules": rules}}


@pytest.fixture
def classifier(tmp_path) -> Path:
    """The header of its weights, which is all that is read: 1,000 numbers."""
    header = json.dumps({"score": {"dtype": "BF16", "shape": [10, 100]}}).encode()
    folder = tmp_path / "classifier"
    folder.mkdir()
    file = folder / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


def test_reward_models_are_a_part_of_it(db, model, classifier):
    memory = estimate_memory(_config(model, reward=_reward(classifier)))

    sizes = {part.title: part.num_bytes for part in memory.parts}
    assert sizes["Reward models"] == 4_000
    assert sum(sizes.values()) == memory.total


def test_a_reward_model_on_the_cpu_is_left_out_of_gpu_memory(db, model, classifier):
    _worker("big", gpus=(24 * GIB,))
    reward = _reward(classifier)
    reward["recipe"]["rules"][0]["params"]["device"] = "cpu"

    memory = estimate_memory(_config(model, reward=reward))

    assert memory.reward_models_elsewhere == 4_000
    assert "Reward models" not in {part.title for part in memory.parts}


def test_an_unreadable_reward_model_is_listed(alice_client, team, model, classifier):
    version = make_recipe(team, "models", _reward("org/judge")["recipe"])

    answer = _summary(alice_client, team, model, recipe=str(version.pk))

    assert answer.context["summary"].memory.unknown_reward_models == ("org/judge",)
    assert "org/judge" in answer.text


def test_every_part_has_a_colour():
    css = Path(__file__).parents[3] / "static/css"
    text = "".join(
        (css / name).read_text() for name in ("colors.css", "pages/launch_memory.css")
    )

    coloured = re.findall(r"\.series-(\d+) ", text)

    most = len(ALWAYS) + len(UPDATING) + len(SAMPLING)
    assert {int(number) for number in coloured} == set(range(1, most + 1))


def test_the_phase_with_the_peak_counts(db, model):
    short = _config(model, optim={"num_steps": 2})
    both = _config(model, optim={"num_steps": 2}, phases=PHASES)

    memory = estimate_memory(both)

    assert memory.phase == "long"
    assert memory.total > estimate_memory(short).total


def test_the_panel_shows_the_peak_phase(alice_client, team, model):
    form = {"phases": json.dumps(PHASES), "optim.num_steps": "2"}

    answer = _summary(alice_client, team, model, **form)

    assert answer.context["summary"].memory.phase == "long"
    assert "in phase long" in answer.text


CONTENTS = [None, "[1]", "{", "{}", "\ufeff[", "[" * 100_000, '{"text_config": 5}']
CONTENTS += [" " * 1_000_001, '{"hidden_size": 1' + "0" * 400 + "}"]


def test_an_invalid_model_config_gives_a_problem(alice_client, team, tmp_path):
    for content in CONTENTS:
        if content is not None:
            (tmp_path / "config.json").write_text(content)

        memory = estimate_memory(_config(tmp_path))

        assert (bool(memory.problem), memory.total) == (True, 0), content
    unknown = _summary(alice_client, team, "org/model")  # a hub id is not guessed at
    problem = unknown.context["summary"].memory.problem
    assert problem
    assert problem in unescape(unknown.text)


def test_the_form_lists_known_devices(alice_client, team, model):
    _worker("big", gpus=(24 * GIB, 24 * GIB))

    answer = _summary(alice_client, team, model)

    memory = answer.context["summary"].memory
    (fit,) = memory.fits  # auto takes the GPU
    assert (fit.device.name, fit.device.memory_bytes) == ("NVIDIA L4", 24 * GIB)
    assert fit.is_enough
    assert fit.sizes.checkpointing is False
    assert f"{fit.percent:.0f}% of" in answer.text
    assert fit.tokens in answer.text
    assert answer.text.count("NVIDIA L4") == 1
    assert memory.ppo_critic > 0


def test_one_worker_with_enough_memory_is_enough(alice_client, team, model):
    _worker("small", memory=1_000_000)
    alone = _summary(alice_client, team, model)
    _worker("large")
    both = _summary(alice_client, team, model)

    for answer, enough in ((alone, [False]), (both, [False, True])):
        memory = answer.context["summary"].memory
        assert sorted(fit.is_enough for fit in memory.fits) == enough
        assert memory.is_too_much == (not any(enough))
        assert ("notice-warning" in answer.text) == memory.is_too_much


def test_a_run_on_cuda_is_not_compared_with_a_cpu(db, model):
    _worker("small", memory=1_000)

    assert estimate_memory(_config(model, model={"device": "cuda"})).fits == ()


# By hand: 4 layers x (attention 4 x 256 x 256 + MLP 3 x 256 x 512), two tables of
# 8,000 x 256 and 9 norms of 256 numbers, in bfloat16.
START_BYTES = 2 * (4 * (4 * 256 * 256 + 3 * 256 * 512) + 2 * 8_000 * 256 + 9 * 256)


def test_the_main_memory_of_all_ranks_is_compared_with_the_machines(
    alice_client, team, model
):
    _worker("big", gpus=(24 * GIB,) * 8, memory=100_000_000)
    found = {}

    for ranks in (4, 8):
        form = {"distributed.num_processes": str(ranks)}
        answer = _summary(alice_client, team, model, **form)
        memory = answer.context["summary"].memory
        found[ranks] = memory.host.num_bytes, "notice-warning" in answer.text
        assert memory.host.device.name == "big's machine"
        assert memory.host.percent == ranks * START_BYTES / 1_000_000

    assert found == {4: (4 * START_BYTES, False), 8: (8 * START_BYTES, True)}
    unmeasured = _config(model, reference={"kind": "none"})
    assert estimate_memory(unmeasured).host.num_bytes == 0


def test_ranks_without_gpus_share_their_machines_memory(db, model):
    _worker("small")
    one, four = (
        estimate_memory(_config(model, distributed={"num_processes": ranks}))
        for ranks in (1, 4)
    )

    assert one.fits[0].percent == 100 * one.total / (32 * GIB)
    assert four.fits[0].percent == 4 * 100 * four.total / (32 * GIB)
    assert (one.host, four.host) == (None, None)


def test_dead_workers_have_no_devices(db):
    gone, stopped = _worker("gone"), _worker("stopped")
    Worker.objects.filter(pk=gone.pk).update(last_seen="2020-01-01T00:00:00Z")
    Worker.objects.filter(pk=stopped.pk).update(stopped_at=timezone.now())
    _worker("here", memory=7)

    assert known_devices() == [
        Device(name="here's machine", memory_bytes=7, is_gpu=False)
    ]


def test_without_known_workers_memory_is_never_too_much():
    assert not Memory(total=10**15).is_too_much


def test_micro_batches_are_shown_for_each_gpu(db, model):
    _worker("two", gpus=(24 * GIB, 3 * GIB // 2))
    rollout = {"prompts_per_step": 256, "max_new_tokens": 1_536}

    memory = estimate_memory(_config(model, rollout=rollout))

    large, small = (fit.sizes for fit in memory.fits)
    assert large is not None
    assert small is not None
    assert large.tokens > 16_384
    assert not large.checkpointing
    assert small.tokens < large.tokens
    assert all(fit.is_enough for fit in memory.fits)
    assert 0 < memory.least < memory.total
