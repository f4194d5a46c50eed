"""The playground in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from recollect.core.bundle.strings import StringTable, write_table
from tests import web
from tests.conftest import TOPICS
from tests.processes import PATIENCE_SECONDS, copy_store, serving
from tests.service.stores import add_version, make_first, rehash, with_fields

pytest.importorskip("playwright", reason="playwright is not installed")

from playwright.sync_api import Error, expect, sync_playwright  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

expect.set_options(timeout=1_000 * PATIENCE_SECONDS)
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

QUERY = "Bake the bread in a hot oven for forty minutes"
# Texts of the memory that would run as a script if the page read them as HTML.
SCRIPT = "<img src=x onerror='window.ran = 1'><script>window.ran = 1</script>"
LABEL, INSTANCE = f"label {SCRIPT} {'x' * 300}", f"instance {SCRIPT}"
VIEWS = ("ask", "balance", "about")


def hostile_texts(folder: Path, manifest: dict[str, Any]) -> None:
    """A change to a copied version: the text of the label Cooking and the text of an instance contain scripts."""
    table = StringTable.open(folder, "instance_texts", manifest["counts"]["instances"])
    texts = [table[row] for row in range(len(table))]
    write_table(folder, "instance_texts", [INSTANCE if text == QUERY else text for text in texts])
    write_table(folder, "label_texts", [LABEL if label == "Cooking" else label for label in TOPICS])
    rehash(folder, manifest)


@pytest.fixture(scope="module")
def url(light_versions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = copy_store(light_versions, tmp_path_factory.mktemp("playground") / "store")
    make_first(store, add_version(store, "v5", "hostile", hostile_texts))
    with serving(store, "--poll-seconds", "600", "--max-batch", "10") as server:
        yield server.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextlib.contextmanager
def checked_page(browser: Browser, url: str, script: str = "") -> Iterator[Page]:
    """An empty page. At the end: no script failed, nothing was refused, and no other server was asked.

    `script` runs at the beginning of each page.
    """
    with browser.new_context(permissions=["clipboard-read", "clipboard-write"]) as context:
        page = context.new_page()
        page.add_init_script(script)
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if "Security Policy" in message.text else None)
        page.on("request", lambda request: None if request.url.startswith(url) else faults.append(request.url))
        yield page
        assert faults == []
        assert page.evaluate("window.ran") is None


def address(url: str, **state: Any) -> str:
    return f"{url}/#{httpx.QueryParams(state)}"


def labels_of(page: Page, side: str = "#view-ask .labels") -> Any:
    return page.locator(f"{side} .label-text")


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    with checked_page(browser, url) as page:
        yield page


def ask(url: str, **body: Any) -> list[dict[str, Any]]:
    labels: list[dict[str, Any]] = httpx.post(f"{url}/predict", json=body).json()["labels"]
    return labels


def test_labels_appear_while_typing_and_the_url_holds_query_and_options(page: Page, url: str) -> None:
    page.goto(url)
    page.get_by_label("Your text").press_sequentially("orchestra plays")
    expected = ask(url, query="orchestra plays")
    expect(labels_of(page)).to_have_text([label["text"] for label in expected])
    expect(page.locator("#view-ask .score")).to_have_text([f"{label['score']:.3f}" for label in expected])
    page.wait_for_url(re.compile(r"#q=orchestra\+plays$"))

    expect(page.locator("#options .option").first).to_be_hidden()  # options are folded at first
    page.get_by_text("Options", exact=True).click()
    page.get_by_role("slider", name="Labels in the answer").focus()
    page.keyboard.press("Home")
    expect(labels_of(page)).to_have_count(1)
    page.wait_for_url(re.compile(r"#q=orchestra\+plays&k=1$"))
    page.reload()
    expect(labels_of(page)).to_have_text([expected[0]["text"]])
    page.get_by_text("Options 1 changed").click()
    page.get_by_role("button", name="Reset").click()
    expect(labels_of(page)).to_have_count(len(expected))


def test_selected_label_shows_votes_that_add_up_to_its_score_and_a_training_text_becomes_the_query(
    page: Page, url: str
) -> None:
    query = "The choir sings a mass in an old church"
    best = ask(url, query=query, explain=True)[0]
    page.goto(address(url, q=query))
    page.get_by_role("button", name=best["text"]).click()
    expect(page.locator(".sum")).to_have_text(
        f"Sum of the votes {sum(term['share'] for term in best['because']):.4f} · score {best['score']:.4f}"
    )
    expect(page.locator(".terms li")).to_have_count(min(12, len(best["because"])))
    page.wait_for_url(re.compile("why="))
    page.locator(".terms .link").nth(1).click()
    text = sorted(best["because"], key=lambda term: -term["share"])
    asked = [term["text"] for term in text if term["kind"] == "instance"][1]
    expect(page.get_by_label("Your text")).to_have_value(asked)
    expect(labels_of(page).first).to_have_text(ask(url, query=asked)[0]["text"])
    page.go_back()
    expect(page.get_by_label("Your text")).to_have_value(query)
    expect(page.locator(".sum")).to_be_visible()  # the URL holds the selected label too
    page.locator("[aria-expanded=true]").press("Escape")
    expect(page.locator(".sum")).to_have_count(0)


def test_balance_draws_the_ranks_at_each_lambda(page: Page, url: str) -> None:
    page.goto(address(url, view="balance", q=QUERY))
    page.get_by_text("Ranks as a table").click()
    header, *rows = page.locator(".chart tr").all()
    lambdas = header.locator("th").all_text_contents()[1:]
    assert (lambdas[0], lambdas[-1], len(lambdas)) == ("0", "1", 13)
    for column in (0, 6, 12):
        expected = [label["text"] for label in ask(url, query=QUERY, top_k=10, **{"lambda": float(lambdas[column])})]
        ranks = {row.locator("td").nth(column).text_content(): row.locator("th").text_content() for row in rows}
        assert [ranks[str(rank + 1)] for rank in range(len(expected))] == expected
    assert page.locator(".lines .line").count() == len(rows)
    chart = page.locator(".lines").bounding_box()
    assert chart is not None
    for box in [name.bounding_box() for name in page.locator(".lines .line text").all()]:
        assert box is not None
        assert chart["x"] <= box["x"] <= box["x"] + box["width"] <= chart["x"] + chart["width"]
    rows[1].get_by_role("button").click()
    expect(page.locator(".lines .selected title")).to_have_text(str(rows[1].locator("th").text_content()))


def test_page_shows_a_temporary_problem_and_asks_again_by_itself(page: Page, url: str) -> None:
    is_read = False

    def busy_until_read(route: Route) -> None:
        if is_read:
            route.continue_()
            return
        problem = {"status": 503, "title": "Service Unavailable", "code": "overloaded", "detail": "too many queries"}
        route.fulfill(status=503, headers={"Retry-After": "1"}, json=problem)

    page.route("**/predict", busy_until_read)
    page.goto(address(url, q=QUERY))
    expect(page.locator("#view-ask .notice")).to_contain_text("Too many queries.")
    is_read = True
    expect(labels_of(page).first).to_be_visible()
    expect(page.locator(".notice")).to_have_count(0)
    page.route("**/predict", lambda route: route.abort())
    page.get_by_label("Your text").fill("comet")
    expect(page.locator("#view-ask .notice")).to_contain_text("The service cannot be reached")
    expect(labels_of(page).first).to_be_hidden()


def test_page_asks_for_an_api_key_and_forgets_it_with_the_tab(page: Page, url: str) -> None:
    def guarded(route: Route) -> None:
        if route.request.headers.get("x-api-key") == "secret of the shop":
            route.continue_()
        else:
            route.fulfill(
                status=401, json={"status": 401, "code": "unauthorized", "detail": "expected a known API key"}
            )

    for path in ("predict", "version", "playground/bundle"):
        page.route(f"**/{path}", guarded)
    page.goto(address(url, q=QUERY))
    for heading, key in (("This service needs", "wrong"), ("The API key is not known", "secret of the shop")):
        expect(page.get_by_role("heading", name=heading)).to_be_visible()
        page.get_by_label("API key").fill(key)
        page.keyboard.press("Enter")
    expect(labels_of(page).first).to_be_visible()
    assert "secret" not in page.url
    assert page.evaluate("localStorage.length + document.cookie.length") == 0
    page.get_by_role("button", name="Copy as curl").click()
    assert "$RECOLLECT_API_KEY" in page.locator("#share pre").inner_text()


def test_scripts_in_queries_labels_and_training_texts_are_shown_as_text(page: Page, url: str) -> None:
    page.goto(address(url, q=QUERY))
    page.get_by_role("button", name="label <img").click()
    expect(page.locator(".terms").get_by_text(INSTANCE)).to_be_visible()
    page.locator(".terms .link", has_text="instance <img").click()
    expect(page.get_by_label("Your text")).to_have_value(INSTANCE)
    expect(labels_of(page).first).to_be_visible()
    for view in VIEWS:
        page.goto(address(url, view=view, q=SCRIPT, why=SCRIPT))
        expect(page.locator(f"#view-{view}")).to_be_visible()
    assert page.locator("img, body script").count() == 0
    with pytest.raises(Error, match="TrustedHTML"):  # the browser would refuse a page that reads texts as HTML
        page.evaluate("document.body.innerHTML = ''")


def calibrated(folder: Path, manifest: dict[str, Any]) -> None:
    """A change to a copied version: it gives probabilities, and knows the order macro."""
    platt = {"method": "platt", "slope": 0.5, "intercept": 0.0}
    measured = {"texts": 100, "metrics": {"ECE@1": 0.01}, "mean_top_probability": 0.5}
    manifest["probabilities"] = {"calibration": platt, **measured}
    manifest["defaults"]["tail_weight"] = 0.5


@pytest.fixture(scope="module")
def grouped_url(light_versions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of topics with a name, a notation, groups and probabilities."""
    store = copy_store(light_versions, tmp_path_factory.mktemp("groups") / "store")
    fields = {
        label: {"name": f"On {label}", "notation": label[:2], "groups": ["all", "odd" if place % 2 else SCRIPT]}
        for place, label in enumerate(TOPICS)
    }
    add_version(store, "v5", "grouped", with_fields(fields))
    make_first(store, add_version(store, "grouped", "calibrated", calibrated))
    with serving(store, "--poll-seconds", "600") as server:
        yield server.url


