"""Estimate what a run needs on many devices: memory per device, bytes between devices, step time and device-hours.

FILE is a run file or the directory of a run, a base or target file, the output of `expertp plan --json`, or a
config.json of Hugging Face transformers. Without a section train: a step has 512 sequences, one per micro-batch; change
it with train.batch_tokens, train.micro_batch, train.dtype and train.activation_checkpointing. The layout is FSDP2 over
all devices; parallel.replicas and parallel.experts change it. With --fit, the fastest layout that fits is shown.

Times assume the stated efficiency and the links' speed as vendors state it. The exit code is 1 if the run does not
fit.
"""

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path

from expertp.capacity.devices import DEVICES, EFFICIENCY, find_device
from expertp.capacity.estimate import Estimate
from expertp.capacity.layout import Layout, micro_batch_tokens, micro_batches
from expertp.capacity.load import load_job
from expertp.capacity.search import Question, fitting, smallest
from expertp.cli.arguments import at_least_one
from expertp.cli.text import text_table
from expertp.util.text import count, duration, plural

EXAMPLES = """\
  expertp capacity configs/target.yaml --devices 64 --device h100 --tokens 50B
  expertp capacity config.json --devices 2048 --device h800 --fit model.context=4096 train.batch_tokens=16777216
"""
UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
# Rows of the table of layouts.
MOST_LAYOUTS = 8


def tokens(text: str) -> int:
    """Parse a number of tokens.

    >>> tokens("14.8T"), tokens("3e9")
    (14800000000000, 3000000000)
    """
    unit = UNITS.get(text[-1:].upper())
    try:
        number = float(text[:-1] if unit else text) * (unit or 1)
    except ValueError:
        number = math.nan
    if not 1 <= number < 1e18:
        raise argparse.ArgumentTypeError(f"{text} is not a number of tokens, such as 3e9, 300B or 14.8T")
    return round(number)


def share(text: str) -> float:
    """Parse a share.

    >>> share("0.4")
    0.4
    """
    return _positive(text, 1, "a share above 0 and at most 1, such as 0.35")


def hours(text: str) -> float:
    """Parse device-hours.

    >>> hours("2.664M")
    2664000.0
    """
    unit = UNITS.get(text[-1:].upper())
    return _positive(text[:-1] if unit else text, 1e15, "a number of device-hours") * (unit or 1)


