"""Write the stored measurements of the theory into the tables of docs/theory.md.

expertp theory verify --full --out docs/results/theory
expertp theory size --out docs/results/theory
python -m benchmarks.theory_speed --out docs/results/theory
python -m benchmarks.theory_tables
"""

import json
from pathlib import Path

from expertp.theory.records import SizingRecord
from scripts.docs_tables import fill_blocks, markdown_table

ROOT = Path(__file__).parents[1]
PAGE, NUMBERS = ROOT / "docs" / "theory.md", ROOT / "docs" / "results" / "theory"


def stored(name):
    return json.loads((NUMBERS / f"{name}.json").read_text(encoding="utf-8"))


def verify_table():
    rows = []
    for each in stored("verify"):
        error = "" if each["mc_error"] is None else f"{each['mc_error']:.1e}"
        number, _, text = each["check"].partition(" ")
        rows.append((number, text, f"{each['value']:.3g}", each["bound"], error, "PASS" if each["ok"] else "FAIL"))
    return markdown_table(("", "check", "value", "bound", "Monte-Carlo error", ""), rows)


def size_table():
    found = SizingRecord.from_dict(stored("size"))
    rows = []
    for each in found.answers:
        parts = ", ".join(f"{key} {each.alone[key]:.3g}" for key in ("N", "E", "n_hid", "L"))
        alone = f"{parts}; alpha_star below {each.alone['alpha_star']:.2g}"
        rows.append((f"{each.within:.0%}", str(each.smallest or "none"), alone))
    held_out = found.held_out
    table = markdown_table(
        ("within", "fewest weights", "value at which one dimension alone contributes half of it"), rows
    )
    return (
        f"{table}\n\nChecked at a size that the law was not fitted to ({held_out}): "
        f"{held_out.predicted:.2%} predicted, {held_out.measured:.2%} measured."
    )


def speed_text():
    found = stored("theory_speed")
    kernel, networks, cost = found["against_kernel"], found["against_networks"], found["cost"]
    exponents = ", ".join(f"{name}^{each['exponent']:.2f}" for name, each in cost.items())
    return (
        markdown_table(
            ("reduced form at 0.3% Monte-Carlo error", "speed-up"),
            [
                ("over the kernel form at the same accuracy, P = 4, T = 20", f"{kernel['ratio']:.0f}"),
                (
                    f"over averaging {networks['networks']} networks of {networks['size']}, "
                    "whose mean is within 1% of the limit, P = 20, T = 40",
                    f"{networks['ratio']:.0f}",
                ),
            ],
        )
        + f"\n\nThe cost of the reduced form grows as {exponents} (P from 20 to 160)."
    )


BLOCKS = {
    "measured-theory-verify": verify_table,
    "measured-theory-size": size_table,
    "measured-theory-speed": speed_text,
}

if __name__ == "__main__":
    PAGE.write_text(fill_blocks(PAGE.read_text(encoding="utf-8"), BLOCKS), encoding="utf-8")
