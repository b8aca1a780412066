"""Pictures of the site as a reader opens it: from a folder, without a network, on two screens, in both colour schemes.

``make docs`` has to come first. Needs Chromium and the package ``playwright``. Any request that leaves the folder is
an error, and so is a search without a result and a page that is wider than the screen.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import product
from typing import Any

from docs.generator.pictures import ROOT

SITE = ROOT / "site"
FOLDER = ROOT / "site-pictures"
PAGES = (
    "index",
    "tutorials/laptop",
    "install",
    "jobs",
    "queues",
    "airflow",
    "troubleshooting",
    "reference/commands",
    "benchmarks",
)
SCREENS = {"phone": (390, 844), "screen": (1280, 900)}
SCHEMES = ("light", "dark")


def take() -> None:
    """Write ``site-pictures/PAGE-SCREEN-SCHEME.png``; RuntimeError with all that is wrong."""
    from playwright.sync_api import sync_playwright

    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise RuntimeError("no Chromium is on the PATH: apt-get install chromium")
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        wrong = [*_every_page(chromium)]
        for (screen, size), scheme in product(SCREENS.items(), SCHEMES):
            wrong += _pictures(chromium, screen, size, scheme)
        chromium.close()
    if wrong:
        raise RuntimeError("\n".join(sorted(set(wrong))))
    print(f"{FOLDER}: {len(list(FOLDER.glob('*.png')))} pictures")


def _pictures(chromium: Any, screen: str, size: tuple[int, int], scheme: str) -> Iterator[str]:
    width, height = size
    context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, offline=True)
    page = context.new_page()
    for name in PAGES:
        page.goto((SITE / f"{name}.html").as_uri())
        page.screenshot(path=FOLDER / f"{name.replace('/', '-')}-{screen}-{scheme}.png")
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            yield f"{name} is {wide} pixels wide on a {screen}"
    yield from _search(page, width)
    yield from _copies(page)
    context.close()


def _search(page: Any, width: int) -> Iterator[str]:
    """What the search does not find."""
    page.goto((SITE / "index.html").as_uri())
    if width < 960:
        page.click("label[for=__search].md-header__button")
    else:
        page.click("input[name=query]")
    page.locator("input[name=query]").press_sequentially("preemption")
    try:
        page.wait_for_selector("li.md-search-result__item", timeout=20_000)
    except Exception as error:
        yield f"the search finds nothing at {width} pixels: {error}"
    page.screenshot(path=FOLDER / f"search-{width}.png")


def _copies(page: Any) -> Iterator[str]:
    """What the copy button copies beside commands."""
    page.goto((SITE / "tutorials" / "laptop.html").as_uri())
    page.evaluate("document.addEventListener('copy', (event) => (window.copied = document.getSelection().toString()))")
    block = page.locator(".language-console", has_text="error: wrong.yaml").first
    block.hover()
    block.locator(".md-code__button[data-clipboard-target], button.md-clipboard").first.click()
    page.wait_for_function("window.copied !== undefined")
    copied = page.evaluate("window.copied")
    if "$" in copied or "error:" in copied or "tf-dist validate wrong.yaml" not in copied:
        yield f"the copy button copies {copied!r}"


def _every_page(chromium: Any) -> Iterator[str]:
    """Requests of all pages to other servers, and scripts that fail."""
    context = chromium.new_context(offline=True)
    page = context.new_page()
    found: list[str] = []
    page.on("request", lambda one: one.url.startswith(("file:", "data:", "blob:")) or found.append(one.url))
    page.on("pageerror", lambda error: found.append(f"{page.url}: {error}"))
    for path in sorted(SITE.rglob("*.html")):
        page.goto(path.as_uri())
    context.close()
    yield from found
