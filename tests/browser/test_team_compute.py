"""A team's cluster: chosen, read, and on the launch form."""

import pytest
from django.db.models.functions import Now
from playwright.sync_api import expect

from dashboard.supervision.models import Cluster
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.runs.launching import make_dataset, make_recipe

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ADDRESS = "ray-a:6379"  # allowed by the tests' web process


def read(*free: int) -> None:
    """As a worker does; a node with 8 GPUs for each number."""
    nodes = [
        {
            "name": f"node-{number}",
            "is_alive": True,
            "gpu_kind": "H100",
            "gpus": 8,
            "gpus_free": gpus_free,
            "cpus": 64,
            "cpus_free": 60,
            "memory_bytes": 2**40,
        }
        for number, gpus_free in enumerate(free)
    ]
    facts = {"error": None, "ray_version": "2.60.0", "nodes": nodes}
    Cluster.objects.update_or_create(
        address=ADDRESS, defaults={"facts": facts, "read_at": Now(), "worker": "w"}
    )


def test_an_admin_chooses_a_cluster(page, team):
    page.goto("/alpha/settings/compute")
    expect(page.locator("[data-cluster]")).to_have_count(0)

    page.get_by_label("Cluster of the team").select_option(ADDRESS)
    page.get_by_role("button", name="Save").click()

    expect(page.locator("[data-cluster-problem]")).to_be_visible()
    read(8, 6)
    page.reload()
    expect(page.locator("[data-gpus-free]")).to_have_text("14")
    expect(page.locator("[data-node]")).to_have_count(2)
    assert not findings_in_each_view(page)

    make_dataset(team)
    make_recipe(team)
    page.goto("/alpha/runs/new")
    page.get_by_label("Folder or Hugging Face ID", exact=True).fill("org/model")
    processes = page.get_by_role("textbox", name="Processes", exact=True)
    per_node = page.get_by_role("textbox", name="Processes per node", exact=True)
    expect(processes).to_be_visible()
    page.get_by_label("Where", exact=True).select_option("ray")
    expect(processes).to_have_count(0)
    page.locator('[name="distributed.num_nodes"]').fill("2")
    per_node.fill("8")
    line = page.locator("#launch-line")
    expect(line).to_contain_text("14 of 16 GPUs free on 2 nodes")
