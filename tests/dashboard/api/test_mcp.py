"""POST /mcp: messages, guards and tools, without a server."""

import json
import re
import shutil
from unittest.mock import ANY

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.accounts.models import AuditEntry
from dashboard.api.mcp import writing
from dashboard.api.mcp.limits import Listing, write_answer
from dashboard.api.mcp.tools import TOOLS, _schema
from dashboard.completions.models import GroupTokens, Tag
from dashboard.completions.tokens import pack_tokens
from dashboard.project.errors import UserError
from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import run_directory
from tests.dashboard.analysis.questions.factories import make_judge
from tests.dashboard.api.asking import make_token
from tests.dashboard.api.rows_of_tools import make_things, rows_of_tools
from tests.dashboard.completions.factories import make_group, make_run, make_steps
from tests.dashboard.runs.launching import make_dataset, make_recipe
from tests.dashboard.supervision.logs import measured
from tests.dashboard.supervision.test_forking_a_run import keep

pytestmark = pytest.mark.django_db
NEWEST = "2026-07-28"
WRITING = {"launch_run", "control_run", "ask_completions", "rescore_run"}


class Assistant:
    def __init__(self, token):
        self.client = Client(raise_request_exception=False)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def send(self, body, path="/mcp", **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        text = body if isinstance(body, str | bytes) else json.dumps(body)
        return self.client.post(
            path, text, "application/json", headers=self.headers | named
        )

    def ask(self, method, **params):
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return self.send(message).json()

    def call(self, tool, **arguments):
        result = self.ask("tools/call", name=tool, arguments=arguments)["result"]
        text = result["content"][0]["text"]
        return text if result["isError"] else json.loads(text)


@pytest.fixture
def assistant(alice):
    return Assistant(make_token(alice, "write"))


@pytest.fixture
def reader(alice):
    return Assistant(make_token(alice, "read"))


def message(method="ping", **params):
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


# Messages.


def test_older_client_gets_its_version_and_no_session(assistant):
    response = assistant.send(message("initialize", protocolVersion="2025-03-26"))

    assert response.json()["result"]["protocolVersion"] == "2025-03-26"
    assert "Mcp-Session-Id" not in response.headers


def test_unknown_version_gets_our_newest_with_a_handshake(assistant):
    result = assistant.ask("initialize", protocolVersion="2030-01-01")["result"]

    assert result["protocolVersion"] == "2025-11-25"


def test_notification_is_accepted_without_a_body(assistant):
    response = assistant.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    assert (response.status_code, response.content) == (202, b"")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ("{", 400, -32700),
        ('{"jsonrpc": "2.0", "id": NaN, "method": "ping"}', 400, -32700),
        ('{"jsonrpc": "2.0", "id": 1e400, "method": "ping"}', 400, -32600),
        ('{"jsonrpc": "2.0", "id": true, "method": "ping"}', 400, -32600),
        ("[" * 100_000, 400, -32700),
        ([message()], 400, -32600),
        ({"id": 1, "method": "ping"}, 400, -32600),
        (message() | {"params": [1]}, 400, -32600),
        (message("nothing/such"), 200, -32601),
        (message("tools/call", name="nothing_such"), 200, -32602),
        (message("prompts/get", name="nothing_such"), 200, -32602),
    ],
)
def test_malformed_message_gets_a_code(assistant, body, status, code):
    response = assistant.send(body)

    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


def stateless(method, version=NEWEST, **params):
    meta = {"io.modelcontextprotocol/protocolVersion": version}
    return message(method, _meta=meta, **params)


