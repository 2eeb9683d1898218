import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from playwright.sync_api import expect

from dashboard.datasets.models import DatasetVersion
from dashboard.runs.models import Run, Sweep, TeamPreset
from tests.browser.accessibility import findings
from tests.dashboard.runs.launching import COUNTDOWN, make_dataset, make_recipe
from tests.dashboard.runs.test_launch_starters import RUN_TOML

pytestmark = pytest.mark.browser
ENVIRONMENT_REWARD = {"rules": [{"name": "hit", "kind": "environment"}]}
DESKTOP, PHONE = (1440, 900), (390, 844)


@pytest.fixture
def starter() -> Iterator[Path]:
    """A starter model, where the web process looks for them."""
    folder = Path(settings.COHORT_DATA) / "starter" / "countdown"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    rule = '[[reward.recipe.rules]]\nname = "equation"\nkind = "countdown"\n'
    (folder / "run.toml").write_text(f"{RUN_TOML}\n{rule}")
    (folder / "starter.json").write_text("{}")
    yield folder
    shutil.rmtree(folder.parent)


@pytest.fixture
def own(team, starter) -> DatasetVersion:
    """The starter's dataset and reward, among others of the team."""
    make_dataset(team, "words", target=3, numbers=[1, 2])
    make_recipe(team)
    make_recipe(team, "Countdown", COUNTDOWN)
    dataset = make_dataset(team, "Countdown", target=3, numbers=[1, 2])
    DatasetVersion.objects.filter(pk=dataset.pk).update(source={"kind": "starter"})
    return dataset


@pytest.mark.parametrize("size", [DESKTOP, pytest.param(PHONE, marks=pytest.mark.slow)])
def test_launch_alone_trains_the_starter_with_its_settings(size, page, own):
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto("/alpha/runs/new")
    button = page.get_by_role("button", name="Launch", exact=True)

    for y in (0, 700, 100_000):
        page.evaluate("y => window.scrollTo(0, y)", y)
        box = button.bounding_box()
        assert box is not None
        assert 0 <= box["y"] <= size[1] - box["height"], y
    button.click()

    expect(page).to_have_url(re.compile(r"/alpha/runs/\d+/$"))
    run = Run.objects.get()
    assert run.dataset_version == own
    assert run.config["optim"]["learning_rate"] == 1e-3
    assert run.config["rollout"]["max_new_tokens"] == 24


def test_a_switch_writes_whether_the_model_thinks(page, own, starter):
    (starter / "model" / "chat_template.jinja").write_text("{{ enable_thinking }}")
    page.goto("/alpha/runs/new")
    options = page.locator("[name='data.chat_template_kwargs']")
    part = page.locator("details[data-part]", has=options)
    part.locator("summary").click()
    switch = page.get_by_label("Enable thinking")
    expect(switch).to_have_js_property("indeterminate", True)

    switch.check()
    expect(options).to_have_value('{"enable_thinking":true}')
    switch.uncheck()
    expect(options).to_have_value('{"enable_thinking":false}')
    options.fill('{"a": 1, "enable_thinking": true}')
    expect(switch).to_be_checked()
    options.fill("{")
    expect(switch).to_be_hidden()
    options.fill('{"a": 1}')
    switch.check()

    expect(options).to_have_value('{"a":1,"enable_thinking":true}')
    page.get_by_label("Model", exact=True).select_option("")
    page.get_by_label("Folder or Hugging Face ID").fill("Qwen/Qwen3-4B")
    page.get_by_label("Folder or Hugging Face ID").blur()
    expect(switch).to_be_hidden()


def test_the_environments_card_proposes_limit_tools_and_reward(page, team, own):
    reward = make_recipe(team, "Environment", ENVIRONMENT_REWARD)
    page.goto("/alpha/runs/new")
    card = page.locator("[data-part=environment]")
    kind = card.get_by_label("Environment", exact=True)
    limit = card.locator("[name='environment.max_tokens']")
    turns = card.locator("[name='environment.max_turns']")
    source = card.locator("[name='environment.source']")
    tools = page.locator("[name='environment.tools']")
    recipe = page.get_by_label("Reward", exact=True)
    usual = recipe.input_value()
    attempt = card.get_by_role("button", name="Try on one row")
    expect(kind).to_be_hidden()
    card.locator("summary").click()
    expect(attempt).to_be_hidden()
    expect(limit).to_be_hidden()

    kind.select_option("guess")
    expect(attempt).to_be_visible()
    expect(recipe).to_have_value(str(reward.pk))
    longest = int(page.locator("[name='data.max_prompt_tokens']").input_value()) + 24
    expect(limit).to_have_value(str(longest + 7 * 16))
    turns.fill("3")
    expect(limit).to_have_value(str(longest + 2 * 16))
    expect(page.locator(".launch-line")).to_contain_text("steps")
    limit.fill("900")
    turns.fill("4")
    expect(limit).to_have_value("900")

    kind.select_option("tools")
    expect(recipe).to_have_value(str(reward.pk))
    card.get_by_label("calculator").check()
    source.fill("def look_up(word: str):\n    pass")
    card.get_by_label("look_up").check()
    expect(tools).to_have_value('["calculator", "look_up"]')
    expect(tools).to_be_hidden()
    assert findings(page) == []
    card.get_by_label("calculator").uncheck()
    expect(tools).to_have_value('["look_up"]')

    kind.select_option("none")
    expect(card).not_to_have_attribute("open", "")
    expect(recipe).to_have_value(usual)
    page.get_by_role("button", name="TOML").click()
    expect(page.locator("[name=toml]")).to_have_value(re.compile("num_steps"))


