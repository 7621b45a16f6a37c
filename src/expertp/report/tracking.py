"""The verdicts of a study for its trackers: one run per study, beside those of its models."""

from __future__ import annotations

from expertp.analysis.verdict import StudyVerdict
from expertp.errors import InputError
from expertp.study.store import StudyDirectory
from expertp.training.trackers import Labels, ProcessTracker, check_tracker

KIND = "verdicts"


def track_verdicts(directory: StudyDirectory, verdict: StudyVerdict) -> None:
    """Send the verdicts to the study's trackers; TensorBoard shows numbers over steps only, and gets none."""
    study = directory.study.name
    config = {"study": study, "verdicts": verdict.to_dict()["axes"]}
    labels = Labels(f"{KIND} of {study}", study, KIND, config, summary_of(verdict))
    for name in directory.study.trackers:
        if name == "tensorboard":
            continue
        try:
            check_tracker(name)
        except InputError:  # the sweep has said so
            continue
        tracker = ProcessTracker(name, directory.path, labels)
        tracker.begin(None)
        tracker.end()


def summary_of(verdict: StudyVerdict) -> dict[str, str]:
    """Return the conclusions by axis and hyperparameter."""
    return {f"verdict/{each.axis}/{each.hp}": each.conclusion or "not judged" for each in verdict.axes}