def test_stateless_client_gets_lists_that_it_may_keep(assistant):
    response = assistant.send(
        stateless("tools/list"), Mcp_Protocol_Version=NEWEST, Mcp_Method="tools/list"
    )

    result = response.json()["result"]
    assert (result["resultType"], result["cacheScope"]) == ("complete", "private")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Mcp_Protocol_Version": NEWEST, "Mcp_Method": "ping"}, -32020),
        ({"Mcp_Protocol_Version": NEWEST, "Mcp_Method": "tools/call"}, -32020),
        ({"Mcp_Method": "tools/call", "Mcp_Name": "find_runs"}, -32020),
        ({"Mcp_Protocol_Version": "2031-01-01"}, -32022),
    ],
)
def test_headers_that_differ_from_the_body_are_refused(assistant, headers, code):
    body = stateless("tools/call", name="find_runs", arguments={})

    response = assistant.send(body, **headers)

    assert (response.status_code, response.json()["error"]["code"]) == (400, code)


@pytest.mark.parametrize(
    ("method", "params", "status", "code"),
    [
        ("nothing/such", {}, 404, -32601),
        ("tools/call", {"name": "nothing_such"}, 400, -32602),
    ],
)
def test_a_stateless_client_gets_the_status_of_its_fault(
    assistant, method, params, status, code
):
    headers = {"Mcp_Protocol_Version": NEWEST, "Mcp_Method": method}

    response = assistant.send(
        stateless(method, **params), **headers, Mcp_Name=params.get("name", "")
    )

    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


# Guards.


def test_no_token_gets_401(db):
    response = Assistant("").send(message())

    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"].startswith("Bearer")


def test_session_cookie_authenticates_nothing(alice_client):
    response = alice_client.post("/mcp", json.dumps(message()), "application/json")

    assert response.status_code == 401


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_other_methods_get_405(assistant, path, method):
    response = assistant.client.generic(method, path, headers=assistant.headers)

    assert (response.status_code, response.headers["Allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://testserver", 200),
        ("http://evil.example", 403),
        ("http://testserver:81", 403),
        ("null", 403),
        ("http://[", 403),
    ],
)
def test_only_the_servers_own_origin_may_ask(assistant, origin, status):
    assert assistant.send(message(), Origin=origin).status_code == status


def test_foreign_host_gets_400(assistant):
    assert assistant.send(message(), Host="evil.example").status_code == 400


def test_long_message_gets_413(assistant):
    assert assistant.send(" " * (2**20 + 1)).status_code == 413


@pytest.mark.parametrize(
    "path",
    [
        "/.well-known/oauth-authorization-server",
        "/.well-known/oauth-authorization-server/mcp",
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/openid-configuration",
        "/register",
        "/token",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_oauth_probe_gets_404_in_json(db, path, method):
    response = Client(enforce_csrf_checks=True).generic(method, path)

    assert (response.status_code, response.json()) == (404, {"error": "not_found"})


def test_unknown_address_gets_json_only_if_asked_for(db):
    program = Client().get("/no/such", headers={"Accept": "application/json"})
    browser = Client().get("/no/such", headers={"Accept": "text/html, */*"})

    assert (program.status_code, program.json()) == (404, {"error": "not_found"})
    assert browser.headers["Content-Type"].startswith("text/html")


@pytest.mark.parametrize("scope", ["read", "write", "ingest"])
def test_call_needs_the_scope_of_its_tool(alice, scope):
    program = Assistant(make_token(alice, scope))
    allowed = {
        "read": TOOLS.keys() - WRITING,
        "write": TOOLS.keys(),
        "ingest": set(),
    }[scope]

    listed = {tool["name"] for tool in program.ask("tools/list")["result"]["tools"]}
    answers = {name: program.call(name, nothing_such=1) for name in TOOLS}

    assert listed == allowed
    for name, text in answers.items():
        code = "invalid" if name in allowed else "tokens.scope_missing"
        assert text.startswith(f"{code}: "), (name, text)


@pytest.mark.parametrize("scope", ["ingest"])
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/read", {"uri": "cohort://help/launch"}),
        ("resources/list", {}),
        ("prompts/list", {}),
    ],
)
def test_resources_need_the_scope_read(alice, scope, method, params):
    assert "error" in Assistant(make_token(alice, scope)).ask(method, **params)


