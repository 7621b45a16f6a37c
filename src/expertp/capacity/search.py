"""Search among layouts: all that a job can have on some devices, the fastest that fits, the smallest that fits."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from expertp.capacity.anatomy import Anatomy, anatomy
from expertp.capacity.devices import Device
from expertp.capacity.estimate import Estimate, estimate
from expertp.capacity.job import JobSpec
from expertp.capacity.layout import Layout, why_impossible

MOST_DEVICES = 2**17


@dataclass(frozen=True)
class Question:
    """What is estimated for every layout.

    Args:
        job: the job.
        device: the kind of devices.
        efficiency: share of the peak that matrix products reach.
        tokens: token budget; None: that of the job.
    """

    job: JobSpec
    device: Device
    efficiency: float
    tokens: int | None = None

    @cached_property
    def model(self) -> Anatomy:
        """The anatomy of the job's model."""
        return anatomy(self.job)

    def estimate(self, layout: Layout) -> Estimate:
        """Estimate what a layout needs."""
        return estimate(self.job, layout, self.device, efficiency=self.efficiency, tokens=self.tokens, model=self.model)


def layouts(job: JobSpec, devices: int) -> Iterator[Layout]:
    """Yield all layouts that a job can have on some devices; replicas and experts are spread over powers of two."""
    for replicas in _powers(devices):
        for experts in _powers(devices // replicas):
            for recompute in (False, True):
                layout = Layout(devices, replicas, experts, recompute)
                if why_impossible(layout, job) is None:
                    yield layout


def fitting(question: Question, devices: int) -> list[Estimate]:
    """Return the estimates of all layouts that fit on some devices, the fastest first."""
    found = [question.estimate(layout) for layout in layouts(question.job, devices)]
    return sorted((each for each in found if each.fits), key=lambda each: each.serial_seconds)


def smallest(question: Question) -> Estimate | None:
    """Return the fastest layout on the fewest devices on which any fits; numbers of devices are powers of two."""
    return next((found[0] for devices in _powers(MOST_DEVICES) if (found := fitting(question, devices))), None)


def _powers(most: int) -> Iterator[int]:
    power = 1
    while power <= most:
        yield power
        power *= 2