def _positive(text: str, most: float, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= most:
        raise argparse.ArgumentTypeError(f"{text} is not {what}")
    return number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("file", metavar="FILE", type=Path, help="run, run directory, base, target, plan or config.json")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="model.*, train.* and parallel.*")
    parser.add_argument("--devices", metavar="N", type=at_least_one, default=8, help="number of devices (default: 8)")
    parser.add_argument(
        "--device",
        metavar="NAME",
        default="h100",
        help=f"{', '.join(DEVICES)}, or a YAML file with the same keys (default: h100)",
    )
    parser.add_argument("--fit", action="store_true", help="search the layouts: show those that fit, and the fastest")
    parser.add_argument("--tokens", metavar="N", type=tokens, help="token budget, such as 300B (default: the run's)")
    parser.add_argument(
        "--efficiency",
        metavar="SHARE",
        type=share,
        default=EFFICIENCY,
        help=f"share of the peak that matrix products reach (default: {EFFICIENCY})",
    )
    parser.add_argument("--hours", metavar="N", type=hours, help="device-hours that a run took: show their efficiency")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Estimate and print."""
    job, device = load_job(args.file, args.overrides), find_device(args.device)
    question = Question(job, device, args.efficiency, args.tokens)
    parallel = job.parallel
    found = question.estimate(
        Layout(args.devices, parallel.replicas, parallel.experts, job.train.activation_checkpointing)
    )
    others = fitting(question, args.devices) if args.fit else []
    best = others[0] if others else found
    least = None if best.fits else smallest(question)
    implied = None if args.hours is None else best.implied(args.hours)
    if args.json:
        tree = best.to_dict()
        tree["layouts_that_fit"] = [_brief(each) for each in others]
        tree["smallest_that_fits"] = None if best.fits or least is None else _brief(least)
        tree["implied"] = None if implied is None else asdict(implied)
        print(json.dumps(tree, indent=2))
    else:
        _print(best, args.device)
        if others:
            print(f"\n{_layouts(others)}")
        if implied is not None:
            print(
                f"\n{_hours(args.hours)} device-hours for {count(best.tokens or 0)} tokens: "
                f"{implied.without_scores:.1%} of the peak by 6 FLOPs per active weight, {implied.efficiency:.1%} with "
                "attention scores"
            )
        print(f"\n{_verdict(best, least, is_search=args.fit)}")
    return 0 if best.fits else 1


def _brief(found: Estimate) -> dict[str, object]:
    layout = found.layout
    return {
        "devices": layout.devices,
        "replicas": layout.replicas,
        "experts": layout.experts,
        "recompute": layout.recompute,
        "bytes_per_device": found.bytes_per_device,
        "seconds_per_step": found.serial_seconds,
    }


def _print(found: Estimate, name: str) -> None:
    job, layout, device = found.job, found.layout, found.device
    pieces = micro_batches(layout, job)
    print(f"model   {job.model.describe()}")
    print(
        f"step    {plural(job.sequences, 'sequence')} of {job.model.context:,} tokens; on a device "
        f"{plural(pieces, 'micro-batch', 'micro-batches')} of {micro_batch_tokens(layout, job):,} tokens"
    )
    print(f"dtype   {job.dtype}, weights and optimizer in {'float64' if job.weight_bytes == 8 else 'float32'}")
    print(f"layout  {plural(layout.devices, 'device')} ({name}, {device.node} per node): {layout.settings()}\n")
    print(f"{_memory(found)}\n")
    if found.transfers:
        print(f"{_transfers(found)}\n")
    print(_time(found))


def _memory(found: Estimate) -> str:
    memory, kept = found.memory, "" if found.is_exact else " (estimate)"
    rows = [
        ("weights", memory.weights, memory.weights),
        ("gradients", memory.gradients, memory.gradients),
        ("optimizer", memory.optimizer, memory.optimizer),
        ("gathered weights", memory.gathered, memory.gathered),
        ("gradients under way", memory.reduced, memory.reduced),
        (f"activations{kept}", memory.activations, memory.recomputed),
        ("logits", memory.loss, memory.loss),
        ("all", memory.total(recompute=False), memory.total(recompute=True)),
    ]
    cells = [(name, _gib(kept), _gib(recomputed)) for name, kept, recomputed in rows]
    return text_table([("GiB per device", "activations kept", "recomputed"), *cells])


def _transfers(found: Estimate) -> str:
    rows = [
        (each.kind, each.what, f"{each.group.size:,}", _bytes(each.buffer), _bytes(each.sent), _seconds(each.seconds))
        for each in found.transfers
    ]
    return text_table([("collective", "moves", "group", "buffers", "sent per device and step", "time"), *rows])


def _time(found: Estimate) -> str:
    peak = found.device.peak(found.job.dtype) / 1e12
    recomputed = f" + {found.recomputed_flops:.3g} recomputed" if found.recomputed_flops else ""
    low, high = found.overlapped_seconds, found.serial_seconds
    lines = [
        f"compute {found.flops:.3g} FLOPs{recomputed} per step: {_seconds(found.compute_seconds)} at "
        f"{found.efficiency:.0%} of {peak:g} TFLOP/s",
        f"step    {_seconds(low)} if transfers overlap with compute, {_seconds(high)} if they do not: "
        f"{count(found.job.step_tokens / high)} to {count(found.job.step_tokens / low)} tokens/s",
    ]
    least, most = found.device_hours(low), found.device_hours(high)
    if found.tokens is not None and least is not None and most is not None:
        wall = [duration(each * 3600 / found.layout.devices) for each in (least, most)]
        lines.append(
            f"budget  {count(found.tokens)} tokens: {_hours(least)} to {_hours(most)} device-hours, "
            f"{wall[0]} to {wall[1]}"
        )
    return "\n".join(lines)


def _layouts(found: list[Estimate]) -> str:
    rows = [
        (
            str(each.layout.replicas),
            str(each.layout.experts),
            "yes" if each.layout.recompute else "no",
            _gib(each.bytes_per_device),
            _seconds(each.serial_seconds),
        )
        for each in found[:MOST_LAYOUTS]
    ]
    more = f"\n... and {len(found) - MOST_LAYOUTS} more" if len(found) > MOST_LAYOUTS else ""
    return text_table([("layouts that fit: replicas", "experts", "recompute", "GiB", "step"), *rows]) + more


def _verdict(found: Estimate, least: Estimate | None, is_search: bool) -> str:
    room = f"{_gib(found.bytes_per_device)} GiB of the usable {_gib(found.device.usable_bytes)} GiB per device"
    if found.fits:
        return f"fits: {room}"
    what = "no layout on these devices fits" if is_search else f"does not fit: {room}"
    if least is None:
        return (
            f"{what}, and none on more devices that can share the batch; give a larger train.batch_tokens, a smaller "
            "train.micro_batch or another --device"
        )
    return (
        f"{what}; the smallest layout that does: {plural(least.layout.devices, 'device')} with "
        f"{least.layout.settings()}: {_gib(least.bytes_per_device)} GiB"
    )


def _gib(number: float) -> str:
    return f"{number / 2**30:,.2f}" if number < 100 * 2**30 else f"{number / 2**30:,.0f}"


def _hours(number: float) -> str:
    return count(number) if number >= 1e4 else f"{number:,.0f}" if number >= 100 else f"{number:.2g}"


def _bytes(number: float) -> str:
    """Return a number of bytes with its unit.

    >>> _bytes(1.5e9), _bytes(120)
    ('1.5 GB', '120 B')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def _seconds(number: float) -> str:
    """Return a time with three digits.

    >>> _seconds(0.01234), _seconds(1234)
    ('12.3 ms', '20 min 34 s')
    """
    if number >= 60:
        return duration(number)
    if number >= 1:
        return f"{number:.3g} s"
    return f"{1e3 * number:.3g} ms" if number >= 1e-3 else "< 1 ms"