@pytest.fixture
def theirs(charlie):
    return make_things(charlie.memberships.get().team, charlie, "hidden")


def test_each_tool_answers_its_own_team(charlie, theirs):
    """The rows are valid, so that another team is refused for no other reason."""
    own = Assistant(make_token(charlie, "write"))

    answers = {f"{tool} {given}": own.call(tool, **given)
               for tool, given in rows_of_tools(theirs)}  # fmt: skip

    assert [text for text in answers.items() if isinstance(text[1], str)] == []
    assert {tool for tool, _ in rows_of_tools(theirs)} == TOOLS.keys()


@pytest.mark.parametrize("scope", ["read", "write", "ingest"])
def test_no_tool_tells_another_team(alice, team, theirs, scope):
    program = Assistant(make_token(alice, scope))
    own = make_things(team, alice, "shown")
    # A thing of the other team beside one's own, too.
    mixed = [
        row
        for kind in ("dataset", "recipe")
        for row in rows_of_tools(own | {kind: theirs[kind]})
        if row[1].get(kind)
    ]
    rows = [
        *rows_of_tools(theirs),
        *mixed,
        ("compare_runs", {"runs": [own["run"], theirs["run"]]}),
        ("find_runs", {"query": "name = hidden"}),
        ("list_inputs", {"kind": "dataset", "query": "hidden"}),
    ]
    uris = [f"cohort://runs/{theirs['run']}/{name}" for name in ("config.toml", "log")]

    texts = [json.dumps(program.call(tool, **given)) for tool, given in rows]
    texts += [program.send(message("resources/read", uri=uri)).text for uri in uris]

    assert [text for text in texts if "hidden" in text or "Other" in text] == []


def test_no_tool_acts_on_another_teams_things(assistant, theirs):
    lists = {"find_runs", "list_inputs"}
    rows = [row for row in rows_of_tools(theirs) if row[0] not in lists]

    texts = {f"{tool} {given}": assistant.call(tool, **given) for tool, given in rows}

    assert [name for name, text in texts.items() if not isinstance(text, str)] == []


# Sizes.


def test_list_of_tools_is_short(assistant):
    tools = assistant.ask("tools/list")["result"]["tools"]

    assert len(json.dumps(tools)) <= 12_000
    assert max(len(tool["description"]) for tool in tools) <= 400
    assert all(_schema(name)["type"] == "object" for name in TOOLS)


def test_listing_continues_where_it_was_cut(assistant, team):
    for number in range(30):
        make_run(team, f"run-{number}", tags=["t" * 40])

    found, cursor = [], ""
    while cursor is not None:
        answer = assistant.call("find_runs", cursor=cursor, limit=13, max_chars=1_500)
        found += [run["name"] for run in answer["runs"]]
        cursor = answer["next"]

    assert found == [f"run-{number}" for number in reversed(range(30))]


@pytest.mark.parametrize("cursor", ["x", "dg.x", ".9999999", "dg.1", "%%.1"])
def test_wrong_cursor_is_refused(reader, cursor):
    assert reader.call("find_runs", cursor=cursor).startswith("invalid: ")


def test_answer_of_many_small_values_is_cut_to_valid_json():
    text = write_answer({"rows": [{"a": n} for n in range(10_000)]}, 2_000)

    answer = json.loads(text)
    assert len(text) <= 2_000
    assert len(answer["rows"]) + answer["cut_lists"]["rows"] == 10_000
    assert "num_left_out" not in answer


def test_only_items_count_as_left_out():
    items = [{"text": "x" * 300, "rules": dict.fromkeys(map(str, range(200)), 0)}] * 3
    listing = Listing(name="items", items=items, start=0, limit=3)

    answer = json.loads(write_answer(listing, 1_000))

    (item,) = answer["items"]
    assert answer["num_left_out"] == 2
    assert answer["cut_lists"] == {"items.rules": 200 - len(item["rules"])}
    assert answer["next"] == ".1"


