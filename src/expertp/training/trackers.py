"""Trackers: destinations of metrics in addition to the run directory."""

from pathlib import Path

from expertp.errors import InputError, how_to_install
from expertp.spec import RunSpec
from expertp.training.records import StepMetrics


class TensorBoardTracker:
    """Write losses, loads and speed as TensorBoard scalars to `tensorboard/` in the run directory."""

    def __init__(self, out: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError(f"TensorBoard is not installed; {how_to_install('tensorboard')}") from None
        self._make_writer, self._directory = SummaryWriter, Path(out) / "tensorboard"

    def begin(self, run: RunSpec, steps_done: int) -> None:
        """Open the log and discard records of later steps, which an earlier crash may have left."""
        del run
        self._writer = self._make_writer(str(self._directory), purge_step=steps_done + 1)

    def log(self, metrics: StepMetrics) -> None:
        """Write the scalars of one step."""
        scalars = {
            "loss/train": metrics.loss,
            "loss/validation": metrics.val_loss,
            "schedule/lr_factor": metrics.lr_factor,
            "speed/tokens_per_second": metrics.tokens_per_second,
            "load/max_deviation": max(metrics.max_load_deviation, default=None),
            "load/dead_experts": sum(metrics.dead_experts) if metrics.dead_experts else None,
        }
        for name, value in scalars.items():
            if value is not None:
                self._writer.add_scalar(name, value, metrics.step)
        self._writer.flush()

    def end(self) -> None:
        """Close the log."""
        self._writer.close()