@pytest.mark.slow
def test_an_empty_list_launches_the_starter_in_one_click(page, own):
    page.goto("/alpha/runs/")

    page.get_by_role("button", name="Run the starter example").click()

    expect(page).to_have_url(re.compile(r"/alpha/runs/\d+/$"))
    run = Run.objects.get()
    assert run.dataset_version == own
    assert run.recipe_version.recipe.name == "Countdown"
    assert run.config["optim"]["learning_rate"] == 1e-3


@pytest.mark.slow
def test_typed_values_survive_a_preset_and_fixed_errors_disappear(page, team, own):
    page.goto("/alpha/runs/new")
    name = page.get_by_role("textbox", name="Name", exact=True)
    steps, length = (
        page.locator("[name='optim.num_steps']"),
        page.get_by_role("textbox", name="Max new tokens"),
    )
    dataset = page.get_by_label("Dataset", exact=True)
    name.fill("brave-otter")
    steps.fill("7")

    page.get_by_label("Preset", exact=True).select_option("trl")
    expect(length).to_have_value("512")
    expect(page.locator("[data-setting='optim.num_steps']")).to_contain_text("trl")
    expect(page.locator("[data-part]:has(.launch-main)")).to_contain_text("1 changed")
    page.get_by_label("Preset", exact=True).select_option("deepseekmath-process")
    expect(page.locator("[name=step_recipe]")).to_have_value("start")
    page.get_by_label("Preset", exact=True).select_option("recommended")
    expect(page.locator("[name=step_recipe]")).to_have_value("")
    expect(length).to_have_value("24")
    assert (name.input_value(), steps.input_value()) == ("brave-otter", "7")
    expect(dataset).to_have_value(str(own.pk))

    # A model without a recommendation keeps the dataset, which the user did not choose.
    page.get_by_label("Model", exact=True).select_option("")
    page.get_by_label("Folder or Hugging Face ID").fill("Qwen/Qwen3-4B")
    page.get_by_label("Folder or Hugging Face ID").blur()
    expect(page.get_by_role("textbox", name="LoRA rank")).to_have_value("32")
    expect(page.locator("[name='optim.learning_rate']")).to_have_value("1e-5")
    assert steps.input_value() == "7"

    dataset.select_option("")
    name.fill("")
    page.get_by_role("button", name="Launch", exact=True).click()
    expect(dataset).to_have_attribute("aria-invalid", "true")
    expect(name).to_have_attribute("aria-invalid", "true")
    assert not Run.objects.exists()
    page.evaluate("window.isSamePage = true")
    dataset.select_option(str(own.pk))
    expect(dataset).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("#about-dataset .field-error")).to_have_count(0)
    expect(page.locator("#about-name .field-error")).to_have_count(1)
    name.fill("calm-heron")
    expect(page.locator("[data-problems]")).to_have_count(0)
    expect(page.locator("[aria-invalid=true]")).to_have_count(0)
    assert page.evaluate("window.isSamePage")

    page.get_by_role("button", name="Launch", exact=True).click()
    expect(page).to_have_url(re.compile(r"/alpha/runs/\d+/$"))
    run = Run.objects.get()
    assert (run.name, run.num_steps) == ("calm-heron", 7)
    assert run.config["model"]["lora_rank"] == 32


@pytest.mark.slow
def test_a_search_shows_matching_settings_alone(page, team):
    page.goto("/alpha/runs/new")
    clip, other = (
        page.get_by_role("textbox", name="Clip high"),
        page.get_by_role("textbox", name="Clip low"),
    )
    expect(clip).to_be_hidden()

    page.get_by_label("Search settings").fill("clip high")

    expect(clip).to_be_visible()
    expect(other).to_be_hidden()
    expect(page.get_by_text("Sweep", exact=True)).to_be_hidden()
    page.get_by_label("Search settings").fill("")
    expect(page.get_by_text("Sweep", exact=True)).to_be_visible()