def test_columns_of_one_table_are_cut_together():
    columns = {"steps": list(range(500)), "values": [0.123] * 500}

    answer = json.loads(write_answer({"series": columns, "names": ["a"]}, 1_500))

    steps, values = answer["series"]["steps"], answer["series"]["values"]
    assert len(steps) == len(values) < 500
    assert answer["names"] == ["a"]


# Reading.


def test_thinned_metric_keeps_a_spike(assistant, team):
    run = make_run(team)
    make_steps(run, {"reward/mean": [0.5] * 240 + [9.0] + [0.5] * 159})

    series = assistant.call("get_metrics", run=run.pk, names=["reward/mean"], points=4)[
        "series"
    ]["reward/mean"]

    assert len(series["steps"]) <= 4
    assert max(series["high"]) == 9.0
    assert (series["low"][0], series["steps"][-1]) == (0.5, 400)


def test_unknown_metric_gets_its_neighbours(assistant, team):
    run = make_run(team)
    make_steps(run, {"reward/mean": [0.5] * 3})

    answer = assistant.call("get_metrics", run=run.pk, names=["reward/maen"])

    assert answer["unknown_names"] == {"reward/maen": ["reward/mean"]}


def test_many_metrics_in_a_short_answer_are_refused(assistant, team):
    run = make_run(team)
    names = [f"reward/{number}/mean" for number in range(8)]
    make_steps(run, dict.fromkeys(names, [-1.2345e-10] * 50))

    few = assistant.call("get_metrics", run=run.pk, names=names[:2], max_chars=1_000)
    many = assistant.call("get_metrics", run=run.pk, names=names, max_chars=1_000)

    columns = few["series"][names[1]]
    assert len(columns["steps"]) == len(columns["low"]) >= 2
    assert "cut_lists" not in few
    assert many.startswith("invalid: names: ")


@pytest.mark.parametrize(
    ("argument", "name", "nearest"),
    [("rule", "anser", "answer"), ("tag", "reward hack", "reward-hack")],
)
def test_unknown_rule_or_tag_gets_its_neighbours(
    assistant, team, alice, argument, name, nearest
):
    run = make_run(team)
    group = make_group(run)
    Tag.objects.create(group=group, position=0, user=alice, name="reward-hack")

    wrong = assistant.call("search_completions", run=run.pk, **{argument: name})
    right = assistant.call("search_completions", run=run.pk, **{argument: nearest})

    assert wrong.startswith(f"completions.unknown_{argument}: {argument}: ")
    assert nearest in wrong
    assert right["num_found"] >= 1


def test_tag_of_a_run_without_tags_is_refused(assistant, team):
    run = make_run(team)
    make_group(run)

    wrong = assistant.call("search_completions", run=run.pk, tag="x")

    assert wrong.startswith("completions.unknown_tag: ")


def test_tokens_of_one_completion_have_log_probs(assistant, team):
    run = make_run(team)
    group = make_group(run, rewards=(1.2, 0.2), texts=["a b", "c d"])
    tokens = [measured("a", " b", logprob=[-0.5, -1.25]),
              measured("c", " d", logprob=[-2.0, -3.0])]  # fmt: skip
    GroupTokens.objects.create(group=group, packed=pack_tokens(tokens))
    arguments = {"run": run.pk, "sort": "reward", "tokens": True, "limit": 5}

    first = assistant.call("search_completions", **arguments)
    second = assistant.call("search_completions", **arguments, cursor=first["next"])

    (worst,), (best,) = first["items"], second["items"]
    assert worst["tokens"] == {"text": ["c", " d"], "logprob": [-2.0, -3.0]}
    assert best["tokens"] == {"text": ["a", " b"], "logprob": [-0.5, -1.25]}
    assert second["next"] is None


def test_tokens_that_are_not_stored_get_404(assistant, team):
    run = make_run(team)
    make_group(run)

    text = assistant.call("search_completions", run=run.pk, tokens=True)

    assert text.startswith("not_found: ")


