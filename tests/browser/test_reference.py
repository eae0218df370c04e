"""Key pages look like their reference pictures.

Fonts, times and ids differ between machines and days, so an exact comparison would always fail. Pages are compared
without text and at a coarse resolution of 72 cells in a row: layout and colours count, words do not. A page that
differs leaves its new picture in `.test-run/pictures/`. Look at it, and if the change is intended, copy it to
`tests/browser/reference/`.
"""

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops
from playwright.sync_api import Browser

from tests.admin.crawling import TeamData
from tests.browser.chromium import CHROMIUM, INSTALL
from tests.browser.test_every_page import KEY_PAGES, addressed
from tests.browser.visiting import Visit, person, visiting
from tests.support.web import ROOT, WebProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=INSTALL),
]
REFERENCE = Path(__file__).with_name("reference")
NEW = ROOT / ".test-run" / "pictures"
_CELLS = 72
_MIN_DIFFERENCE = 20  # of 255
_MAX_SHARE = 0.12  # of the cells
_NO_TEXT = "*, *::before, *::after { color: transparent !important; caret-color: transparent !important; }"


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_key_pages_look_like_their_reference(
    scheme: Any, browser: Browser, web: WebProcess, subject: TeamData, database: None
) -> None:
    changed = []
    with visiting(browser, web.url, person("team_lead", subject.team), color_scheme=scheme) as visit:
        visit.wide(1280)
        for name, path in KEY_PAGES.items():
            picture = screenshot_of(visit, addressed(path, subject))
            stored = REFERENCE / f"{name.replace(' ', '-')}-{scheme}.png"
            share = difference(picture, Image.open(stored)) if stored.exists() else 1.0
            if share > _MAX_SHARE:
                NEW.mkdir(parents=True, exist_ok=True)
                picture.quantize(48).save(NEW / stored.name, optimize=True)
                changed.append(f"{name} in {scheme}: {share:.0%} differ, see {NEW / stored.name}")
    hint = f"If the change is intended, copy them to {REFERENCE.relative_to(ROOT)}."
    assert not changed, "\n".join([*changed, hint])


def screenshot_of(visit: Visit, path: str) -> Image.Image:
    """Return a screenshot of a page without its text."""
    visit.open(path)
    visit.page.wait_for_load_state("load")
    picture = visit.page.screenshot(animations="disabled", style=_NO_TEXT)
    return Image.open(io.BytesIO(picture)).convert("RGB").resize((640, 450))


def difference(one: Image.Image, other: Image.Image) -> float:
    """Return the share of cells in which two pictures differ."""
    cells = [coarse(picture.convert("RGB")) for picture in (one, other)]
    values = list(ImageChops.difference(*cells).convert("L").tobytes())
    return sum(value > _MIN_DIFFERENCE for value in values) / len(values)


def coarse(picture: Image.Image) -> Image.Image:
    """Reduce a picture to a few cells."""
    return picture.resize((_CELLS, _CELLS * picture.height // picture.width), Image.Resampling.BOX)
