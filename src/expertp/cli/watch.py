"""Show a study or a run in the browser while it is trained: what happens now, and the report so far.

DIR is the directory of a study (`expertp sweep --out DIR`) or of a run (`expertp train --out DIR`). It may not exist
yet, other machines may write to it, and training may have ended. Nothing is written to it. The page keeps itself
current. Ctrl-C ends the server.

The server takes at most 2% of the CPU time of the sweep that it shows. It answers this machine only: from a laptop,
`ssh -L 8765:127.0.0.1:8765 HOST` brings the page over. With --host, every machine that reaches the address can read it.
"""

import argparse
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from expertp.cli.browser import show_address
from expertp.cli.signals import stop_signal
from expertp.errors import InputError, printable

EXAMPLES = """\
  expertp watch studies/first --open
  expertp watch out/first-run --port 9000
"""

PORT = 8765
LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.5
# The server gives way to training.
NICE = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("directory", metavar="DIR", type=Path, help="directory of a study or of a run")
    parser.add_argument("--port", metavar="N", type=int, default=PORT, help=f"port (default: {PORT}; 0: any free one)")
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default=LOOPBACK,
        help=f"address to serve at (default: {LOOPBACK}, this machine only; 0.0.0.0: every machine can read the page)",
    )
    parser.add_argument("--open", action="store_true", help="show the page in the default browser")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    from expertp.report.live import Follower
    from expertp.report.live_server import is_loopback, make_server

    if args.directory.exists() and not args.directory.is_dir():
        raise InputError(f"{args.directory}: is not a directory; give the directory of a study or of a run")
    follower = Follower(args.directory)
    with make_server(follower, args.host, args.port) as server, stop_signal() as stop:
        with suppress(OSError):
            os.nice(NICE)
        follower.start()
        threading.Thread(target=server.serve_forever, name="server", daemon=True).start()
        print(f"watching {printable(str(args.directory))} at {server.address} (Ctrl-C ends)", flush=True)
        if not is_loopback(args.host):
            print("expertp: every machine that reaches this address can read the page", file=sys.stderr)
        if args.open:
            show_address(server.address, server.address)
        while not stop.received():
            time.sleep(POLL_SECONDS)
        follower.stop()
        server.shutdown()
    return 0