def test_each_reading_tool_answers(assistant, team):
    run, other = make_run(team, "a"), make_run(team, "b")
    for each in (run, other):
        make_steps(each, {"reward/mean": [step / 30 for step in range(30)]})
        make_group(each, step=1)

    assert assistant.call("get_run", run=run.pk)["verdict"]
    assert assistant.call("find_runs", query="name = a")["num_found"] == 1
    compared = assistant.call("compare_runs", runs=[run.pk, other.pk])
    assert len(compared["sets"]) == 2
    audited = assistant.call("get_analysis", kind="audit", id=run.pk)
    assert audited["findings"]
    for kind in ("preset", "model", "dataset", "recipe", "rule_kind", "setting"):
        assert "items" in assistant.call("list_inputs", kind=kind), kind


def test_prompt_appears_once_a_group(assistant, team):
    run = make_run(team)
    make_group(run, rewards=(1.2, 0.2), texts=["a", "b"])

    items = assistant.call("search_completions", run=run.pk)["items"]

    assert ["prompt_text" in item for item in items] == [True, False]


def test_help_page_and_prompt_are_read(reader):
    page = reader.ask("resources/read", uri="cohort://help/launch")["result"]
    prompt = reader.ask("prompts/get", name="diagnose_run", arguments={"run": "7"})

    assert page["contents"][0]["text"].startswith("#")
    text = prompt["result"]["messages"][0]["content"]["text"]
    assert "run 7" in text
    assert len(text.split()) <= 120


def test_runs_settings_are_a_resource(reader, team):
    run = make_run(team)

    uri = f"cohort://runs/{run.pk}/config.toml"
    result = reader.ask("resources/read", uri=uri)["result"]

    assert "num_steps" in result["contents"][0]["text"]


@pytest.mark.parametrize(
    "uri", ["cohort://help/../api", "file:///etc/passwd", "cohort://runs/9/log"]
)
def test_unknown_resource_is_an_error(reader, uri):
    assert reader.ask("resources/read", uri=uri)["error"]["code"] == -32602


# Changing.


def test_control_needs_the_dry_run_of_what_is_there_now(assistant, team):
    run = make_run(team, state=RunState.QUEUED)
    arguments = {"run": run.pk, "do": "stop"}

    dry = assistant.call("control_run", **arguments)
    assert dry["state_after"] == "stopped"
    run.refresh_from_db()
    assert run.state == RunState.QUEUED

    missing = assistant.call("control_run", **arguments, dry_run=False)
    other = assistant.call(
        "control_run", run=run.pk, do="cancel", dry_run=False, confirm=dry["confirm"]
    )
    Run.objects.filter(pk=run.pk).update(attempt=5)
    late = assistant.call(
        "control_run", **arguments, dry_run=False, confirm=dry["confirm"]
    )

    assert missing.startswith("mcp.confirm_required: ")
    assert other.startswith("mcp.changed: ")
    assert late.startswith("mcp.changed: ")
    run.refresh_from_db()
    assert run.state == RunState.QUEUED


def test_control_is_done_once_and_written_down(assistant, team):
    run = make_run(team, state=RunState.QUEUED)
    dry = assistant.call("control_run", run=run.pk, do="stop")
    again = {"run": run.pk, "do": "stop", "dry_run": False, "confirm": dry["confirm"]}

    first = assistant.call("control_run", **again)
    second = assistant.call("control_run", **again)

    assert first["state"] == second["state"] == "stopped"
    assert second["is_repeated"]
    entry = AuditEntry.objects.get(verb="run.stop_requested", object_id=run.pk)
    assert entry.program == "MCP"


def test_confirm_of_another_token_is_refused(assistant, alice, team):
    run = make_run(team, state=RunState.QUEUED)
    dry = assistant.call("control_run", run=run.pk, do="stop")

    other = Assistant(make_token(alice, "write"))
    text = other.call(
        "control_run", run=run.pk, do="stop", dry_run=False, confirm=dry["confirm"]
    )

    assert text.startswith("mcp.changed: ")