def test_a_form_is_changed_reset_saved_and_launched_as_a_sweep(page, team):
    make_dataset(team)
    make_recipe(team)
    page.goto("/alpha/runs/new?model=org/model")
    size = page.get_by_role("textbox", name="Group size")
    back = page.get_by_role("button", name="Group size: Reset to 8")
    counts = page.locator("[data-part]:has(.launch-main)").locator("[data-num-changed]")

    expect(back).to_be_hidden()
    size.fill("4")
    expect(counts).to_have_text("1 changed")
    back.click()
    expect(size).to_have_value("8")
    expect(size).to_be_focused()
    expect(counts).to_be_hidden()

    # The whole form as TOML: a wrong value is refused, a right one is applied.
    page.get_by_role("button", name="TOML", exact=True).click()
    area = page.get_by_label("TOML", exact=True)
    expect(area).to_have_value(re.compile("group_size = 8"))
    text = area.input_value()
    area.fill(text.replace("group_size = 8", 'group_size = "big"'))
    expect(page.get_by_role("button", name="Launch")).to_be_disabled()
    page.get_by_role("button", name="Apply to the form").click()
    expect(page.locator("[data-toml-problems]")).to_contain_text(
        "rollout.group_size = “big”"
    )
    area.fill(text.replace("group_size = 8", "group_size = 6"))
    page.get_by_role("button", name="Apply to the form").click()
    expect(size).to_have_value("6")

    # Kept as a preset, it is where the form begins.
    page.locator("#keep-preset summary").click()
    page.get_by_label("Preset name").fill("six")
    page.get_by_role("button", name="Save preset").click()
    expect(page).to_have_url(re.compile(f"team%3A{TeamPreset.objects.get().pk}"))
    expect(size).to_have_value("6")

    # It is renamed and deleted under the form, which keeps its values.
    page.evaluate("window.isSamePage = true")
    preset = page.get_by_label("Preset", exact=True)
    size.fill("7")
    page.get_by_text("Rename or delete this preset").click()
    page.get_by_label("New name").fill("seven")
    page.get_by_role("button", name="Rename").click()
    expect(preset.locator(":checked")).to_have_text("seven")
    expect(preset).to_be_focused()
    page.get_by_text("Rename or delete this preset").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(preset).to_have_value("recommended")
    expect(page.locator("#messages .notice-success")).to_contain_text("seven")
    expect(size).to_have_value("7")
    expect(page.locator("[name=model_other]")).to_have_value("org/model")
    assert not TeamPreset.objects.exists()
    assert page.evaluate("window.isSamePage")

    # Several values are several runs.
    page.get_by_text("Sweep", exact=True).click()
    page.get_by_label("Setting 1", exact=True).last.fill("seed")
    page.get_by_label("Values", exact=True).first.fill("0..2")
    plan = page.get_by_role("region", name="Runs to launch")
    expect(plan.get_by_role("row")).to_have_count(4)
    page.get_by_role("button", name="Launch 3 runs").click()

    expect(page).to_have_url(re.compile(f"sweep={Sweep.objects.get().pk}"))
    expect(page.get_by_role("link", name="Compare runs")).to_be_visible()


@pytest.mark.slow
def test_a_reward_is_disabled_whose_columns_the_dataset_lacks(page, team, own):
    plain = make_dataset(team, "plain")
    page.goto("/alpha/runs/new")
    reward = page.get_by_label("Reward", exact=True)
    names = "e => [...e.options].filter((o) => o.disabled).map((o) => o.dataset.title)"
    assert reward.evaluate(names) == []

    page.get_by_label("Dataset", exact=True).select_option(str(plain.pk))

    expect(reward.locator("option:disabled")).to_have_count(1)
    assert reward.evaluate(names) == ["Countdown v1"]
    expect(reward.locator("option:disabled")).to_contain_text("numbers, target")


@pytest.mark.slow
def test_settings_without_effect_are_hidden_until_they_are_asked_for(page, team, own):
    page.goto("/alpha/runs/new")
    part = page.locator("details", has=page.locator("[data-setting='model.device']"))
    part.locator("summary").click()
    alpha = page.locator("[data-setting='model.lora_alpha']")
    expect(alpha).to_be_hidden()

    page.locator("[data-shows-unused]").check()
    expect(alpha).to_be_visible()
    page.locator("[data-shows-unused]").uncheck()
    expect(alpha).to_be_hidden()

    page.get_by_label("Search settings").fill("alpha")
    expect(alpha).to_be_visible()
    page.get_by_label("Search settings").fill("")
    page.locator("[name='model.lora_rank']").fill("8")
    expect(alpha).to_be_visible()


def test_enter_updates_the_estimate_and_with_control_launches(page, own):
    page.goto("/alpha/runs/new")
    steps = page.locator("[name='optim.num_steps']")
    facts = page.locator(".launch-facts").first

    steps.fill("7")
    steps.press("Enter")
    expect(facts).to_contain_text("7 steps")
    assert not Run.objects.exists()
    padding = (
        "parseFloat(getComputedStyle(document.documentElement).scrollPaddingBottom)"
    )
    height = page.locator(".launch-bar").bounding_box()
    assert height is not None
    assert page.evaluate(padding) >= height["height"]
    steps.press("Control+Enter")

    expect(page).to_have_url(re.compile(r"/alpha/runs/\d+/$"))
    assert Run.objects.get().config["optim"]["num_steps"] == 7
