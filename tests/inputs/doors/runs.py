"""Settings of runs as fields and as TOML; what is asked of runs, by addresses."""

from __future__ import annotations

from typing import Any

from dashboard.runs.models import Run, SavedView
from tests.dashboard.runs.launching import make_dataset, make_recipe
from tests.inputs.cases import (
    Answer,
    Case,
    Door,
    World,
    told_as_text,
    told_by_page,
    told_by_problem,
)


def send_toml(world: World, text: str) -> Answer:
    make_dataset(world.team, "toml"), make_recipe(world.team, "toml")
    address = "/alpha/runs/new/from-toml"
    answer = world.client.post(address, {"toml": text})
    told = told_by_page(answer, sees_hidden=True)
    return Answer(told.status, told.said.partition("The TOML holds changes")[0])


def send_form(world: World, changes: dict[str, str]) -> Answer:
    least = {
        "name": "brave-otter",
        "model_other": "org/model",
        "dataset": make_dataset(world.team, "form").pk,
        "recipe": make_recipe(world.team, "form").pk,
    }
    return told_by_page(world.client.post("/alpha/runs/new", least | changes))


def send_launch(world: World, changes: dict[str, Any]) -> Answer:
    tree = {
        "name": "brave-otter",
        "model": "org/model",
        "dataset_version_id": make_dataset(world.team, "api").pk,
        "recipe_version_id": make_recipe(world.team, "api").pk,
        **changes,
    }
    return told_by_problem(world.program.post("/launches", tree))


def ask_list(world: World, query: str) -> Answer:
    return told_by_page(world.client.get("/alpha/runs/", {"q": query}))


def ask_api(world: World, query: str) -> Answer:
    return told_by_problem(world.program.get(f"/{query.format(run=world.run.pk)}"))


def ask_page(world: World, path: str) -> Answer:
    address = f"/alpha/{path.format(run=world.run.pk)}"
    return told_by_page(world.client.get(address))


def ask_script(world: World, path: str) -> Answer:
    address = f"/alpha/{path.format(run=world.run.pk)}"
    return told_as_text(world.client.get(address))


def act(world: World, sent: tuple[str, dict[str, Any]]) -> Answer:
    path, data = sent
    address = f"/alpha/{path.format(run=world.run.pk)}"
    return told_by_page(world.client.post(address, data, follow=True))