def test_labels_have_names_notations_and_groups_and_a_group_filters_the_answers(
    browser: Browser, grouped_url: str
) -> None:
    with checked_page(browser, grouped_url) as page:
        page.goto(address(grouped_url, q=QUERY))
        expected = ask(grouped_url, query=QUERY)
        expect(labels_of(page)).to_have_text([f"On {label['text']}" for label in expected])
        expect(page.locator(".label-head .small").first).to_have_text(expected[0]["uid"])
        chips = page.locator(".labels .buttons").first.get_by_role("button")
        group = "odd" if [*TOPICS].index(expected[0]["uid"]) % 2 else SCRIPT
        expect(chips).to_have_text([expected[0]["uid"][:2], "all", group])
        page.get_by_role("button", name="On ").first.click()
        expect(page.locator(".why")).to_contain_text([f"Text of the label: {expected[0]['text']}"])

        for group, view in ((SCRIPT, "ask"), ("odd", "balance")):
            page.goto(address(grouped_url, q=QUERY))
            page.locator(".labels").get_by_role("button", name=group, exact=True).first.click()
            chip = page.get_by_role("group", name="Filter").get_by_role("button")
            expect(chip).to_be_focused()
            filtered = ask(grouped_url, query=QUERY, where={"groups": group})
            expect(labels_of(page)).to_have_text([f"On {label['text']}" for label in filtered])
            page.get_by_role("button", name="Copy as curl").click()
            assert json.dumps({"groups": [group]}, separators=(",", ":")).replace("'", r"'\''") in str(
                page.locator("#share pre").text_content()
            )
            page.goto(
                address(grouped_url, view=view, q=QUERY, field="groups", **{"is": group})
            )  # the URL holds the group
            expect(chip).to_have_text(f"{group} ×")
            if view == "balance":
                expect(page.locator(".chart tr")).to_have_count(1 + len(filtered))
        chip.click()
        expect(page.get_by_label("Your text")).to_be_focused()
        expect(page.locator("#filter")).to_be_hidden()
        expect(page.locator(".chart tr")).not_to_have_count(1 + len(filtered))
        page.get_by_text("Options", exact=True).click()
        page.get_by_label("Field of the filter").select_option("name")
        page.get_by_label("Only labels with the").fill(f"On {expected[1]['uid']}")
        page.keyboard.press("Enter")
        expect(page.locator(".chart tr")).to_have_count(2)
        page.goto(address(grouped_url, q=QUERY, field="groups", **{"is": "unknown"}))
        expect(page.locator("#view-ask .notice")).to_contain_text("expected values that a label has, such as")