def test_launch_needs_the_preset_of_its_dry_run(assistant, team):
    dataset, recipe = make_dataset(team), make_recipe(team)
    arguments = {"dataset": dataset.pk, "recipe": recipe.pk, "name": "new"}
    arguments |= {"model": "org/model", "settings": {"optim.num_steps": 7}}
    run = make_run(team, dataset_version=dataset, recipe_version=recipe)
    arguments |= {"from_run": run.pk, "tags": ["assistant"]}

    dry = assistant.call("launch_run", **arguments)
    assert dry["differs_from"]["settings"]["optim.num_steps"]["now"] == "7"
    before, run.config["optim"]["learning_rate"] = (
        run.config["optim"]["learning_rate"],
        0.5,
    )
    run.save(update_fields=["config"])
    sent = arguments | {"dry_run": False, "confirm": dry["confirm"]}
    changed = assistant.call("launch_run", **sent)
    assert changed.startswith("mcp.changed: ")
    run.config["optim"]["learning_rate"] = before
    run.save(update_fields=["config"])

    first, second = (assistant.call("launch_run", **sent) for _ in range(2))

    assert first["id"] == second["id"]
    launched = Run.objects.get(name="new")
    assert (launched.num_steps, launched.tags) == (7, ["assistant"])


def test_key_makes_a_launch_take_effect_once(assistant, team):
    run = make_run(team, state=RunState.QUEUED)
    dry = assistant.call("control_run", run=run.pk, do="stop")
    sent = {"run": run.pk, "dry_run": False, "confirm": dry["confirm"], "key": "k"}

    assistant.call("control_run", do="stop", **sent)
    other = assistant.call("control_run", do="cancel", **sent)

    assert other.startswith("idempotency.key_reused: ")


def launch_of(team, **arguments):
    dataset, recipe = make_dataset(team), make_recipe(team)
    run = make_run(team, dataset_version=dataset, recipe_version=recipe)
    model = {"model": "org/model", "settings": {"optim.num_steps": 7}}
    return {"from_run": run.pk, "name": "new", **model, **arguments}


def test_a_confirm_starts_one_run_whatever_the_key(assistant, team):
    arguments = launch_of(team)
    dry = assistant.call("launch_run", **arguments)
    sent = arguments | {"dry_run": False, "confirm": dry["confirm"]}

    ids = {assistant.call("launch_run", **sent, key=key)["id"] for key in ("a", "b")}
    again = assistant.call("launch_run", **arguments)
    later = sent | {"confirm": again["confirm"]}
    later = assistant.call("launch_run", **later, key="c")

    assert len(ids) == 1
    assert later["id"] not in ids


def test_a_confirm_expires(assistant, team, monkeypatch):
    arguments = launch_of(team)
    dry = assistant.call("launch_run", **arguments)
    monkeypatch.setattr(writing, "CODE_SECONDS", -2)

    text = assistant.call(
        "launch_run", **arguments, dry_run=False, confirm=dry["confirm"]
    )

    assert text.startswith("mcp.changed: ")


def test_a_dry_run_names_what_is_trained(assistant, team):
    arguments = launch_of(team)
    other = make_recipe(team, "Other")

    dry = assistant.call("launch_run", **arguments, recipe=other.pk)

    assert dry["model"] == "org/model"
    assert dry["recipe"] == f"{other.recipe.name}@{other.number}"


@pytest.mark.parametrize("field", ["dataset", "recipe"])
def test_an_unknown_choice_is_not_the_teams_only_one(assistant, team, field):
    arguments = launch_of(team)

    text = assistant.call("launch_run", **arguments, **{field: 10**6})

    assert isinstance(text, str), "it is a problem"