TOMLS = [
    Case("no TOML", "seed 1", says=("This is not TOML: Expected '=' after a key in a key/value pair (at",)),
    Case("a table left open", "[optim\n", says=("This is not TOML: Expected ']' at the end of a table declaration (at",)),
    Case("a key that is there twice", "seed = 1\nseed = 2\n", says=("This is not TOML: Cannot overwrite a value (at line 2, column 9).",)),
    Case("a table that is there twice", "[optim]\n[optim]\n", says=("This is not TOML: Cannot declare ('optim',) twice (at line 2, column",)),
    Case("a value left out", "seed =\n", says=("This is not TOML: Invalid value (at line 1, column 7).",)),
    Case("a text left open", 'name = "a\n', says=("This is not TOML: Illegal character '\\n' (at line 1, column 10).",)),
    Case("a control character", 'seed = "\x01"\n', says=("This is not TOML: Illegal character '\\x01' (at line 1, column 9).",)),
    Case("a NUL", "seed = 1\0\n", says=("This TOML holds a NUL character.", "Remove it.")),
    Case("a key of no meaning", "[optim]\ncolour = 'red'\n", says=("Line 2, optim.colour = “red”: There is no such setting.", "Write optim.schedule.")),
    Case("a table of no meaning", "[paint]\ncolour = 'red'\n", says=("Line 1, paint: There is no such setting.", "Remove it.")),
    Case("a word for a number", "[optim]\nnum_steps = 'many'\n", says=("Line 2, optim.num_steps = “many”: Steps must be a whole number;", "got “many”.")),
    Case("a fraction for a count", "[optim]\nnum_steps = 1.5\n", says=("Line 2, optim.num_steps = “1.5”: Steps must be a whole number;", "got “1.5”.")),
    Case("a number for a table", "optim = 5\n", says=("Line 1, optim = “5”: Input should be a valid dictionary or instance", "Correct or remove it.")),
    Case("a list for a number", "[optim]\nlearning_rate = [1e-6]\n", says=("Line 2, optim.learning_rate: Learning rate must be a number, such as", "got “[1e-06]”.")),
    Case("a table for a number", "[optim.learning_rate]\nx = 1\n", says=("Line 1, optim.learning_rate: Learning rate must be a number, such as", "got “{'x': 1}”.")),
    Case("a date for a number", "[optim]\nlearning_rate = 2026-11-01\n", says=("Line 2, optim.learning_rate = “2026-11-01”: Learning rate must be a", "got “2026-11-01”.")),
    Case("a number for a switch", "[loss]\nmask_truncated = 7\n", says=("Line 2, loss.mask_truncated = “7”: Mask truncated: Input should be a", "The value was “7”.")),
    Case("a learning rate below zero", "[optim]\nlearning_rate = -1.0\n", says=("Line 2, optim.learning_rate = “-1.0”: Learning rate must be above 0;", "got “-1.0”.")),
    Case("a learning rate of infinity", "[optim]\nlearning_rate = inf\n", says=("Line 2, optim.learning_rate = “inf”: Learning rate must be a number,", "got “inf”.")),
    Case("a learning rate that is no number", "[optim]\nlearning_rate = nan\n", says=("Line 2, optim.learning_rate = “nan”: Learning rate must be a number,", "got “nan”.")),
    Case("a count of zero", "[rollout]\ngroup_size = 0\n", says=("Line 2, rollout.group_size = “0”: Group size must be at least 1;", "got “0”.")),
    Case("a count beyond the integers", "[rollout]\ngroup_size = 9223372036854775808\n", says=("A number here is longer than any setting takes.", "Shorten it.")),
    Case("a choice of no meaning", "[loss]\nsurrogate = 'magic'\n", says=("Line 2, loss.surrogate = “magic”: Surrogate must be one of 'clip',", "got “magic”.")),
    Case("a clip turned round", "[loss]\nclip_low = 5.0\n", says=("Line 2, loss.clip_low = “5.0”: Clip low must be at most 1;", "got “5.0”.")),
    Case("a seed below zero", "seed = -1\n", says=("Line 1, seed = “-1”: Seed must be at least 0;", "got “-1”.")),
    Case("a rule of an unknown kind", "[[reward.recipe.rules]]\nname = 'a'\nkind = 'telepathy'\n", says=("Line 3, reward.recipe.rules.0.kind = “telepathy”: There is no rule of", "Choose one of: numeric_answer, exact_answer, marker_answer,", "Correct or remove it.")),
    Case("a recipe without rules", "[reward.recipe]\nrules = []\n", says=("Line 1, reward.recipe: A recipe needs at least one rule; got none.",)),
    Case("an evaluation set in a file", '[evaluation.sets]\nsecret = "/etc/shadow"\n', says=("Line 2, evaluation.sets.secret: Held-out sets are datasets, not files", "Add one named secret under Evaluation sets, or leave it out.")),
    Case("a file 2,000 tables long", "".join(f"[t{n}]\n" for n in range(2_000)), says=("Line 1, t0: There is no such setting.", "Remove it.", "Line 2, t1: There is no such setting.", "Line 3, t2: There is no such setting.")),
]  # fmt: skip
FORMS = [
    Case("a name of spaces", {"name": "  "}, says=("The run needs a name.",)),
    Case("a name without an end", {"name": "x" * 500}, says=("This name is too long: 500 of at most 80 characters.", "Shorten it.")),
    Case("a name of two lines", {"name": "a\nb"}, says=("The name 'a\\nb' holds a line break or another control character.", "Remove it.")),
    Case("a model above its folder", {"model_other": "../../model"}, says=("“../../model” is neither a folder (which starts with /) nor a hub id",)),
    Case("a model elsewhere", {"model_other": "https://example.org/model"}, says=("“https://example.org/model” is neither a folder (which starts with /)",)),
    Case("a model with a NUL", {"model_other": "org/mo\0del"}, says=("This holds a NUL character.", "Remove it.", "“org/mo\u0000del” is neither a folder (which starts with /) nor a hub id")),
    Case("a dataset that is a word", {"dataset": "sums"}, says=("Choose a dataset: its prompts are trained on.",)),
    Case("a dataset that is not there", {"dataset": "999999"}, says=("Choose a dataset: its prompts are trained on.",)),
    Case("a dataset beyond the database", {"dataset": "9" * 30}, says=("Choose a dataset: its prompts are trained on.",)),
    Case("a recipe that is not there", {"recipe": "-1"}, says=("Choose a reward: it scores the completions.",)),
    Case("a temperature in words", {"rollout.temperature": "warm"}, says=("Temperature must be a number, such as 0.5 or 1e-6;", "got “warm”.")),
    Case("a temperature of zero", {"rollout.temperature": "0"}, says=("Temperature must be above 0;", "got “0”.")),
    Case("a temperature of infinity", {"rollout.temperature": "1e999"}, says=("Temperature must be a number, such as 0.5 or 1e-6;", "got “1e999”.")),
    Case("a group of one half", {"rollout.group_size": "0.5"}, says=("Group size must be a whole number;", "got “0.5”.")),
    Case("a group in Arabic", {"rollout.group_size": "٤x"}, says=("Group size must be a whole number;", "got “٤x”.")),
    Case("a rate with a comma", {"optim.learning_rate": "1,5e-6"}, says=("Learning rate must be a number, such as 0.5 or 1e-6;", "got “1,5e-6”.")),
    Case("a rate in hexadecimal", {"optim.learning_rate": "0x1p-3"}, says=("Learning rate must be a number, such as 0.5 or 1e-6;", "got “0x1p-3”.")),
    Case("a schedule of no meaning", {"optim.schedule": "zigzag"}, says=("Schedule must be one of 'constant', 'linear' or 'cosine';", "got “zigzag”.")),
    Case("a step count of 5,000 digits", {"optim.num_steps": "9" * 5_000}, says=("Steps must be a whole number;", "got “999999999999999999999999999999999999999999999999999999999999…”.")),
    Case("a chat template left open", {"data.chat_template": "{% for m in messages %}"}, says=("Chat template must be one of 'auto' or 'none';", "got “{% for m in messages %}”.")),
    Case("a sweep over no setting", {"sweep-1-path": "colour", "sweep-1-values": "1,2"}, says=("Choose the setting that has the values “1,2”.",)),
    Case("a sweep over words", {"sweep-1-path": "optim.learning_rate", "sweep-1-values": "low,high"}, says=("With Learning rate low: Learning rate must be a number, such as 0.5", "got “low”.")),
    Case("an evaluation set without a name", {"eval-1-dataset": "1", "eval-1-name": ""}, says=("This dataset is in the trash or not there any more.", "Choose another, or remove the set.")),
]  # fmt: skip
LAUNCHES = [
    Case("no name", {"name": ""}, says=("The run needs a name.", "body.name: The run needs a name.")),
    Case("a name with a NUL", {"name": "a\0"}, says=("body: name: a text holds a NUL character, 'a\\x00';", "remove it body: name: a text holds a NUL character, 'a\\x00';", "remove it",)),
    Case("a dataset that is a word", {"dataset_version_id": "sums"}, says=("body.dataset_version_id: Input should be a valid integer, unable to", 'got "sums" body.dataset_version_id: Input should be a valid integer,', 'got "sums"',)),
    Case("a dataset of another team", {"dataset_version_id": 999_999}, says=("Choose a dataset: its prompts are trained on.", "body.dataset_version_id: Choose a dataset: its prompts are trained on.",)),
    Case("a recipe below one", {"recipe_version_id": 0}, says=("body.recipe_version_id: Input should be greater than or equal to 1;", "got 0 body.recipe_version_id: Input should be greater than or equal", "got 0",)),
    Case("a field of no meaning", {"colour": "red"}, says=("body.colour: Extra inputs are not permitted;", 'got "red" body.colour: Extra inputs are not permitted;', 'got "red"',)),
    Case("settings that are a text", {"settings": "fast"}, says=("body.settings: Input should be a valid dictionary;", 'got "fast" body.settings: Input should be a valid dictionary;', 'got "fast"',)),
    Case("a setting of no meaning", {"settings": {"optim.colour": "red"}}, says=("There is no setting 'optim.colour'.", "body.settings.optim.colour: There is no such setting.",)),
    Case("a setting of another type", {"settings": {"optim.num_steps": "many"}}, says=("Steps must be a whole number;", "got “many”.", "body.settings.optim.num_steps: Steps must be a whole number;",)),
    Case("a setting beyond its bound", {"settings": {"rollout.temperature": -1}}, says=("Temperature must be above 0;", "got “-1”.", "body.settings.rollout.temperature: Temperature must be above 0;",)),
    Case("a preset that is unknown", {"start": "preset-telepathy"}, says=('There is no preset "preset-telepathy".', "Choose one of: dapo, deepseekmath-outcome, deepseekmath-process,", 'body.start: There is no preset "preset-telepathy".',)),
]  # fmt: skip
QUERIES = [
    Case("a quote left open", 'name:"a', says=("This quote is never closed.", 'name: "a')),
    Case("a bracket left open", "(state:running", says=('This "(" is never closed.', "( state:running")),
    Case("a bracket too many", "state:running)", says=('There is no "(" before this ")".', "state:running )")),
    Case("brackets 50 deep", "(" * 50 + "a" + ")" * 50, says=("This is nested deeper than 20 levels.", "((((((((((((((((((((( (")),
    Case("a key of no meaning", "colour:red", says=("There is no key 'colour'.", "A setting is written config.colour, a metric colour.last (or best,", "colour :red",)),
    Case("a state of no meaning", "state:asleep", says=("There is no state 'asleep'.", "A state is active, ended, queued, starting, running, pausing, paused,", "state: asleep",)),
    Case("a comparison of a state", "state>running", says=("state is compared by = or !=;", "got >.", "state>running")),
    Case("a number that is a word", "step>many", says=("step is compared with a number;", "got 'many'.", "step> many")),
    Case("a number beyond floats", "step>1e999", says=("step is compared with a number;", "got '1e999'.", "step> 1e999")),
    Case("a number of 500 digits", "step>" + "9" * 500, says=("step is compared with a number;", "got", "step>")),
    Case("a day that is none", "started>2026-13-45", says=("started is compared with a day such as 2026-11-01, a moment such as", "got '2026-13-45'.", "started> 2026-13-45",)),
    Case("a day before all days", "started>0000-00-00", says=("started is compared with a day such as 2026-11-01, a moment such as", "got '0000-00-00'.", "started> 0000-00-00",)),
    Case("a span of no unit", "duration>5parsecs", says=("duration is compared with a span such as 90min, 2h or 1d;", "got '5parsecs'.", "duration> 5parsecs",)),
    Case("an operator alone", ">", says=("A key is missing before >, as in state>running.", "A text with such a character is written in quotes.", ">",)),
    Case("a word between nothing", "or", says=('"or" stands between two terms.', 'Write what comes before it, or "or" in quotes to look for the word.', "or",)),
    Case("a negation of nothing", "not", says=("Something to look for is missing here.", "not")),
    Case("a value left out", "owner:", says=("A value is missing behind owner:.", "owner:")),
    Case("two values for less", "step<1,2", says=("< compares with one value;", "got 2.", "step< 1,2")),
    Case("a query without an end", "a " * 5_000, says=("A query has at most 2,000 characters;", "this one has 9,999.", "a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a",)),
    Case("a metric without a figure", "reward/mean>1e", says=("reward/mean.last is compared with a number;", "got '1e'.", "reward/mean> 1e",)),
]  # fmt: skip
ASKED_OF_THE_API = [
    Case("a limit of zero", "runs?limit=0", says=("query.limit: Input should be greater than or equal to 1;", "got \"0\" query.limit: Input should be greater than or equal to 1;", "got \"0\"")),
    Case("a limit beyond all", "runs?limit=1000000000", says=("query.limit: Input should be less than or equal to 200;", "got \"1000000000\" query.limit: Input should be less than or equal to", "got \"1000000000\"")),
    Case("a limit that is a word", "runs?limit=many", says=("query.limit: Input should be a valid integer, unable to parse string", "got \"many\" query.limit: Input should be a valid integer, unable to", "got \"many\"")),
    Case("a cursor that was never given", "runs?cursor=abc", says=("This is no cursor: 'abc'.", "Send `next_cursor` of a page as it is, or none for the first page.", "query.cursor: This is no cursor: 'abc'.")),
    Case("a cursor that is forged", "runs?cursor=djE6OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk", says=("This is no cursor: 'djE6OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk'.", "Send `next_cursor` of a page as it is, or none for the first page.", "query.cursor: This is no cursor:")),
    Case("a query with a quote open", "runs?q=name:%22a", says=("This quote is never closed.", "(characters 6 to 7) query.q: This quote is never closed.", "(characters 6 to 7)")),
    Case("a run of number zero", "runs/0", says=("path.run_id: Input should be greater than or equal to 1;", "got \"0\" path.run_id: Input should be greater than or equal to 1;", "got \"0\"")),
    Case("a run that is a word", "runs/abc", says=("path.run_id: Input should be a valid integer, unable to parse string", "got \"abc\" path.run_id: Input should be a valid integer, unable to", "got \"abc\"")),
    Case("a run beyond the database", "runs/99999999999999999999", says=("path.run_id: Input should be less than or equal to", "got \"99999999999999999999\" path.run_id: Input should be less than or", "got \"99999999999999999999\"")),
    Case("a run that is not there", "runs/999999", status=404, says=("No such run.",)),
    Case("metrics from below zero", "runs/{run}/metrics?first_step=-1", says=("query.first_step: Input should be greater than or equal to 0;", "got \"-1\" query.first_step: Input should be greater than or equal to 0;", "got \"-1\"")),
    Case("metrics with too many points", "runs/{run}/metrics?names=loss&max_points=100000000", says=("The run has no metric 'loss'.", "query.names: The run has no metric 'loss'.")),
    Case("steps turned round", "runs/{run}/completions?first_step=9&last_step=1", says=("No step is at least 9 and at most 1.", "Swap the two, or leave one empty.", "query.last_step: No step is at least 9 and at most 1.")),
    Case("a step below zero", "runs/{run}/completions?first_step=-1", says=("query.first_step: Input should be greater than or equal to 0;", "got \"-1\" query.first_step: Input should be greater than or equal to 0;", "got \"-1\"")),
    Case("a reward that is no number", "runs/{run}/completions?min_reward=nan", says=("query.min_reward: Input should be a finite number;", "got \"nan\" query.min_reward: Input should be a finite number;", "got \"nan\"")),
    Case("a reward that is a word", "runs/{run}/completions?min_reward=high", says=("query.min_reward: Input should be a valid number, unable to parse", "got \"high\" query.min_reward: Input should be a valid number, unable", "got \"high\"")),
    Case("an order of no meaning", "runs/{run}/completions?sort=colour", says=("Select a valid choice.", "colour is not one of the available choices.", "query.sort: Select a valid choice.")),
    Case("a file of no meaning", "runs/{run}/files/secrets.txt", says=("path.file: Input should be 'metrics.csv', 'metrics.jsonl',", "got \"secrets.txt\" path.file: Input should be 'metrics.csv',", "got \"secrets.txt\"")),
    Case("a group that is not there", "runs/{run}/groups/99/99", says=("has no group of prompt 99 at 99.",), status=404),
    Case("an address that is not there", "colours", status=404, says=("There is no address /api/v1/colours.", "/api/v1/openapi.json has them all.")),
    Case("an address with a NUL", "runs/%00", status=404, says=("There is no such address: it holds a NUL character.",)),
]  # fmt: skip
ASKED_OF_PAGES = [
    Case("completions from a word on", "runs/{run}/completions/?first_step=one", says=("Enter a whole number.",)),
    Case("completions between turned ends", "runs/{run}/completions/?min_reward=2&max_reward=1", says=("No reward is at least 2.0 and at most 1.0.", "Swap the two, or leave one empty.")),
    Case("completions of a reward in words", "runs/{run}/completions/?min_reward=high", says=("Enter a number.",)),
    Case("completions of no end", "runs/{run}/completions/?end=tired", says=("Select a valid choice.", "tired is not one of the available choices.")),
    Case("completions by half a pattern", "runs/{run}/completions/?text=(a&match=regex", says=("Select a valid choice.", "regex is not one of the available choices.")),
    Case("completions of a prompt in words", "runs/{run}/completions/?prompt=first", says=("Enter a whole number.",)),
    Case("completions of a rule without a name", "runs/{run}/completions/?min_score=1", says=("Choose the rule whose score is meant.",)),
    Case("completions of a person unknown", "runs/{run}/completions/?by=nobody-at-all", says=("Select a valid choice.", "nobody-at-all is not one of the available choices.")),
    Case("prompts between turned ends", "runs/{run}/prompts/?first_step=9&last_step=1", says=("No step is at least 9 and at most 1.", "Swap the two, or leave one empty.")),
    Case("the audit log since a word", "audit-log/?since=yesterday", says=("Enter a valid date.",), status=400),
    Case("a sweep of one setting unknown", "sweep?runs={run}&of=colour&x=colour", says=("of: Select a valid choice.", "colour is not one of the available choices.", "The default is shown.")),
]  # fmt: skip
ASKED_BY_SCRIPTS = [
    Case("curves of no metric", "runs/{run}/curves.json", says=("{\"error\": \"metrics must name 1 to 200 metrics, separated by commas;", "got 0.\"}")),
    Case("curves with points in words", "runs/{run}/curves.json?metrics=loss&max_points=many", says=("{\"error\": \"max_points must be a whole number;", "got 'many'.\"}")),
    Case("curves of too many metrics", "runs/{run}/curves.json?metrics=" + ",".join(map(str, range(300))), says=("{\"error\": \"metrics must name 1 to 200 metrics, separated by commas;", "got 300.\"}")),
    Case("curves from below zero", "runs/{run}/curves.json?metrics=loss&first_step=-1", says=("{\"error\": \"first_step must be a whole number;", "got '-1'.\"}")),
    Case("a stream after a word", "runs/{run}/stream.json?after=now", says=("{\"error\": \"after must be a whole number of 0 or more;", "got 'now'.\"}")),
    Case("a stream after 5,000 digits", "runs/{run}/stream.json?after=" + "9" * 5_000, says=("{\"error\": \"after must be a whole number of 0 or more;", "got '9999999999999999999999999999999999999999'.\"}")),
    Case("a stream of an epoch below zero", "runs/{run}/stream.json?after=1&epoch=-1", says=("{\"error\": \"epoch must be a whole number of 0 or more;", "got '-1'.\"}")),
]  # fmt: skip
ACTS = [
    Case("a tag with a comma and a quote", ("runs/{run}/describe", {"name": "a", "tags": 'a"b'}), says=("A tag holds no comma, quote, backslash or control character;", "got '\"' in 'a\"b'.")),
    Case("tags without an end", ("runs/{run}/describe", {"name": "a", "tags": ",".join(map(str, range(500)))}), says=("A run has at most 20 tags;", "got 500.")),
    Case("a name that is empty", ("runs/{run}/describe", {"name": "", "tags": ""}), says=("Nothing was changed: a name has 1 to 80 characters;", "got 0.")),
    Case("notes without an end", ("runs/{run}/describe", {"name": "a", "notes": "x" * 300_000}), says=("Nothing was changed: notes have at most 20,000 characters;", "got 300,000.")),
    Case("nothing ticked", ("runs/act", {"action": "star"}), says=("Nothing was done.", "No run was ticked.", "Tick one, or choose all that match.")),
    Case("a deed of no meaning", ("runs/act", {"action": "paint", "run": "{run}"}), says=("Nothing was done.", "No run was ticked.", "Tick one, or choose all that match.")),
    Case("a view without a name", ("runs/views/", {"name": "", "query": "q=a"}), says=("The view was not saved.", "A view needs a name.", "Type one.")),
    Case("a view without an end", ("runs/views/", {"name": "x" * 500, "query": "q=a"}), says=("The view was not saved.", "A view's name has at most 60 characters;", "got 500.")),
    Case("more steps in words", ("runs/{run}/change/", {"num_steps": "many"}), says=("The last step must be a whole number;", "got 'many'.")),
    Case("a priority of no meaning", ("runs/{run}/priority", {"priority": "huge"}), says=("A priority is low, normal, high;", "got 'huge'.")),
    Case("a move of no meaning", ("runs/{run}/move", {"where": "sideways"}), says=("A run moves to the front, up or down;", "got 'sideways'.", "No worker is alive that takes new runs.", "Start one beside the server with make run , or on another machine")),
    Case("a comment without an end", ("runs/{run}/groups/1/0/marks/", {"position": "0", "comment": "x" * 100_000}), says=("A comment has 4,000 characters at most;", "this one has 100,000.", "Shorten it.")),
]  # fmt: skip
DOORS = [
    Door("a launch's TOML", send_toml, TOMLS, leaves=Run.objects.count, is_slow=True),
    Door("a launch's fields", send_form, FORMS, leaves=Run.objects.count, is_slow=True),
    Door("a launch by the API", send_launch, LAUNCHES, leaves=Run.objects.count),
    Door("the run table's queries", ask_list, QUERIES, status=200),
    Door("parameters of the API", ask_api, ASKED_OF_THE_API),
    Door("parameters of pages", ask_page, ASKED_OF_PAGES, status=200),
    Door("parameters of scripts", ask_script, ASKED_BY_SCRIPTS, status=400),
    Door("deeds on runs", act, ACTS, status=200, leaves=SavedView.objects.count),
]