def test_order_is_chosen_in_words_and_the_order_macro_is_explained(browser: Browser, grouped_url: str) -> None:
    with checked_page(browser, grouped_url) as page:
        page.goto(address(grouped_url, q=QUERY))
        page.get_by_text("Options", exact=True).click()
        order = page.get_by_label("Order of the labels")
        order.select_option("rare labels move up")
        expected = ask(grouped_url, query=QUERY, order="macro", explain=True)
        expect(page.locator("#view-ask > .status")).to_contain_text("Labels with few training texts move up")
        expect(labels_of(page)).to_have_text([label["name"] for label in expected])
        labels_of(page).first.click()
        trained = expected[0]["ranked_by"][-1]["value"]
        expect(page.locator(".macro")).to_contain_text(
            f"This label has {trained:g} training texts, so the order counts"
        )
        page.wait_for_url(re.compile("order=macro"))
        page.get_by_label("Label texts ↔ training texts, exact value").fill("0.3")
        expect(labels_of(page)).to_have_text(
            [each["name"] for each in ask(grouped_url, query=QUERY, **{"lambda": 0.3})]
        )
        expect(order).to_be_disabled()
        expect(order).to_have_value("score")
        expect(page.locator("summary .small").first).to_have_text("2 changed")


def test_order_and_rerank_in_the_url_that_the_version_lacks_are_ignored(
    browser: Browser, url: str, grouped_url: str
) -> None:
    # The first version has no probabilities; both have no cross-encoder.
    for server, order, kept in ((url, "macro", None), (url, "probability", None), (grouped_url, "macro", "macro")):
        with checked_page(browser, server) as page:
            with page.expect_response("**/predict") as answered:
                page.goto(address(server, q=QUERY, order=order, rerank="true"))
            assert answered.value.status == 200
            expected = ask(server, query=QUERY, order=kept)
            expect(labels_of(page)).to_have_text([label.get("name", label["text"]) for label in expected])
            expect(page.locator("summary .small").first).to_have_text("1 changed" if kept else "")


