from collections.abc import Iterator

import pytest
from celery import Celery
from django.conf import settings

from dashboard.jobs.schedule import count_waiting
from dashboard.runs.models import Run
from dashboard.supervision.tasks import QUEUE, send_work

pytestmark = pytest.mark.django_db


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery(broker=settings.CELERY_BROKER_URL, set_as_current=False) as app:
        with app.connection_for_write() as broker:  # others may have left a message
            broker.default_channel.client.delete(QUEUE)
        yield app
        with app.connection_for_write() as broker:
            broker.default_channel.client.delete(QUEUE)


def test_every_startable_run_has_one_message(app, launch):
    launch(name="a")
    launch(name="b")
    ended = launch(name="c")
    Run.objects.filter(id=ended.id).update(state="stopped")

    assert send_work(app) == 2
    assert count_waiting(app, QUEUE) == 2


def test_while_no_worker_listens_messages_do_not_pile_up(app, launch):
    launch()

    for _ in range(5):
        send_work(app)

    assert count_waiting(app, QUEUE) == 1


def test_messages_lost_by_redis_are_sent_again(app, launch):
    launch()
    send_work(app)
    with app.connection_for_write() as broker:
        broker.default_channel.client.flushdb()

    send_work(app)

    assert count_waiting(app, QUEUE) == 1


def test_without_a_queued_run_no_message_is_sent(app):
    assert send_work(app) == 0
