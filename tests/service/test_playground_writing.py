"""Judgements and new labels in the playground, in a real browser, with an API key that may change the memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.conftest import TOPICS
from tests.processes import copy_store, serving
from tests.service.stores import make_first

pytest.importorskip("playwright", reason="playwright is not installed")

from playwright.sync_api import expect  # noqa: E402

from tests.service.browser_pages import CHROMIUM, address, checked_page, chromium, labels_of  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

WRITER, READER = "writer-0123456789abcdef", "reader-0123456789abcdef"
SCRIPT = "<img src=x onerror='window.ran = 1'><script>window.ran = 1</script>"
CONTROLS = ".thumb, .change button, .add-label input"


@pytest.fixture(scope="module")
def url(light_versions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("writing")
    store = copy_store(light_versions, folder / "store")
    make_first(store, "v5")
    keys = f"writer {WRITER} write\nreader {READER}\n"
    with serving(store, "--writable", "--delta-keys", "40", keys=keys) as server:
        yield server.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(params=[WRITER])
def page(browser: Browser, url: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page whose tab has an API key."""
    key = json.dumps(request.param)
    with checked_page(browser, url, f"sessionStorage.setItem('recollect-api-key', {key})") as page:
        yield page


def ask(url: str, query: str) -> list[str]:
    response = httpx.post(f"{url}/predict", json={"query": query}, headers={"X-API-Key": WRITER})
    return [label["text"] for label in response.json()["labels"]]


def memory(url: str) -> dict[str, Any]:
    status: dict[str, Any] = httpx.get(f"{url}/memory", headers={"X-API-Key": WRITER}).json()
    return status


def thumb(page: Page, text: str, meaning: str) -> Any:
    return page.get_by_role("button", name=f"{text}: {meaning}", exact=True)


def test_thumbs_down_removes_the_label_at_once_and_undo_brings_it_back(page: Page, url: str) -> None:
    query = "Fry garlic in oil"
    before = ask(url, query)
    page.goto(address(url, q=query))
    expect(labels_of(page)).to_have_text(before)
    thumb(page, before[0], "not relevant").click()
    expect(labels_of(page).first).to_have_text(before[1])
    assert before[0] not in labels_of(page).all_text_contents()
    assert labels_of(page).all_text_contents() == ask(url, query)
    expect(page.locator(".change p")).to_have_text(f"“{before[0]}” is not relevant to “{query}”.")

    undo = page.get_by_role("button", name="Undo")
    expect(undo).to_be_focused()  # the row with the focus is gone
    page.get_by_label("Your text").fill("another text")  # Undo stays until the next judgement
    expect(labels_of(page)).to_have_text(ask(url, "another text"))
    page.get_by_label("Your text").fill(query)
    undo.press("Enter")
    expect(labels_of(page)).to_have_text(before)
    expect(page.locator(".change p")).to_have_text("The judgement is undone.")
    expect(undo).to_be_hidden()
    assert ask(url, query) == before


def test_label_is_found_with_the_keyboard_and_added_to_the_answer(page: Page, url: str) -> None:
    query = "Nothing that the memory knows"
    missing = next(label for label in TOPICS if label not in ask(url, query))
    page.goto(address(url, q=query))
    field = page.get_by_role("combobox", name="Add a label")
    field.press_sequentially(missing[:3].lower())
    expect(page.get_by_role("option").first).to_contain_text(missing)
    expect(field).to_have_attribute("aria-expanded", "true")
    field.press("ArrowDown")
    expect(page.get_by_role("option").last).to_have_attribute("aria-selected", "true")
    field.press("ArrowUp")
    field.press("Enter")
    expect(labels_of(page).first).to_have_text(missing)
    expect(page.get_by_role("listbox")).to_be_hidden()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".change p")).to_have_text("The judgement is undone.")
    assert missing not in ask(url, query)


def test_unknown_text_creates_a_label_that_stays_text_and_undo_removes_it(page: Page, url: str) -> None:
    query, before = "A tale of scripts", memory(url)
    page.goto(address(url, q=query))
    field = page.get_by_role("combobox", name="Add a label")
    field.fill(SCRIPT)
    page.get_by_role("option", name="Create the label").click()
    expect(labels_of(page).first).to_have_text(SCRIPT)
    expect(page.locator(".change p")).to_contain_text("is a new label of “A tale of scripts”.")
    field.fill(SCRIPT[:5])
    expect(page.get_by_role("option").first).to_contain_text(SCRIPT)
    field.press("Escape")
    page.get_by_role("button", name=SCRIPT, exact=False).first.click()
    expect(page.locator(".terms").get_by_text(query)).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".change p")).to_contain_text("is removed.")
    expect(labels_of(page).filter(has_text="<img")).to_have_count(0)
    after = memory(url)
    assert (after["labels"], after["instances"]) == (before["labels"], before["instances"])


@pytest.mark.parametrize(
    ("status", "code"),
    [(403, "no_write_scope"), (503, "log_unwritable")],
)
def test_refused_change_shows_the_reason_and_changes_nothing(page: Page, url: str, status: int, code: str) -> None:
    def refuse(route: Route) -> None:
        problem = {"status": status, "code": code, "detail": f"the {code} detail"}
        route.fulfill(status=status, content_type="application/problem+json", body=json.dumps(problem))

    query = "A text that nobody judges"
    before = ask(url, query)
    page.route("**/feedback", refuse)
    page.goto(address(url, q=query))
    thumb(page, before[0], "not relevant").click()
    expect(page.locator(".judged .notice")).to_contain_text(f"The {code} detail.")
    expect(labels_of(page)).to_have_text(before)
    expect(thumb(page, before[0], "not relevant")).to_have_attribute("aria-pressed", "false")
    page.unroute("**/feedback")
    page.locator(".judged").get_by_role("button", name="Try now").click()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".change p")).to_have_text("The judgement is undone.")


@pytest.mark.parametrize("page", [READER], indirect=True)
def test_page_of_a_key_without_the_scope_write_has_no_controls(page: Page, url: str) -> None:
    page.goto(address(url, q="Fry garlic in oil"))
    expect(labels_of(page)).to_have_count(5)
    expect(page.locator(CONTROLS).filter(visible=True)).to_have_count(0)
