"""Settings of runs as fields and as TOML, and actions by URL."""

from typing import Any

from dashboard.runs.models import Run, SavedView
from tests.dashboard.runs.launching import make_dataset, make_recipe
from tests.inputs.cases import (
    Case,
    Endpoint,
    Response,
    World,
    message_of_page,
    message_of_problem,
    shown_as_text,
)


def send_toml(world: World, text: str) -> Response:
    make_dataset(world.team, "toml"), make_recipe(world.team, "toml")
    address = "/alpha/runs/new/from-toml"
    answer = world.client.post(address, {"toml": text})
    response = message_of_page(answer, sees_hidden=True)
    return Response(
        response.status, response.message.partition("The TOML holds changes")[0]
    )


def send_form(world: World, changes: dict[str, str]) -> Response:
    least = {
        "name": "brave-otter",
        "model_other": "org/model",
        "dataset": make_dataset(world.team, "form").pk,
        "recipe": make_recipe(world.team, "form").pk,
    }
    return message_of_page(world.client.post("/alpha/runs/new", least | changes))


def send_launch(world: World, changes: dict[str, Any]) -> Response:
    tree = {
        "name": "brave-otter",
        "model": "org/model",
        "dataset_version_id": make_dataset(world.team, "api").pk,
        "recipe_version_id": make_recipe(world.team, "api").pk,
        **changes,
    }
    return message_of_problem(world.program.post("/launches", tree))


def ask_list(world: World, query: str) -> Response:
    return message_of_page(world.client.get("/alpha/runs/", {"q": query}))


def ask_api(world: World, query: str) -> Response:
    return message_of_problem(world.program.get(f"/{query.format(run=world.run.pk)}"))


def ask_page(world: World, path: str) -> Response:
    address = f"/alpha/{path.format(run=world.run.pk)}"
    return message_of_page(world.client.get(address))


def ask_script(world: World, path: str) -> Response:
    address = f"/alpha/{path.format(run=world.run.pk)}"
    return shown_as_text(world.client.get(address))


def act(world: World, sent: tuple[str, dict[str, Any]]) -> Response:
    path, data = sent
    address = f"/alpha/{path.format(run=world.run.pk)}"
    return message_of_page(world.client.post(address, data, follow=True))


