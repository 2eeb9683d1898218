"""/metrics, as Prometheus reads it."""

from django.test import Client
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

Samples = dict[str, float]


def scrape() -> list[Metric]:
    response = Client().get("/metrics", headers={"host": "localhost"})
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain; version=")
    return list(text_string_to_metric_families(response.text))


def samples(metrics: list[Metric]) -> Samples:
    """By name and labels: 'cohort_runs{state="queued"}'."""
    return {
        sample.name
        + (
            "{" + ",".join(f'{k}="{v}"' for k, v in sorted(sample.labels.items())) + "}"
            if sample.labels
            else ""
        ): sample.value
        for metric in metrics
        for sample in metric.samples
    }


def reported() -> Samples:
    return samples(scrape())