@pytest.fixture
def refusals(assistant, team, monkeypatch):
    """By name: a tool, and arguments that it refuses."""
    launch = launch_of(team)
    ended = make_run(team, "ended", state=RunState.FINISHED)
    make_group(ended, step=1)
    make_judge(team)
    queued = make_run(team, "queued", state=RunState.QUEUED)
    locked = make_run(team, "locked", state=RunState.QUEUED, locked_at=timezone.now())
    dry = assistant.call("control_run", run=queued.pk, do="stop")
    used = {"run": queued.pk, "do": "stop", "dry_run": False, "key": "used"}
    assistant.call("control_run", **used, confirm=dry["confirm"])
    rule = {"name": "judge", "kind": "llm_judge",
            "params": {"base_url": "http://127.0.0.1:9", "model": "m"}}  # fmt: skip
    monkeypatch.setenv("COHORT_JUDGE_HOSTS", "127.0.0.1")
    gone = make_dataset(team, "gone")
    gone.dataset.trashed_at = timezone.now()
    gone.dataset.save()
    return {
        "comma in a tag": ("launch_run", launch | {"tags": ["a,b"]}),
        "long tag": ("launch_run", launch | {"tags": ["x" * 41]}),
        "many tags": ("launch_run", launch | {"tags": [f"{n}" for n in range(21)]}),
        "empty tag": ("launch_run", launch | {"tags": [" "]}),
        "long name": ("launch_run", launch | {"name": "x" * 81}),
        "empty name": ("launch_run", launch | {"name": " "}),
        "line in a name": ("launch_run", launch | {"name": "a\nb"}),
        "unknown setting": ("launch_run", launch | {"settings": {"a.b": 1}}),
        "bad value": ("launch_run", launch | {"settings": {"optim.num_steps": -1}}),
        "unknown preset": ("launch_run", {"preset": "nothing-such"}),
        "preset and run": ("launch_run", launch | {"preset": "dr-grpo"}),
        "checkpoint alone": ("launch_run", {"checkpoint": "step-000001-attempt-1"}),
        "no checkpoint": ("launch_run", launch | {"checkpoint": "step-9-attempt-1"}),
        "unknown dataset": ("launch_run", launch | {"dataset": 10**6}),
        "trashed dataset": ("launch_run", launch | {"dataset": gone.pk}),
        "unknown recipe": ("launch_run", launch | {"recipe": 10**6}),
        "key of a launch": ("launch_run", launch | {"key": "used"}),
        "no steps": ("control_run", {"run": ended.pk, "do": "extend"}),
        "fewer steps": ("control_run", {"run": queued.pk, "do": "extend",
                                        "num_steps": 1}),
        "ended": ("control_run", {"run": ended.pk, "do": "pause"}),
        "not paused": ("control_run", {"run": ended.pk, "do": "resume"}),
        "locked": ("control_run", {"run": locked.pk, "do": "extend",
                                   "num_steps": 10**6}),
        "key of a control": ("control_run", {"run": locked.pk, "do": "stop",
                                             "key": "used"}),
        "no judge": ("ask_completions", {"run": ended.pk, "text": "?",
                                         "judge": "none"}),
        "no question": ("ask_completions", {"run": ended.pk, "judge": "judge"}),
        "no run": ("ask_completions", {"text": "?", "judge": "judge"}),
        "no such question": ("ask_completions", {"question": 10**6}),
        "bad filter": ("ask_completions", {"run": ended.pk, "text": "?", "query":
                                           "min_reward=x", "judge": "judge"}),
        "nothing to score": ("rescore_run", {"run": queued.pk}),
        "bad recipe": ("rescore_run", {"run": ended.pk, "spec": {"rules": 1}}),
        "two recipes": ("rescore_run", {"run": ended.pk, "spec": {}, "recipe": 1}),
        "other recipe": ("rescore_run", {"run": ended.pk, "recipe": 10**6}),
        "no such steps": ("rescore_run", {"run": ended.pk, "first_step": 9,
                                          "last_step": 8}),
        "judge": ("rescore_run", {"run": ended.pk, "spec": {"rules": [rule]}}),
        "key of a rescoring": ("rescore_run", {"run": ended.pk, "key": "used"}),
    }  # fmt: skip


