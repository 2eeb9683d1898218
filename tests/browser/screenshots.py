"""Takes the README's screenshots of a running Cohort.

    python -m tests.browser.screenshots [--all DIR]

It starts Cohort with temporary data, waits for the first run's steps, and writes
static/img/screenshots/. With --all it also takes every page, in both themes and widths,
into DIR; that waits for a probe, which the first run delays.
"""

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.examples import make_examples

ROOT = Path(__file__).parents[2]
README_PICTURES = ROOT / "static" / "img" / "screenshots"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync"]
ENOUGH_STEPS = 60
WIDTHS = {"wide": 1440, "narrow": 390}
THEMES = ("light", "dark")
README_PAGES = ("run", "group")


@contextmanager
def cohort(data: Path) -> Iterator[str]:
    """A running Cohort's sign-in link."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {k: v for k, v in os.environ.items() if not k.endswith("_URL")}
    env |= {"COHORT_DATA": str(data), "COHORT_PORT": str(port)}
    printed = data.parent / "up.log"
    with printed.open("wb") as output:
        up = subprocess.Popen(
            [sys.executable, "manage.py", "up"], cwd=ROOT, env=env, stdout=output
        )
    try:
        yield wait_for_link(up, printed)
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(30)


def wait_for_link(up: subprocess.Popen[bytes], printed: Path) -> str:
    while up.poll() is None:
        found = re.search(r"http://\S+/sign-in/\S+", printed.read_text())
        if found:
            return found.group()
        time.sleep(0.5)
    raise SystemExit(printed.read_text())


def sign_in(page: Page, link: str) -> str:
    """Signs in, and gives the first run's address."""
    page.goto(link)
    if "/sign-in/" in page.url:
        page.locator("form button[type=submit]").first.click()
        page.wait_for_url(re.compile(r"/runs/"))
    return page.url.partition("/runs/")[0] + "/runs/1/"  # it may be the page already


def wait_for_steps(page: Page, run: str) -> None:
    stream = f"{run}stream.json?after=0"
    while True:
        answer = page.request.get(stream)
        if not answer.ok:  # the starter model is still being made
            time.sleep(2)
            continue
        state = answer.json()["run"]
        if state["last_step"] >= ENOUGH_STEPS or state["state"] in (
            "finished",
            "failed",
        ):
            return
        time.sleep(2)


def addresses(page: Page, run: str) -> dict[str, str]:
    """Every page by name, once the first run is under way."""
    team = run.split("/runs/")[0]
    page.goto(f"{run}groups/?step={ENOUGH_STEPS - 10}")
    group = page.locator(".group-link").first.get_attribute("href") or ""
    return {
        "run": run,
        "groups": f"{run}groups/?step={ENOUGH_STEPS - 10}",
        "group": group if group.startswith("http") else team.rsplit("/", 1)[0] + group,
        "completions": f"{run}completions/",
        "prompts": f"{run}prompts/?sort=-change",
        "prompt": f"{run}prompts/{group.rstrip('/').rsplit('/', 1)[1]}/",
        "reward-log": f"{run}reward-log/",
        "config": f"{run}config/",
        "checkpoints": f"{run}checkpoints/",
        "logs": f"{run}logs/",
        "runs": f"{team}/runs/",
        "launch": f"{team}/runs/new",
        "compare": f"{team}/compare?runs=1",
        "datasets": f"{team}/datasets/",
        "dataset": f"{team}/datasets/1/",
        "dataset-statistics": f"{team}/datasets/1/statistics",
        "dataset-prompt": f"{team}/datasets/1/prompt",
        "dataset-upload": f"{team}/datasets/upload",
        "dataset-generate": f"{team}/datasets/generate?task=chain_sum",
        "rewards": f"{team}/rewards/",
        "reward": f"{team}/rewards/1/",
        "reward-new": f"{team}/rewards/new",
        "reward-editor": f"{team}/rewards/new?run=1",
        "probes": f"{team}/probes/",
        "compute": f"{team}/compute/",
        "settings": f"{team}/settings",
    }


def take(page: Page, address: str, path: Path, *, full: bool) -> None:
    page.goto(address)
    if "/uploads/" in address:  # the preview by a model is folded up
        page.get_by_text("Prompt preview", exact=True).click()
    page.wait_for_timeout(2_000)  # charts draw after their data has come
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=path, full_page=full)


def open_page(browser: Browser, state: Path, *, width: int, theme: str) -> Page:
    context = browser.new_context(
        storage_state=state,
        viewport={"width": width, "height": 900},
        color_scheme="dark" if theme == "dark" else "light",
    )
    return context.new_page()


def take_all(browser: Browser, state: Path, pages: dict[str, str], out: Path) -> None:
    for theme in THEMES:
        for width_name, width in WIDTHS.items():
            page = open_page(browser, state, width=width, theme=theme)
            for name, address in pages.items():
                take(page, address, out / f"{name}-{width_name}-{theme}.png", full=True)
            page.context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, metavar="DIR")
    chosen = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with (
        tempfile.TemporaryDirectory(prefix="cohort-", dir="/tmp") as folder,
        cohort(Path(folder) / "data") as link,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        first = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        run = sign_in(first, link)
        wait_for_steps(first, run)
        pages = addresses(first, run)
        for name in README_PAGES:
            take(first, pages[name], README_PICTURES / f"{name}.png", full=False)
        if chosen.all:
            pages |= make_examples(first, run.split("/runs/")[0])
            state = Path(folder) / "state.json"
            first.context.storage_state(path=state)
            take_all(browser, state, pages, chosen.all)
        browser.close()


if __name__ == "__main__":
    main()
