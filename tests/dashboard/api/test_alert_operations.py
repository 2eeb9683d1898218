"""Alert rules and alerts by the API."""

from dashboard.accounts.models import AuditEntry
from dashboard.alerts.models import Rule
from tests.dashboard.alerts.factories import make_alert, make_rule
from tests.dashboard.completions.factories import make_run


def verbs(prefix: str) -> list[str]:
    found = AuditEntry.objects.filter(verb__startswith=prefix).order_by("pk")
    return [entry.verb.removeprefix(prefix) for entry in found]


def test_a_rule_is_made_changed_switched_off_and_deleted(program, team):
    requested = {"metric": "kl/mean", "kind": "above", "threshold": 0.5, "for_steps": 3}
    made = program.post("/alert-rules", requested)
    address = f"/alert-rules/{made.json()['id']}"

    changed = program.patch(address, {"threshold": 0.7, "pauses_run": True}).json()
    off = [program.patch(address, {"is_enabled": False}).json() for _ in range(2)]
    gone = program.delete(address).json()

    assert made.status_code == 201, made.text
    assert (
        made.json()["reads"] == made.json()["name"] == "kl/mean above 0.5 for 3 steps"
    )
    assert (changed["threshold"], changed["for_steps"]) == (0.7, 3)
    assert (changed["pauses_run"], changed["is_sent"]) == (True, True)
    assert [each["is_enabled"] for each in off] == [False, False]
    assert off[-1]["threshold"] == 0.7
    assert gone["done"] is True
    assert verbs("alert_rule.") == [
        "created",
        "changed",
        "switched_off",
        "deleted",
    ]


def test_a_rule_that_cannot_be_names_its_field(program):
    for body, field in [
        ({"metric": "m", "kind": "above"}, "body.threshold"),
        ({"metric": "m", "kind": "sideways"}, "body.kind"),
        ({"metric": "", "kind": "missing"}, "body.metric"),
        ({"metric": "m", "kind": "missing", "for_steps": 0}, "body.for_steps"),
    ]:
        refused = program.post("/alert-rules", body)

        assert refused.status_code == 422, body
        assert refused.json()["errors"][0]["field"] == field, body
        assert not Rule.objects.exists(), body


def test_a_rule_of_one_run_is_kept_to_it(program, team):
    run = make_run(team)
    requested = {"metric": "loss", "kind": "missing", "run_id": run.pk}

    made = program.post("/alert-rules", requested).json()
    both = program.patch(f"/alert-rules/{made['id']}", {"name_pattern": "sft-*"})
    every = program.patch(f"/alert-rules/{made['id']}", {"run_id": None}).json()

    assert made["run_id"] == run.pk
    assert both.json()["errors"][0]["field"] == "body.name_pattern"
    assert every["run_id"] is None


def test_a_built_in_rules_numbers_change_but_it_cannot_be_deleted(program):
    rules = program.get("/alert-rules").json()["items"]
    one = next(rule for rule in rules if rule["built_in"] == "kl")
    address = f"/alert-rules/{one['id']}"

    changed = program.patch(address, {"threshold": 9.0}).json()
    metric = program.patch(address, {"metric": "loss"})
    gone = program.delete(address)

    assert changed["threshold"] == 9.0
    assert metric.json()["errors"][0]["field"] == "body.metric"
    assert gone.status_code == 409


def test_alerts_are_narrowed_and_looked_at(program, team):
    rule, run = make_rule(team), make_run(team)
    live = make_run(team, state="queued", started_at=None, finished_at=None)
    old, new = make_alert(run, rule), make_alert(live)

    of_rule = program.get(f"/alerts?rule_id={rule.pk}").json()["items"]
    burning = program.get("/alerts?is_open=true").json()["items"]
    one = program.get(f"/alerts/{old.pk}").json()

    assert [each["id"] for each in of_rule] == [old.pk]
    assert [each["id"] for each in burning] == [new.pk]
    assert one["readings"] == {"kl/mean": [[6, 0.5], [7, 2.0], [8, None]]}
    assert one["groups"] == [[7, 0]]
