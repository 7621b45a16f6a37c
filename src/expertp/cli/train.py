"""Train one model from a run file; the same command resumes an interrupted run.

The run file has the sections model:, hps:, train:, base: (default: the model itself) and parallel:. Overrides
model.KEY=VALUE, hps.KEY=VALUE, train.KEY=VALUE, base.KEY=VALUE and parallel.KEY=VALUE change its values.

Several processes train one run together: torchrun --nproc-per-node 4 -m expertp train ..., srun -n 4 expertp train ...

After SIGTERM or Ctrl-C, the run finishes the step, saves and stops (exit codes 143 and 130); a second signal stops it
immediately (a second SIGTERM only after 10 s). The exit code of a diverged run is 1.

While it trains, the terminal shows the loss and its running mean, the learning rate of the base at this step, the
imbalance (the largest |Load - kappa| over experts and layers), tokens per second, the share of the speed of matrix
products on this machine that training reaches, and the time left. A log has the same as a line every 30 s.
"""

import argparse
import json
import signal
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, get_args

from expertp.cli.progress import Reporter
from expertp.cli.signals import stop_signal
from expertp.cli.text import describe_multipliers, text_table
from expertp.config import load_run
from expertp.errors import one_line
from expertp.plan import multipliers_of
from expertp.spec import RunSpec, TrackerName
from expertp.util.machine import rank_and_ranks
from expertp.util.statistics import RunningMean
from expertp.util.text import count, duration, plural

if TYPE_CHECKING:
    from expertp.training.records import RunResult, StepMetrics

EXAMPLES = """\
  expertp train configs/run.yaml --out out/first-run
  expertp train configs/run.yaml --out out/wide model.n_embd=256 base.n_embd=128 train.steps=500
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("run_file", metavar="RUN.yaml", help="run file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="model.*, hps.*, train.*, base.*, parallel.*")
    parser.add_argument("--out", required=True, metavar="DIR", help="directory of the run; created or resumed")
    parser.add_argument(
        "--track",
        action="append",
        default=[],
        choices=get_args(TrackerName),
        help="also send metrics to a tracker; may be given more than once",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Train and print the result."""
    if rank_and_ranks()[1] == 1:
        load_run(args.run_file, args.overrides)  # bad input is reported before torch is imported

    from expertp.training.ranks import launched_ranks
    from expertp.training.trackers import make_tracker
    from expertp.training.train import Tracker, train

    with launched_ranks(on_wait=_say) as ranks:
        spec = ranks.agreed(lambda: load_run(args.run_file, args.overrides))
        is_drawn, steps = None if ranks.is_first else False, spec.train.steps
        with Reporter("train", total=steps, terminal=is_drawn, shows_time=False) as reporter, stop_signal() as stop:
            progress = _Progress(reporter)
            names = dict.fromkeys(args.track if ranks.is_first else ())
            made = ranks.agreed(lambda: [make_tracker(name, args.out) for name in names])
            trackers: list[Tracker] = [progress, *made] if ranks.is_first else []
            result = train(spec, args.out, trackers, should_stop=stop.received, ranks=ranks)
    if ranks.is_first:
        _print(result, args, progress)
    if result.status == "stopped":
        return 128 + (stop.number or signal.SIGTERM)
    return 1 if result.status == "diverged" else 0


def _say(message: str) -> None:
    print(one_line(f"expertp: {message}"), file=sys.stderr)


def _print(result: "RunResult", args: argparse.Namespace, progress: "_Progress") -> None:
    if args.json:
        print(json.dumps(asdict(result)))
    elif result.status == "finished":
        val = "" if result.val_loss is None else f", validation loss {result.val_loss:.4f}"
        word = "finished" if progress.has_begun else "already finished"
        print(
            f"{word}: {plural(result.step, 'step')} in {result.seconds:.0f} s, train loss {result.train_loss:.4f}{val}"
        )
    elif result.status == "diverged":
        loss = "a non-finite loss" if result.train_loss is None else f"loss {result.train_loss:.4g}"
        print(f"diverged at step {result.step} with {loss}; reduce hps.lr, or raise train.diverge_above")
    else:
        print(f"stopped and saved at step {result.step} of {result.steps}; run the same command to resume")


class _Progress:
    """Tracker that shows a run on the terminal."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter, self._mean = reporter, RunningMean()
        self.has_begun = False

    def begin(self, run: RunSpec, steps_done: int) -> None:
        """Print the model, its base and the cost of the run."""
        self.has_begun, self._run = True, run
        train, tokens = run.train, run.train.tokens
        self._reporter.line(run.model.describe())
        larger = describe_multipliers(multipliers_of(run.base, run.model))
        self._reporter.line(
            "the model is its own base: hps are not scaled"
            if run.model == run.base
            else f"rules {run.hps.rules}, hps from a base with {larger}"
        )
        if run.model.kappa != run.base.kappa:
            self._reporter.line(
                f"warning: kappa is {run.model.kappa}, but {run.base.kappa} in the base; learning rates do not transfer"
            )
        self._reporter.line(
            f"{plural(train.steps, 'step')} of {count(train.batch_tokens)} tokens: {count(tokens)} tokens, "
            f"{tokens * run.model.flops_per_token():.2g} FLOPs"
        )
        if steps_done:
            self._reporter.line(f"resuming after step {steps_done}")

    def log(self, metrics: "StepMetrics") -> None:
        """Show one step."""
        smoothed = self._mean.add(metrics.loss)
        if self._reporter.is_due() or metrics.step == self._run.train.steps:
            numbers = describe_step(self._run, metrics, smoothed)
            if self._reporter.has_bar:
                self._reporter.update(metrics.step, "", above=text_table([tuple(numbers), tuple(numbers.values())]))
            else:
                self._reporter.update(metrics.step, ", ".join(f"{name} {value}" for name, value in numbers.items()))
        if metrics.val_loss is not None:
            self._reporter.line(
                f"step {metrics.step} loss {metrics.loss:.3f}, smoothed {smoothed:.3f}, validation loss "
                f"{metrics.val_loss:.4f}"
            )

    def end(self) -> None:
        """Do nothing: the last line stays."""


def describe_step(run: RunSpec, metrics: "StepMetrics", smoothed: float) -> dict[str, str]:
    """Return the numbers of a step by their names, in the order in which they are shown."""
    train, speed = run.train, metrics.tokens_per_second
    numbers = {"step": f"{metrics.step}/{train.steps}", "loss": f"{metrics.loss:.3f}", "smoothed": f"{smoothed:.3f}"}
    numbers["lr"] = f"{run.hps.lr * metrics.lr_factor:.3g}"
    if metrics.load_deviation is not None:
        numbers["imbalance"] = f"{metrics.load_deviation:.3f}"
    numbers["tok/s"] = count(speed)
    numbers["of products"] = f"{metrics.product_share:.0%}"
    if speed > 0:
        numbers["left"] = duration((train.steps - metrics.step) * train.batch_tokens / speed)
    return numbers
