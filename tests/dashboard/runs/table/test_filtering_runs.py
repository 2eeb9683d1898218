"""Which runs a query finds."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.accounts.models import User
from dashboard.runs.models import EvaluationSet, Run, RunStar
from dashboard.runs.table.parser import QueryError, parse
from dashboard.runs.table.sql import condition
from tests.dashboard.runs.launching import make_dataset
from tests.dashboard.runs.table.rows import make_runs

ALL = "amber brave calm deft"

FOUND = [
    ("", ALL),
    ("AMB", "amber"),
    ('"odd, see"', "calm"),
    ("words", "deft"),
    ("alice", "amber brave calm"),
    ("baseline", "amber brave"),
    ("name:amber", "amber"),
    ("name~A", "amber brave calm"),
    ("name:amber,calm", "amber calm"),
    ("name!=amber", "brave calm deft"),
    ("name!~a", "deft"),
    ("state:running", "brave"),
    ("state:running,queued", "brave calm"),
    ("state:active", "brave calm"),
    ("state:ended", "amber deft"),
    ("state!=active", "amber deft"),
    ("tag:baseline", "amber brave"),
    ('tag:"long run"', "amber"),
    ("tag~LONG", "amber"),
    ("tag:none", "calm deft"),
    ("-tag:baseline", "calm deft"),
    ("owner:ALICE", "amber brave calm"),
    ("owner:none", "deft"),
    ("owner!=alice", "deft"),
    ("model:qwen", "deft"),
    ("dataset:words", "calm deft"),  # calm is evaluated on it
    ("dataset~ORD", "calm deft"),
    ('reward:"right answer"', ALL),
    ("sweep:rates", "brave calm"),
    ("sweep:none", "amber deft"),
    ("notes~odd", "calm"),
    ("notes:none", "amber brave deft"),
    ("step>=50", "amber brave"),
    ("progress>50%", "amber"),
    ("progress<=0.5", "brave calm deft"),
    ("steps=100", ALL),
    ("duration>1h", "amber"),
    ("duration<90min", "brave"),
    ("started>1h", "brave"),
    ("started>2020-01-01", "amber brave"),
    ("created<2020-01-01T00:00", ""),
    ("config.optim.learning_rate<=1e-5", "amber brave calm"),
    ("config.optim.learning_rate=0.00001", "calm"),
    ("config.optim.learning_rate!=1e-5", "amber brave deft"),
    ("config.rules.answer.weight>1", "deft"),
    ("config.rules.answer.kind:numeric_answer", ALL),
    ("config.rules.nobody.weight>0", ""),
    ("config.phases.warm.loss.kl_coef=0.1", "amber"),
    ("config.model.path:ORG/MODEL", ALL),
    ("config.model.path~mod", ALL),
    ("config.rollout.temperature:none", "calm"),
    ("config.rollout.temperature!=none", "amber brave deft"),
    ("config.no.such:none", ALL),
    ("config.optim>3", ""),  # a table of settings is no number
    ("reward/mean.last>0.5", "amber deft"),
    ("reward/mean>0.5", "amber deft"),
    ("reward/mean.best>=0.8", "amber deft"),
    ("reward/mean.min=0", "deft"),
    ("reward/mean.mean>=0.5", "amber brave"),
    ("reward/mean.max!=0.9", "brave calm deft"),
    ("reward/mean:none", "calm"),
    ("not reward/mean.last>0.5", "brave calm"),
    ("entropy.max>1.5", "amber"),
    ("no/such.last>0", ""),
    ("starred", "brave"),
    ("-starred", "amber calm deft"),
    ("locked", "amber"),
    ("state:failed or tag:baseline", "amber brave deft"),
    ("-(state:failed or tag:baseline)", "calm"),
    ("state:active name~a", "brave calm"),
]


@pytest.fixture
def runs(team, alice, bob) -> dict[str, Run]:
    runs = make_runs(team, alice)
    RunStar.objects.create(run=runs["brave"], user=alice)
    RunStar.objects.create(run=runs["deft"], user=bob)  # another's star is another's
    Run.objects.filter(pk=runs["amber"].pk).update(locked_at=timezone.now())
    EvaluationSet.objects.create(
        run=runs["calm"], name="w", dataset_version=runs["deft"].dataset_version
    )
    return runs


def found(query: str, user: User) -> str:
    names = Run.objects.filter(condition(parse(query), user)).values_list("name")
    return " ".join(sorted(name for (name,) in names))


def test_queries_find_these_runs(runs, alice):
    assert {query: found(query, alice) for query, _ in FOUND} == dict(FOUND)


def test_not_inverts_any_query(runs, alice):
    for query, names in FOUND[1:]:
        others = sorted({*ALL.split()} - {*names.split()})

        assert found(f"-({query})", alice) == " ".join(others), query


def test_number_and_sign_find_a_run(runs, alice):
    assert found(f"#{runs['calm'].pk}", alice) == "calm"
    assert found(f"id:{runs['deft'].pk}", alice) == "deft"


def test_archived_and_trashed_runs_are_found_only_by_their_flags(runs, alice):
    now = timezone.now()
    Run.objects.filter(name="deft").update(archived_at=now)
    Run.objects.filter(name="amber").update(locked_at=None, trashed_at=now)

    expected = {
        "": "brave calm",
        "-archived": "brave calm",
        "archived": "deft",
        "trashed": "amber",
        "-trashed": "brave calm",
        "trashed or name:calm": "amber calm",
        "archived or -archived": "brave calm deft",
        "-trashed -archived": "brave calm",
    }
    assert {query: found(query, alice) for query in expected} == expected


def test_an_invalid_term_has_a_span_and_a_message(alice):
    for query, place, named in (
        ("a stat:x", (2, 6), "mean state?"),
        ("state:runing", (6, 12), "'runing'"),
        ("state>running", (0, 13), "got >"),
        ("name<5", (0, 6), "got <"),
        ("step:many", (5, 9), "'many'"),
        ("duration>long", (9, 13), "90min"),
        ("started>soon", (8, 12), "2026-11-01"),
        ("started=7d", (0, 10), "got ="),
        ("config.a.b<x", (11, 12), "1e-5"),
        ("entropy.best>1", (0, 14), "entropy"),
        ("reward/mean.last~1", (0, 18), "=, !=, <,"),
        ("x y loss>1", (4, 8), "'loss'"),
    ):
        with pytest.raises(QueryError) as caught:
            condition(parse(query), alice)

        assert named in str(caught.value), query
        assert (caught.value.start, caught.value.end) == place, query


HOSTILE = (
    "'; drop table runs_run; --",
    '" ? (@ == 1)',
    "%s",
    "{}",
    "a\\",
    "$.x",
    "%(x)s",
    "a..b",
    "\t\x1b",
    "ü😀",
)


def test_no_text_becomes_sql(runs, alice):
    quoted = [text.replace("\\", "\\\\").replace('"', '\\"') for text in HOSTILE]
    for text in (f'"{one}"' for one in quoted):
        for query in (
            text,
            f"name:{text}",
            f"tag~{text}",
            f"config.{text}:1",
            f"config.rules.{text}.weight>{1}",
            f"a/{text}.last>1",
            f"config.model.path:{text}",
        ):
            assert found(query, alice) == "", query
    assert Run.objects.count() == 4


def test_a_query_of_many_terms_is_one_query_of_sql(runs, alice):
    terms = [f"({query})" for query, _ in FOUND if query]

    with CaptureQueriesContext(connection) as queries:
        found(" or ".join(terms), alice)

    assert len(queries) == 1


def test_a_dataset_filter_matches_the_exact_dataset(runs, alice, team):
    make_dataset(team, "unused")

    assert found("dataset:unused", alice) == ""
