"""Pages in the user's browser."""

import sys
import webbrowser
from pathlib import Path


def show_page(path: Path) -> None:
    """Open a page in the default browser; on a machine without one, say where the page is."""
    show_address(path.resolve().as_uri(), str(path))


def show_address(address: str, place: str) -> None:
    """Open an address in the default browser; on a machine without one, name the place to open."""
    sys.stdout.flush()  # a browser in the terminal takes over the screen
    try:
        is_shown = webbrowser.open(address)
    except (webbrowser.Error, OSError):
        is_shown = False
    if not is_shown:
        print(f"expertp: found no browser; open {place}", file=sys.stderr)