def test_probabilities_and_the_assigned_set_are_shown_if_answers_have_them(page: Page, url: str) -> None:
    def calibrated(route: Route) -> None:
        labels = ask(url, query=QUERY)
        assigned = json.loads(route.request.post_data).get("assign", False)
        shown = [label | {"probability": 0.625} for label in labels[: 2 if assigned else None]]
        route.fulfill(json={"version": "hostile", "labels": shown})

    page.route("**/predict", calibrated)
    page.goto(address(url, q=QUERY))
    expect(page.locator(".probability").first).to_have_text("63%")
    expect(page.locator(".labels > li").nth(2)).to_have_text("Assign these 2 labels")


@pytest.mark.parametrize("width", [320, 1280])
def test_bars_of_the_time_stay_inside_their_box(page: Page, url: str, width: int) -> None:
    stages = {"queue": 0, "words": 123456789.5, "search": 1e-9, "rank": 5e8, "rerank": 0.004, "unknown" * 12: 7}

    def timed(route: Route) -> None:
        timing = ", ".join(f"{stage};dur={spent:.3f}" for stage, spent in stages.items())
        answer = route.fetch()
        route.fulfill(response=answer, headers={**answer.headers, "server-timing": timing})

    page.route("**/predict", timed)
    page.set_viewport_size({"width": width, "height": 740})
    page.goto(address(url, q=QUERY))
    expect(page.locator("#timing dt")).to_have_count(len(stages) + 1)
    outside = """section => [...section.querySelectorAll("*")].filter((node) => {
        const [box, inner] = [section, node].map((each) => each.getBoundingClientRect());
        return inner.left < box.left || inner.right > box.right + 0.5 || node.scrollWidth > node.clientWidth + 1;
    }).map((node) => node.outerHTML)"""
    assert page.locator("#timing").evaluate(outside) == []


