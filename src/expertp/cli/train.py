"""Train one model from a run file; the same command resumes an interrupted run.

The run file has the sections model:, hps:, train:, base: (default: the model itself) and parallel:. Overrides
model.KEY=VALUE, hps.KEY=VALUE, train.KEY=VALUE, base.KEY=VALUE and parallel.KEY=VALUE change its values.

Several processes train one run together: torchrun --nproc-per-node 4 -m expertp train ..., srun -n 4 expertp train ...

After SIGTERM or Ctrl-C, the run finishes the step, saves and stops (exit codes 143 and 130); a second signal stops it
immediately (a second SIGTERM only after 10 s). The exit code of a diverged run is 1. The imbalance shown is the largest
|Load - kappa| over experts.
"""

import argparse
import json
import signal
from dataclasses import asdict
from typing import TYPE_CHECKING

from expertp.cli.progress import Reporter
from expertp.cli.signals import stop_signal
from expertp.cli.text import describe_multipliers
from expertp.config import load_run
from expertp.plan import multipliers_of
from expertp.spec import RunSpec
from expertp.util.machine import rank_and_ranks
from expertp.util.text import count, plural

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
    parser.add_argument("--tensorboard", action="store_true", help="also write TensorBoard logs to DIR/tensorboard")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Train and print the result."""
    if rank_and_ranks()[1] == 1:
        load_run(args.run_file, args.overrides)  # bad input is reported before torch is imported

    from expertp.training.ranks import launched_ranks
    from expertp.training.train import Tracker, train

    with launched_ranks() as ranks:
        spec = ranks.agreed(lambda: load_run(args.run_file, args.overrides))
        is_drawn = None if ranks.is_first else False
        with Reporter("train", total=spec.train.steps, terminal=is_drawn) as reporter, stop_signal() as stop:
            progress = _Progress(reporter)
            trackers: list[Tracker] = [progress] if ranks.is_first else []
            if args.tensorboard and ranks.is_first:
                from expertp.training.trackers import TensorBoardTracker

                trackers.append(TensorBoardTracker(args.out))
            result = train(spec, args.out, trackers, should_stop=stop.received, ranks=ranks)
    if ranks.is_first:
        _print(result, args, progress)
    if result.status == "stopped":
        return 128 + (stop.number or signal.SIGTERM)
    return 1 if result.status == "diverged" else 0


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
        self._reporter = reporter
        self.has_begun = False

    def begin(self, run: RunSpec, steps_done: int) -> None:
        """Print the model, its base and the cost of the run."""
        self.has_begun = True
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
        deviation = max(metrics.max_load_deviation, default=0.0)
        speed = f"{count(metrics.tokens_per_second)} tok/s"
        text = f"step {metrics.step} loss {metrics.loss:.3f} imbalance {deviation:.3f} {speed}"
        self._reporter.update(metrics.step, text)
        if metrics.val_loss is not None:
            self._reporter.line(f"{text}, validation loss {metrics.val_loss:.4f}")

    def end(self) -> None:
        """Do nothing: the last line stays."""
