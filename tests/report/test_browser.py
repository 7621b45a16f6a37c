"""The page in a real browser: the machine's own chromium, driven by playwright."""

from urllib.parse import unquote

import pytest

pytestmark = pytest.mark.heavy  # draws all figures of a study

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture
def visit(visit_page, written):
    """Open the page of the study."""

    def open_page(viewport=DESK, path=written.path, **options):
        return visit_page(path, viewport, **options)

    return open_page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_it_opens_without_a_complaint_and_asks_for_nothing(visit, scheme, viewport):
    page = visit(viewport, color_scheme=scheme)
    assert page.complaints == []
    width, window = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width <= window, "the page scrolls sideways"
    cut = page.evaluate(
        """() => [...document.querySelectorAll('body *')].filter(each =>
            each.getBoundingClientRect().right > window.innerWidth + 1 && !each.closest('.scroll, pre, .hidden')
        ).map(each => each.outerHTML.slice(0, 80))"""
    )
    assert cut == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 420])
def test_every_section_is_shown_with_all_its_images_and_no_policy_forbids_them(visit, written_in_full, scheme, width):
    page = visit({"width": width, "height": 900}, written_in_full.path, color_scheme=scheme)
    assert page.complaints == []
    assert page.locator("section").count() == 16
    images = page.evaluate(
        """async () => Promise.all([...document.querySelectorAll('img, svg image')].map(async (each) => {
            const address = each.src || each.href.baseVal;
            const image = new Image();
            image.src = address;
            await image.decode().catch(() => {});
            return [address.slice(0, 22), image.naturalWidth, each.getBoundingClientRect().width > 0];
        }))"""
    )
    assert len(images) >= 4  # the heat maps of the theory
    assert all(address == "data:image/png;base64," and drawn > 0 and seen for address, drawn, seen in images)
    for section in ("coordcheck", "theory", "balance", "collapse", "curves"):
        assert page.locator(f"#{section} figure svg").count() > 0
    assert page.locator("#failures td").count() > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 420])
def test_what_is_wider_than_the_window_says_so(visit, written_in_full, scheme, width):
    page = visit({"width": width, "height": 900}, written_in_full.path, color_scheme=scheme)
    boxes = page.evaluate(
        """async () => {
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            return [...document.querySelectorAll('.scroll')].filter((each) => !each.closest('details')).map((each) => [
                each.scrollWidth > each.clientWidth + 1,
                each.nextElementSibling.classList.contains('hint') && each.nextElementSibling.offsetHeight > 0,
            ]);
        }"""
    )
    assert all(is_cut == has_hint for is_cut, has_hint in boxes)
    assert (sum(is_cut for is_cut, _ in boxes) > 8) == (width == 420)


def test_light_and_dark_differ_and_figures_take_the_ink(visit):
    def colours(scheme):
        page = visit(color_scheme=scheme)
        return page.evaluate(
            """() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
                getComputedStyle(document.querySelector('figure svg text')).fill]"""
        )

    (light_paper, light_ink, light_text), (dark_paper, dark_ink, dark_text) = colours("light"), colours("dark")
    assert light_paper != dark_paper
    assert light_ink == light_text
    assert dark_ink == dark_text
    assert light_ink != dark_ink


def test_the_copy_buttons_copy(visit):
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    buttons = page.locator("button.copy")
    assert buttons.count() >= 4
    for place in range(buttons.count()):
        button = buttons.nth(place)
        wanted = page.evaluate("id => document.getElementById(id).textContent", button.get_attribute("data-copy"))
        button.click()
        page.wait_for_function("button => button.textContent === 'Copied'", arg=button.element_handle())
        assert page.evaluate("navigator.clipboard.readText()") == wanted
    assert page.locator("#said").text_content() == "Copied."
    assert page.complaints == []


def test_they_copy_where_the_page_has_no_clipboard(visit):
    """As from a file in some browsers: the old way, through a selection."""
    page = visit(permissions=["clipboard-read"])
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.evaluate("document.addEventListener('copy', () => { window.copied = document.activeElement.value; }, true)")
    button = page.locator("button[data-copy=plan-json]")
    button.click()
    page.wait_for_function("button => button.textContent === 'Copied'", arg=button.element_handle())
    assert page.evaluate("window.copied").startswith('{\n  "rules"')


def test_the_keyboard_gets_everywhere_and_is_seen(visit):
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    seen = set()
    for _ in range(400):
        page.keyboard.press("Tab")
        here = page.evaluate("document.activeElement.className || document.activeElement.tagName")
        if here == "BODY":
            break
        seen.add(here)
    assert {"scroll", "copy", "A", "SUMMARY"} <= seen
    page.locator("button.copy").first.focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_numbers_of_a_figure_can_be_taken_away(visit, directory):
    page = visit(accept_downloads=True)
    link = page.locator("a[download='drift.csv']")
    with page.expect_download() as download:
        link.click()
    assert download.value.suggested_filename == "drift.csv"
    expected = (directory.path / "figures/drift.csv").read_text(encoding="utf-8")
    assert unquote(link.get_attribute("href").partition(",")[2]) == expected
    assert download.value.path().read_text(encoding="utf-8") == expected
