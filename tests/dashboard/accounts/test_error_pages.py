from typing import Any

from tests.page_client import PageClient


def test_a_missing_page_keeps_the_navigation(alice_client, team):
    response = alice_client.get(f"/{team.slug}/runs/999999/")

    assert response.status_code == 404
    assert f'href="/{team.slug}/datasets/"' in response.text


def test_a_foreign_team_looks_like_a_missing_one(charlie_client, team):
    def reported(slug: str) -> str:
        page = charlie_client.get(f"/{slug}/runs/").text
        return page[page.index("<main") :].replace(slug, "")

    assert reported(team.slug) == reported("nobody")


def test_an_address_that_is_markup_is_shown_as_text(alice_client):
    page = alice_client.get("/x/<script>alert(1)</script>/y").text

    assert "<script>alert" not in page


def test_our_own_mistake_is_admitted_without_its_details(
    alice_client, team, monkeypatch
):
    def fail(*_: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("dashboard.pages.run_list.count_runs", fail)
    alice_client.raise_request_exception = False

    response = alice_client.get(f"/{team.slug}/runs/")

    assert response.status_code == 500
    assert "Server error" in response.text
    assert "secret detail" not in response.text


def test_an_unknown_host_names_the_setting(db):
    response = PageClient(headers={"host": "evil.example"}).get("/sign-in/")

    assert response.status_code == 400
    assert "COHORT_ALLOWED_HOSTS" in response.text


def test_a_form_without_its_token_is_refused_with_the_remedy(db):
    client = PageClient(enforce_csrf_checks=True)

    response = client.post("/sign-in/", {"username": "a", "password": "b"})

    assert response.status_code == 403
    assert "reload the page" in response.text
