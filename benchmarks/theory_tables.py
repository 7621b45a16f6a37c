"""Write stored measurements of the theory into docs/theory.md, so that page and numbers cannot differ.

expertp theory verify --full --out docs/results/theory
expertp theory size --out docs/results/theory
python benchmarks/theory_speed.py --out docs/results/theory
python benchmarks/theory_tables.py
"""

import json
from pathlib import Path

from expertp.docs_tables import fill_blocks, markdown_table

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
    found = stored("size")
    rows = []
    for each in found["answers"]:
        alone, best = each["alone"], each["smallest"]
        sizes = "none" if best is None else ", ".join(f"{key} {value}" for key, value in best.items())
        parts = ", ".join(f"{key} {alone[key]:.3g}" for key in ("N", "E", "n_hid", "L"))
        rows.append((f"{each['within']:.0%}", sizes, f"{parts}; alpha_star below {alone['alpha_star']:.2g}"))
    held_out = found["held_out"]
    checked = ", ".join(f"{key} {held_out[key]}" for key in ("N", "E", "n_hid", "L"))
    return "\n\n".join(
        [
            markdown_table(("within", "fewest weights", "each alone makes half of that at"), rows),
            f"Checked at a size that the law has not seen ({checked}): {held_out['predicted']:.2%} predicted, "
            f"{held_out['measured']:.2%} measured.",
        ]
    )


def speed_text():
    found = stored("theory_speed")
    kernel, networks, cost = found["against_kernel"], found["against_networks"], found["cost"]
    exponents = ", ".join(f"{name}^{each['exponent']:.2f}" for name, each in cost.items())
    return (
        markdown_table(
            ("the reduced march at 0.3% Monte-Carlo error", "times as fast"),
            [
                ("against the kernel form at the same accuracy, P = 4, T = 20", f"{kernel['ratio']:.0f}"),
                (
                    f"against averaging networks of {networks['size']} until their mean is within 1% of the limit "
                    f"({networks['networks']} of them), P = 20, T = 40",
                    f"{networks['ratio']:.0f}",
                ),
            ],
        )
        + f"\n\nIts cost grows as {exponents} (P from 20 to 160)."
    )


BLOCKS = {
    "measured-theory-verify": verify_table,
    "measured-theory-size": size_table,
    "measured-theory-speed": speed_text,
}

if __name__ == "__main__":
    PAGE.write_text(fill_blocks(PAGE.read_text(encoding="utf-8"), BLOCKS), encoding="utf-8")
