"""A transfer study in ten lines: prepare text, read a study file, train what is missing, judge, write the report."""

import sys

from expertp import judge, load_study, prepare, render_report, run_study
from expertp.data import PrepareOptions

out, *overrides = sys.argv[1:] or ["study-in-ten-lines"]  # overrides make it smaller: train.steps=20 seeds=[0,1]
prepare("builtin", f"{out}/data", PrepareOptions("bpe", vocab_size=512))
study = load_study("configs/demo.yaml", [f"train.data={out}/data", "axes={width: [64, 128]}", "arms={}", *overrides])
table = run_study(study, f"{out}/study")
for verdict in judge(table).axes:
    print(f"{verdict.axis}, {verdict.hp}: {verdict.conclusion}; zero-shot costs {verdict.cost:.4f} nats")
print(render_report(f"{out}/study"))
