"""Train one model from a run file, showing progress; run the same command again to resume.

The run file has the sections model:, hps:, train: and, unless the model is its own base, base:. Overrides
model.KEY=VALUE, hps.KEY=VALUE, train.KEY=VALUE and base.KEY=VALUE change it. SIGTERM and Ctrl-C save and stop
(exit codes 143 and 130); a diverged run exits with 1. `train.checkpoint_seconds` (30 s) is the most that a crash costs.
"""

import argparse
import json
import signal
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING

from expertp.cli.progress import Reporter
from expertp.cli.text import count, describe
from expertp.config import load_run
from expertp.spec import RunSpec

if TYPE_CHECKING:
    from expertp.train import StepMetrics

EXAMPLES = """\
  expertp train configs/run.yaml --out out/first-run
  expertp train configs/run.yaml --out out/wide model.n_embd=256 hps.lr=0.01 train.steps=500
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("run_file", metavar="RUN.yaml", help="the run file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="model.*, hps.*, train.*, base.*")
    parser.add_argument("--out", required=True, metavar="DIR", help="directory of the run; made or resumed")
    parser.add_argument("--tensorboard", action="store_true", help="also write DIR/tensorboard")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Train and print the result."""
    spec = load_run(args.run_file, args.overrides)

    from expertp.train import Tracker, train

    stop = _StopSignal()
    with Reporter("train", total=spec.train.steps) as reporter:
        trackers: list[Tracker] = [_Progress(reporter)]
        if args.tensorboard:
            from expertp.trackers import TensorBoardTracker

            trackers.append(TensorBoardTracker(args.out))
        result = train(spec, args.out, trackers, should_stop=stop.received)

    if args.json:
        print(json.dumps(asdict(result)))
    elif result.status == "finished":
        val = "" if result.val_loss is None else f", validation loss {result.val_loss:.4f}"
        print(f"finished: {result.step} steps in {result.seconds:.0f} s, train loss {result.train_loss:.4f}{val}")
        print(f"next: expertp generate {args.out} --prompt 'Once'")
    elif result.status == "diverged":
        print(f"diverged at step {result.step}: the loss is not finite or above the bound; lower hps.lr")
    else:
        print(f"stopped and saved at step {result.step} of {result.steps}; run the same command to go on")
    if result.status == "stopped":
        return 128 + stop.number
    return 1 if result.status == "diverged" else 0


class _Progress:
    """Shows a run on the terminal."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def begin(self, run: RunSpec, steps_done: int) -> None:
        """Say what is going to happen, and what it costs."""
        train, tokens = run.train, run.train.steps * run.train.batch_tokens
        self._reporter.line(describe(run.model))
        self._reporter.line(
            f"{train.steps} steps of {count(train.batch_tokens)} tokens: {count(tokens)} tokens, "
            f"{tokens * run.model.flops_per_token():.2g} FLOPs"
        )
        if steps_done:
            self._reporter.line(f"goes on after step {steps_done}")

    def log(self, metrics: "StepMetrics") -> None:
        """Show one step."""
        deviation = max(metrics.max_load_deviation, default=0.0)
        speed = f"{count(metrics.tokens_per_second)} tokens/s"
        text = f"step {metrics.step} loss {metrics.loss:.3f} max|load-kappa| {deviation:.3f} {speed}"
        self._reporter.update(metrics.step, text)
        if metrics.val_loss is not None:
            self._reporter.line(f"{text}, validation loss {metrics.val_loss:.4f}")


class _StopSignal:
    """Remembers SIGTERM or SIGINT, so that the run can save before it ends."""

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.number = number

    def received(self) -> bool:
        """Return whether a signal has come."""
        return self.number != 0
