"""Live pages in the browser, for tests."""

SECTIONS = "(root) => [...root.querySelectorAll('header, section:not(.now)')].map((each) => each.outerHTML)"


def open_page(browser, address, **options):
    """Open a live page; complaints and requests that leave the server go into `complaints`."""
    page = browser.new_context(**options).new_page()
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: page.complaints.append(f"error: {error}"))
    page.on("dialog", lambda dialog: page.complaints.append(f"dialog: {dialog.message}"))
    page.on("request", lambda each: each.url.startswith(address) or page.complaints.append(f"asks for {each.url}"))
    page.goto(address)
    return page


def sections_of(page):
    """Return all elements of a report, in their order, as the browser has them; what a script has added is left out."""
    found = page.evaluate(f"({SECTIONS})(document)")
    return [each.replace(' hidden=""', "") for each in found]