def test_a_dry_run_refuses_what_the_call_would(refusals, assistant, monkeypatch):
    """The call gets a code for its arguments, as if its dry run had refused nothing."""
    num_runs = Run.objects.count()
    dry = {
        name: assistant.call(tool, **arguments)
        for name, (tool, arguments) in refusals.items()
    }
    monkeypatch.setattr(writing, "_read_code", lambda _: ANY)
    real = {
        name: assistant.call(tool, **arguments, dry_run=False, confirm=name)
        for name, (tool, arguments) in refusals.items()
    }

    assert [name for name, text in dry.items() if not isinstance(text, str)] == []
    assert dry == real
    assert Run.objects.count() == num_runs


def test_a_team_without_quota_learns_it_in_the_dry_run(assistant, team, monkeypatch):
    def refuse(team):
        raise UserError("quotas.runs", "The team has all its runs.")

    monkeypatch.setattr("dashboard.operations.quotas.check_runs", refuse)

    assert assistant.call("launch_run", **launch_of(team)).startswith("quotas.runs: ")


def test_a_dry_run_of_a_fork_checks_its_files_and_leaves_none(assistant, team):
    arguments = launch_of(team)
    del arguments["model"]
    parent = Run.objects.get(pk=arguments["from_run"])
    checkpoint = keep(parent, 4)
    folder = run_directory(parent.pk).path.parent
    before = set(folder.iterdir())

    dry = assistant.call("launch_run", **arguments, checkpoint=checkpoint.name)
    shutil.rmtree(run_directory(parent.pk).checkpoints)
    gone = assistant.call("launch_run", **arguments, checkpoint=checkpoint.name)

    assert dry["confirm"]
    assert gone.startswith("checkpoints.")
    assert set(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("find_runs", {"query": "state ="}, "query: "),
        ("find_runs", {"cursor": "?.1"}, "cursor: "),
        ("launch_run", {"preset": "nothing-such"}, "preset or checkpoint: "),
        ("launch_run", {"preset": "dr-grpo", "model": "org/m"}, "Send recipe."),
        ("launch_run", {"preset": "dr-grpo", "dataset": 0}, "dataset: "),
        ("try_reward", {}, "spec: "),
        ("try_reward", {"spec": {"rules": 1}}, "spec.rules: "),
        ("try_reward", {"recipe": "x"}, "recipe: "),
        ("rescore_run", {"run": 0}, "run: "),
        ("compare_runs", {"runs": [1]}, "runs: "),
    ],
)
def test_an_error_names_the_argument(assistant, tool, arguments, named):
    text = assistant.call(tool, **arguments)

    assert named in text
    assert not re.search("body|query\\.|_id|next_cursor", text), text


def test_a_used_key_is_named_as_it_was_sent(assistant, refusals):
    tool, arguments = refusals["key of a launch"]

    text = assistant.call(tool, **arguments)

    assert text.startswith("idempotency.key_reused: key: ")
    assert "'used" in text


def test_clients_name_is_in_the_audit_log(assistant, team):
    run = make_run(team, state=RunState.QUEUED)
    dry = assistant.call("control_run", run=run.pk, do="stop")
    arguments = {"run": run.pk, "do": "stop", "dry_run": False}

    assistant.ask(
        "tools/call",
        name="control_run",
        arguments=arguments | {"confirm": dry["confirm"]},
        _meta={
            "io.modelcontextprotocol/clientInfo": {
                "name": "claude-code\n" + "x" * 200,
                "version": "2.1",
            }
        },
    )

    entry = AuditEntry.objects.get(verb="run.stop_requested", object_id=run.pk)
    assert entry.agent == ("claude-code" + "x" * 200)[:80]
