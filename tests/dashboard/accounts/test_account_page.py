from django.test import Client


def _post(client: Client, **form: str) -> tuple[int, str]:
    response = client.post("/account/", form)
    return response.status_code, response.text


def test_ones_name_can_be_changed(alice_client, alice):
    status, _ = _post(alice_client, form="profile", display_name="Alice L.")

    alice.refresh_from_db()
    assert status == 302
    assert str(alice) == "Alice L."


def test_a_first_password_can_be_set_and_keeps_the_session(alice_client, alice):
    alice.set_unusable_password()
    alice.save()
    alice_client.force_login(alice)
    secret = "correct horse battery"

    status, _ = _post(
        alice_client, form="password", new_password1=secret, new_password2=secret
    )

    alice.refresh_from_db()
    assert status == 302
    assert alice.check_password(secret)
    assert alice_client.get("/account/").status_code == 200


def test_a_weak_password_is_refused_with_the_reason(alice_client, alice):
    alice.set_unusable_password()
    alice.save()
    alice_client.force_login(alice)

    status, page = _post(
        alice_client,
        form="password",
        new_password1="12345",
        new_password2="12345",
    )

    assert status == 422
    assert "too short" in page


def test_the_old_password_is_required(alice_client, alice):
    alice.set_password("the first one of mine")
    alice.save()
    alice_client.force_login(alice)
    secret = "correct horse battery"

    status, page = _post(
        alice_client,
        form="password",
        old_password="wrong",
        new_password1=secret,
        new_password2=secret,
    )

    assert status == 422
    assert "incorrectly" in page
