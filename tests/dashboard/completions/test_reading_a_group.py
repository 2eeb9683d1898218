"""A group's completions as text, rendered or by tokens; the address says how."""

import re

import pytest

from dashboard.completions.models import Group, GroupTokens
from dashboard.completions.tokens import pack_tokens
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_group
from tests.dashboard.supervision.logs import measured
from tests.page_client import PageClient

LINK = re.compile(r'href="([^"]*/groups/\d+/\d+/[^"]*)"')


def get(client: PageClient, run: Run, query: str) -> str:
    return re.sub(r"\s+", " ", client.read(f"/alpha/runs/{run.pk}/groups/5/4/{query}"))


def test_markdown_is_rendered_on_request(alice_client, run):
    make_group(run, step=5, prompt_index=4, texts=["**so**", "so"], rewards=(1.2, 0))

    assert "<strong>so</strong>" in get(alice_client, run, "?view=rendered")
    assert "**so**" in get(alice_client, run, "")


def test_other_groups_are_read_in_the_same_way(alice_client, run):
    for step, prompt in ((3, 4), (5, 4), (9, 4), (5, 3), (5, 6)):
        make_group(run, step=step, prompt_index=prompt)

    html = get(alice_client, run, "?view=rendered&layout=cards&sort=reward&order=mean")

    links = [link.replace("&amp;", "&") for link in LINK.findall(html)]
    others = [link for link in links if "/5/4/" not in link]
    assert {re.sub(r".*/groups/|\?.*", "", link) for link in others} == {
        "3/4/", "9/4/", "5/3/", "5/6/",
    }  # fmt: skip
    wanted = "?order=mean&view=rendered&layout=cards&sort=reward"
    assert {link[link.index("?") :] for link in others} == {wanted}
    steps = re.findall(r'href="[^"]*/groups/(\?step=[39][^"]*)"', html)
    assert {step.replace("&amp;", "&")[8:] for step in steps} == {
        "view=rendered&layout=cards&sort=mean"
    }


def test_a_plain_group_has_plain_links(alice_client, run):
    for step in (3, 5):
        make_group(run, step=step, prompt_index=4)

    html = get(alice_client, run, "?view=text&sort=-reward&signal=")

    others = [link for link in LINK.findall(html) if "/5/4/" not in link]
    assert others
    assert not any("?" in link for link in others)


def test_the_first_best_completion_is_the_reference(alice_client, run):
    make_group(
        run, step=5, prompt_index=4, texts=["a", "b", "c"], rewards=(0.2, 1.2, 1.2)
    )

    html = get(alice_client, run, "?diff=on")

    assert html.count('data-diff-with="text-1"') == 2
    assert "data-diff-with" not in get(alice_client, run, "")
    assert "data-diff-with" not in get(alice_client, run, "?diff=on&view=rendered")


def test_without_a_best_the_first_is_the_reference(alice_client, run):
    make_group(run, step=5, prompt_index=4, texts=["a", "b"], rewards=(0.2, 0.2))

    assert 'data-diff-with="text-0"' in get(alice_client, run, "?diff=on")


@pytest.mark.parametrize(
    "query", ["?view=x", "?layout=stacked&diff=x&color=x&sort=x&order=x&signal=x"]
)
def test_unknown_choices_use_the_default(alice_client, run, query):
    make_group(run, step=5, prompt_index=4)

    assert 'id="completion-0"' in get(alice_client, run, query)


def keep_tokens(group: Group) -> None:
    packed = pack_tokens([measured("a", "b") for _ in range(4)])
    GroupTokens.objects.create(group=group, packed=packed)


def test_a_group_without_token_values_links_to_groups_with_some(alice_client, run):
    make_group(run, step=5, prompt_index=4)
    for step, prompt in ((5, 9), (5, 2), (3, 4)):
        keep_tokens(make_group(run, step=step, prompt_index=prompt))

    html = get(alice_client, run, "?view=tokens")

    assert re.findall(
        r'href="[^"]*(/groups/\d+/\d+/[^"]*)"\s+data-near-tokens', html
    ) == ["/groups/5/2/?view=tokens"]
    assert "data-tokens" not in html


def test_a_group_with_token_values_requests_them(alice_client, run):
    keep_tokens(make_group(run, step=5, prompt_index=4))

    html = get(alice_client, run, "?view=tokens&color=kl")

    assert f'data-tokens-of="/alpha/runs/{run.pk}/groups/5/4/tokens.json"' in html
    assert 'data-color="kl"' in html
    assert "data-tokens-of" not in get(alice_client, run, "")


def test_the_list_marks_groups_with_token_values(alice_client, run):
    make_group(run, step=5, prompt_index=3)
    keep_tokens(make_group(run, step=5, prompt_index=4))

    page = alice_client.get(f"/alpha/runs/{run.pk}/groups/?step=5").content.decode()

    assert page.count(">tokens</span>") == 1
    assert page.index('data-prompt="4"') < page.index(">tokens</span>")
