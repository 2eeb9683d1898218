from __future__ import annotations

from celery import shared_task

from dashboard.datasets import findings, row_orders


@shared_task(name="datasets.make_order", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def make_order(order_id: int) -> None:
    row_orders.make_order(order_id)


@shared_task(name="datasets.make_statistics", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def make_statistics(pk: int) -> None:
    findings.make_statistics(pk)


@shared_task(name="datasets.make_token_lengths", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def make_token_lengths(pk: int) -> None:
    findings.make_token_lengths(pk)


@shared_task(name="datasets.make_difference", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def make_difference(pk: int) -> None:
    findings.make_difference(pk)