def test_query_has_two_names_in_the_url_and_tabs_show_the_three_views(page: Page, url: str) -> None:
    page.goto(address(url, query=QUERY))
    expect(page.get_by_label("Your text")).to_have_value(QUERY)
    expect(labels_of(page).first).to_be_visible()
    page.get_by_role("link", name="Balance").click()
    expect(page.locator(".lines .line").first).to_be_visible()
    expect(page.locator(".status").filter(visible=True)).to_contain_text("The emphasised line is")
    page.get_by_role("link", name="About this model").click()
    facts = page.locator(".facts")
    version = httpx.get(f"{url}/version").json()
    for text in (version["version"], version["encoder"]["name"], "Number of keys to retrieve", "Index: labels"):
        expect(facts).to_contain_text(text)
    expect(page.get_by_role("link", name="About this model")).to_have_attribute("aria-current", "page")
    expect(page.get_by_label("Your text")).to_be_hidden()
    page.go_back()
    page.go_back()
    expect(labels_of(page).first).to_be_visible()


def test_page_fits_a_phone_and_every_control_has_a_name(page: Page, url: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    for view in VIEWS:
        page.goto(address(url, view=view, q=QUERY))
        expect(page.locator(f"#view-{view}")).to_be_visible()
        page.wait_for_load_state("networkidle")
        for summary in page.locator("summary").filter(visible=True).all():
            summary.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
        shown = page.locator("body").aria_snapshot()
        assert not re.findall(
            r"- (?:button|link|textbox|slider|spinbutton|heading|combobox|checkbox)(?: \[.*\])?:?$", shown, re.M
        ), view


def test_swagger_ui_behind_a_path_prefix_sends_its_requests_to_the_prefix(browser: Browser, url: str) -> None:
    class Proxy(web.Handler):
        def do_GET(self) -> None:  # noqa: N802
            if not self.path.startswith("/search/"):
                self.answer(404)
                return
            answer = httpx.get(url + self.path.removeprefix("/search"))
            self.answer(answer.status_code, answer.content, {"Content-Type": answer.headers["content-type"]})

    with web.answering(Proxy) as port:
        prefix = f"http://127.0.0.1:{port}/search"
        with checked_page(browser, prefix) as page:
            page.goto(f"{prefix}/docs")
            version = page.locator(".opblock", has=page.locator("[data-path='/version']"))
            version.locator(".opblock-summary").click()
            version.get_by_role("button", name="Try it out").click()
            with page.expect_response("**/version") as answered:
                version.get_by_role("button", name="Execute").click()
            assert (answered.value.url, answered.value.status) == (f"{prefix}/version", 200)


def test_swagger_ui_describes_each_path_and_sends_a_request(page: Page, url: str) -> None:
    page.goto(f"{url}/docs")
    paths = httpx.get(f"{url}/openapi.json").json()["paths"]
    expect(page.locator(".opblock")).to_have_count(sum(len(methods) for methods in paths.values()))
    predict = page.locator(".opblock", has=page.locator("[data-path='/predict']"))
    predict.locator(".opblock-summary").click()
    predict.get_by_role("button", name="Try it out").click()
    predict.locator("textarea").fill('{"query": "comet", "top_k": 1}')
    predict.get_by_role("button", name="Execute").click()
    expect(predict.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
    expect(predict.locator(".live-responses-table")).to_contain_text(ask(url, query="comet", top_k=1)[0]["text"])


# ---- Judgements and new labels, with an API key that may change the memory ----

WRITER, READER = "writer-0123456789abcdef", "reader-0123456789abcdef"
CONTROLS = ".thumb, .change button, .add-label input"


@pytest.fixture(scope="module")
def writable_url(light_versions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = copy_store(light_versions, tmp_path_factory.mktemp("writing") / "store")
    make_first(store, "v5")
    keys = f"writer {WRITER} write\nreader {READER}\n"
    with serving(store, "--writable", "--delta-keys", "40", keys=keys) as server:
        yield server.url


@pytest.fixture(params=[WRITER])
def tab(browser: Browser, writable_url: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page whose tab has an API key."""
    key = json.dumps(request.param)
    with checked_page(browser, writable_url, f"sessionStorage.setItem('recollect-api-key', {key})") as tab:
        yield tab


def texts(url: str, query: str) -> list[str]:
    response = httpx.post(f"{url}/predict", json={"query": query}, headers={"X-API-Key": WRITER})
    return [label["text"] for label in response.json()["labels"]]


def memory(url: str) -> dict[str, Any]:
    status: dict[str, Any] = httpx.get(f"{url}/memory", headers={"X-API-Key": WRITER}).json()
    return status


def thumb(tab: Page, text: str, meaning: str) -> Any:
    return tab.get_by_role("button", name=f"{text}: {meaning}", exact=True)


def test_thumbs_down_removes_the_label_at_once_and_undo_brings_it_back(tab: Page, writable_url: str) -> None:
    query = "Fry garlic in oil"
    before = texts(writable_url, query)
    tab.goto(address(writable_url, q=query))
    expect(labels_of(tab)).to_have_text(before)
    thumb(tab, before[0], "not relevant").click()
    expect(labels_of(tab).first).to_have_text(before[1])
    assert before[0] not in labels_of(tab).all_text_contents()
    assert labels_of(tab).all_text_contents() == texts(writable_url, query)
    expect(tab.locator(".change p")).to_have_text(f"“{before[0]}” is not relevant to “{query}”.")

    undo = tab.get_by_role("button", name="Undo")
    expect(undo).to_be_focused()  # the row with the focus is gone
    tab.get_by_label("Your text").fill("another text")  # Undo stays until the next judgement
    expect(labels_of(tab)).to_have_text(texts(writable_url, "another text"))
    tab.get_by_label("Your text").fill(query)
    undo.press("Enter")
    expect(labels_of(tab)).to_have_text(before)
    expect(tab.locator(".change p")).to_have_text("The judgement is undone.")
    expect(undo).to_be_hidden()
    assert texts(writable_url, query) == before


def test_opposite_judgement_replaces_the_first_one(tab: Page, writable_url: str) -> None:
    query, before = "Fry garlic in oil", memory(writable_url)
    tab.goto(address(writable_url, q=query))
    label = texts(writable_url, query)[0]
    thumb(tab, label, "relevant").click()
    expect(tab.locator(".change p")).to_have_text(f"“{label}” is relevant to “{query}”.")
    assert memory(writable_url)["instances"] == before["instances"] + 1
    thumb(tab, label, "not relevant").click()
    expect(tab.locator(".change p")).to_have_text(f"“{label}” is not relevant to “{query}”.")
    after = memory(writable_url)
    assert (after["instances"], after["corrections"]) == (before["instances"], before["corrections"] + 1)
    tab.get_by_role("button", name="Undo").click()
    expect(tab.locator(".change p")).to_have_text("The judgement is undone.")
    assert memory(writable_url)["corrections"] == before["corrections"]


def test_label_is_found_with_the_keyboard_and_added_to_the_answer(tab: Page, writable_url: str) -> None:
    query = "Nothing that the memory knows"
    missing = next(label for label in TOPICS if label not in texts(writable_url, query))
    tab.goto(address(writable_url, q=query))
    field = tab.get_by_role("combobox", name="Add a label")
    field.press_sequentially(missing[:3].lower())
    expect(tab.get_by_role("option").first).to_contain_text(missing)
    expect(field).to_have_attribute("aria-expanded", "true")
    field.press("ArrowDown")
    expect(tab.get_by_role("option").last).to_have_attribute("aria-selected", "true")
    field.press("ArrowUp")
    field.press("Enter")
    expect(labels_of(tab).first).to_have_text(missing)
    expect(tab.get_by_role("listbox")).to_be_hidden()
    tab.get_by_role("button", name="Undo").click()
    expect(tab.locator(".change p")).to_have_text("The judgement is undone.")
    assert missing not in texts(writable_url, query)


def test_unknown_text_creates_a_label_that_stays_text_and_undo_removes_it(tab: Page, writable_url: str) -> None:
    query, before = "A tale of scripts", memory(writable_url)
    tab.goto(address(writable_url, q=query))
    field = tab.get_by_role("combobox", name="Add a label")
    field.fill(SCRIPT)
    tab.get_by_role("option", name="Create the label").click()
    expect(labels_of(tab).first).to_have_text(SCRIPT)
    expect(tab.locator(".change p")).to_contain_text("is a new label of “A tale of scripts”.")
    field.fill(SCRIPT[:5])
    expect(tab.get_by_role("option").first).to_contain_text(SCRIPT)
    field.press("Escape")
    tab.get_by_role("button", name=SCRIPT, exact=False).first.click()
    expect(tab.locator(".terms").get_by_text(query)).to_be_visible()
    tab.get_by_role("button", name="Undo").click()
    expect(tab.locator(".change p")).to_contain_text("is removed.")
    expect(labels_of(tab).filter(has_text="<img")).to_have_count(0)
    after = memory(writable_url)
    assert (after["labels"], after["instances"]) == (before["labels"], before["instances"])


@pytest.mark.parametrize(("status", "code"), [(403, "no_write_scope"), (503, "log_unwritable")])
def test_refused_change_shows_the_reason_and_changes_nothing(
    tab: Page, writable_url: str, status: int, code: str
) -> None:
    def refuse(route: Route) -> None:
        problem = {"status": status, "code": code, "detail": f"the {code} detail"}
        route.fulfill(status=status, content_type="application/problem+json", body=json.dumps(problem))

    query = "A text that nobody judges"
    before = texts(writable_url, query)
    tab.route("**/feedback", refuse)
    tab.goto(address(writable_url, q=query))
    thumb(tab, before[0], "not relevant").click()
    expect(tab.locator(".judged .notice")).to_contain_text(f"The {code} detail.")
    expect(labels_of(tab)).to_have_text(before)
    expect(thumb(tab, before[0], "not relevant")).to_have_attribute("aria-pressed", "false")
    tab.unroute("**/feedback")
    tab.locator(".judged").get_by_role("button", name="Try now").click()
    tab.get_by_role("button", name="Undo").click()
    expect(tab.locator(".change p")).to_have_text("The judgement is undone.")


@pytest.mark.parametrize("tab", [READER], indirect=True)
def test_page_of_a_key_without_the_scope_write_has_no_controls(tab: Page, writable_url: str) -> None:
    tab.goto(address(writable_url, q="Fry garlic in oil"))
    expect(labels_of(tab)).to_have_count(5)
    expect(tab.locator(CONTROLS).filter(visible=True)).to_have_count(0)