TOMLS = [
    Case("no TOML", "seed 1"),
    Case("a table left open", "[optim\n"),
    Case("a key that is there twice", "seed = 1\nseed = 2\n"),
    Case("a table that is there twice", "[optim]\n[optim]\n"),
    Case("a value left out", "seed =\n"),
    Case("a text left open", 'name = "a\n'),
    Case("a control character", 'seed = "\x01"\n'),
    Case("a NUL", "seed = 1\0\n"),
    Case("a key of no meaning", "[optim]\ncolour = 'red'\n"),
    Case("a table of no meaning", "[paint]\ncolour = 'red'\n"),
    Case("a word for a number", "[optim]\nnum_steps = 'many'\n"),
    Case("a fraction for a count", "[optim]\nnum_steps = 1.5\n"),
    Case("a number for a table", "optim = 5\n"),
    Case("a list for a number", "[optim]\nlearning_rate = [1e-6]\n"),
    Case("a table for a number", "[optim.learning_rate]\nx = 1\n"),
    Case("a date for a number", "[optim]\nlearning_rate = 2026-11-01\n"),
    Case("a number for a switch", "[loss]\nmask_truncated = 7\n"),
    Case("a learning rate below zero", "[optim]\nlearning_rate = -1.0\n"),
    Case("a learning rate of infinity", "[optim]\nlearning_rate = inf\n"),
    Case("a learning rate that is no number", "[optim]\nlearning_rate = nan\n"),
    Case("a count of zero", "[rollout]\ngroup_size = 0\n"),
    Case("a count beyond the integers", "[rollout]\ngroup_size = 9223372036854775808\n"),
    Case("a choice of no meaning", "[loss]\nsurrogate = 'magic'\n"),
    Case("a clip turned round", "[loss]\nclip_low = 5.0\n"),
    Case("a seed below zero", "seed = -1\n"),
    Case("a rule of an unknown kind", "[[reward.recipe.rules]]\nname = 'a'\nkind = 'telepathy'\n"),
    Case("a recipe without rules", "[reward.recipe]\nrules = []\n"),
    Case("an evaluation set in a file", '[evaluation.sets]\nsecret = "/etc/shadow"\n'),
    Case("a number of 5,000 digits", "seed = " + "9" * 5_000 + "\n"),
    Case("a number of 5,000 digits in hexadecimal", "seed = 0x" + "f" * 5_000 + "\n"),
    Case("lists 100,000 deep", "seed = " + "[" * 100_000),
    Case("tables 5,000 deep", "seed = " + "{a = " * 5_000),
    Case("a month of thirteen", "seed = 2026-13-01\n"),
    Case("two byte order marks", "\ufeff\ufeffseed = 1\n"),
    Case("a file 2,000 tables long", "".join(f"[t{n}]\n" for n in range(2_000))),
]  # fmt: skip
FORMS = [
    Case("a name of spaces", {"name": "  "}),
    Case("a name without an end", {"name": "x" * 500}),
    Case("a name of two lines", {"name": "a\nb"}),
    Case("a model above its folder", {"model_other": "../../model"}),
    Case("a model elsewhere", {"model_other": "https://example.org/model"}),
    Case("a model with a NUL", {"model_other": "org/mo\0del"}),
    Case("a dataset that is a word", {"dataset": "sums"}),
    Case("a dataset that is not there", {"dataset": "999999"}),
    Case("a dataset beyond the database", {"dataset": "9" * 30}),
    Case("a recipe that is not there", {"recipe": "-1"}),
    Case("a temperature in words", {"rollout.temperature": "warm"}),
    Case("a temperature of zero", {"rollout.temperature": "0"}),
    Case("a temperature of infinity", {"rollout.temperature": "1e999"}),
    Case("a group of one half", {"rollout.group_size": "0.5"}),
    Case("a group in Arabic", {"rollout.group_size": "٤x"}),
    Case("a rate with a comma", {"optim.learning_rate": "1,5e-6"}),
    Case("a rate in hexadecimal", {"optim.learning_rate": "0x1p-3"}),
    Case("a schedule of no meaning", {"optim.schedule": "zigzag"}),
    Case("a step count of 5,000 digits", {"optim.num_steps": "9" * 5_000}),
    Case("a chat template left open", {"data.chat_template": "{% for m in messages %}"}),
    Case("a sweep over no setting", {"sweep-1-path": "colour", "sweep-1-values": "1,2"}),
    Case("a sweep over words", {"sweep-1-path": "optim.learning_rate", "sweep-1-values": "low,high"}),
    Case("an evaluation set without a name", {"eval-1-dataset": "1", "eval-1-name": ""}),
]  # fmt: skip
LAUNCHES = [
    Case("no name", {"name": ""}),
    Case("a name with a NUL", {"name": "a\0"}),
    Case("a dataset that is a word", {"dataset_version_id": "sums"}),
    Case("a dataset of another team", {"dataset_version_id": 999_999}),
    Case("a recipe below one", {"recipe_version_id": 0}),
    Case("a field of no meaning", {"colour": "red"}),
    Case("settings that are a text", {"settings": "fast"}),
    Case("a setting of no meaning", {"settings": {"optim.colour": "red"}}),
    Case("a setting of another type", {"settings": {"optim.num_steps": "many"}}),
    Case("a setting beyond its bound", {"settings": {"rollout.temperature": -1}}),
    Case("a preset that is unknown", {"start": "preset-telepathy"}),
]  # fmt: skip
QUERIES = [
    Case("a quote left open", 'name:"a'),
    Case("a bracket left open", "(state:running"),
    Case("a bracket too many", "state:running)"),
    Case("brackets 50 deep", "(" * 50 + "a" + ")" * 50),
    Case("a key of no meaning", "colour:red"),
    Case("a state of no meaning", "state:asleep"),
    Case("a comparison of a state", "state>running"),
    Case("a number that is a word", "step>many"),
    Case("a number beyond floats", "step>1e999"),
    Case("a number of 500 digits", "step>" + "9" * 500),
    Case("a day that is none", "started>2026-13-45"),
    Case("a day before all days", "started>0000-00-00"),
    Case("a span of no unit", "duration>5parsecs"),
    Case("an operator alone", ">"),
    Case("a word between nothing", "or"),
    Case("a negation of nothing", "not"),
    Case("a value left out", "owner:"),
    Case("two values for less", "step<1,2"),
    Case("a query without an end", "a " * 5_000),
    Case("a metric without a figure", "reward/mean>1e"),
]  # fmt: skip
ASKED_OF_THE_API = [
    Case("a limit of zero", "runs?limit=0"),
    Case("a limit beyond all", "runs?limit=1000000000"),
    Case("a limit that is a word", "runs?limit=many"),
    Case("a cursor that was never given", "runs?cursor=abc"),
    Case("a cursor that is forged", "runs?cursor=djE6OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk"),
    Case("a query with a quote open", "runs?q=name:%22a"),
    Case("a run of number zero", "runs/0"),
    Case("a run that is a word", "runs/abc"),
    Case("a run beyond the database", "runs/99999999999999999999"),
    Case("a run that is not there", "runs/999999", status=404),
    Case("metrics from below zero", "runs/{run}/metrics?first_step=-1"),
    Case("metrics with too many points", "runs/{run}/metrics?names=loss&max_points=100000000"),
    Case("steps turned round", "runs/{run}/completions?first_step=9&last_step=1"),
    Case("a step below zero", "runs/{run}/completions?first_step=-1"),
    Case("a reward that is no number", "runs/{run}/completions?min_reward=nan"),
    Case("a reward that is a word", "runs/{run}/completions?min_reward=high"),
    Case("an order of no meaning", "runs/{run}/completions?sort=colour"),
    Case("a file of no meaning", "runs/{run}/files/secrets.txt"),
    Case("a group that is not there", "runs/{run}/groups/99/99", status=404),
    Case("an address that is not there", "colours", status=404),
    Case("an address with a NUL", "runs/%00", status=404),
]  # fmt: skip
ASKED_OF_PAGES = [
    Case("completions from a word on", "runs/{run}/completions/?first_step=one"),
    Case("completions between turned ends", "runs/{run}/completions/?min_reward=2&max_reward=1"),
    Case("completions of a reward in words", "runs/{run}/completions/?min_reward=high"),
    Case("completions of no end", "runs/{run}/completions/?end=tired"),
    Case("completions by half a pattern", "runs/{run}/completions/?text=(a&match=regex"),
    Case("completions of a prompt in words", "runs/{run}/completions/?prompt=first"),
    Case("completions of a rule without a name", "runs/{run}/completions/?min_score=1"),
    Case("completions of a person unknown", "runs/{run}/completions/?by=nobody-at-all"),
    Case("prompts between turned ends", "runs/{run}/prompts/?first_step=9&last_step=1"),
    Case("the audit log since a word", "audit-log/?since=yesterday", status=400),
    Case("a board with a NUL", "runs/{run}/metrics/?board=%00", status=404),
    Case("a sweep of one setting unknown", "sweep?runs={run}&of=colour&x=colour"),
]  # fmt: skip
ASKED_BY_SCRIPTS = [
    Case("curves of no metric", "runs/{run}/curves.json"),
    Case("curves with points in words", "runs/{run}/curves.json?metrics=loss&max_points=many"),
    Case("curves of too many metrics", "runs/{run}/curves.json?metrics=" + ",".join(map(str, range(300)))),
    Case("curves from below zero", "runs/{run}/curves.json?metrics=loss&first_step=-1"),
    Case("a stream after a word", "runs/{run}/stream.json?after=now"),
    Case("a stream after 5,000 digits", "runs/{run}/stream.json?after=" + "9" * 5_000),
    Case("a stream of an attempt below zero", "runs/{run}/stream.json?after=1&attempt=-1"),
]  # fmt: skip
ACTS = [
    Case("a tag with a comma and a quote", ("runs/{run}/describe", {"name": "a", "tags": 'a"b'})),
    Case("tags without an end", ("runs/{run}/describe", {"name": "a", "tags": ",".join(map(str, range(500)))})),
    Case("a name that is empty", ("runs/{run}/describe", {"name": "", "tags": ""})),
    Case("notes without an end", ("runs/{run}/describe", {"name": "a", "notes": "x" * 300_000})),
    Case("nothing ticked", ("runs/act", {"action": "star"})),
    Case("a deed of no meaning", ("runs/act", {"action": "paint", "run": "{run}"})),
    Case("a view without a name", ("runs/views/", {"name": "", "query": "q=a"})),
    Case("a view without an end", ("runs/views/", {"name": "x" * 500, "query": "q=a"})),
    Case("a board without charts", ("runs/views/", {"name": "a", "run": "1", "address": "x=time"})),
    Case("more steps in words", ("runs/{run}/change/", {"num_steps": "many"})),
    Case("a priority of no meaning", ("runs/{run}/priority", {"priority": "huge"})),
    Case("a move of no meaning", ("runs/{run}/move", {"where": "sideways"})),
    Case("a comment without an end", ("runs/{run}/groups/1/0/marks/", {"position": "0", "comment": "x" * 100_000})),
    Case("a comment that is a NUL", ("runs/{run}/comments", {"comment": "\0"})),
    Case("a comment to delete that is no number", ("runs/{run}/comments", {"uncomment": "9" * 5_000})),
]  # fmt: skip
ENDPOINTS = [
    Endpoint("a launch's TOML", send_toml, TOMLS, leaves=Run.objects.count),
    Endpoint("a launch's fields", send_form, FORMS, leaves=Run.objects.count),
    Endpoint("a launch by the API", send_launch, LAUNCHES, leaves=Run.objects.count),
    Endpoint("the run table's queries", ask_list, QUERIES, status=200),
    Endpoint("parameters of the API", ask_api, ASKED_OF_THE_API),
    Endpoint("parameters of pages", ask_page, ASKED_OF_PAGES, status=200),
    Endpoint("parameters of scripts", ask_script, ASKED_BY_SCRIPTS, status=400),
    Endpoint("deeds on runs", act, ACTS, status=200, leaves=SavedView.objects.count),
]
