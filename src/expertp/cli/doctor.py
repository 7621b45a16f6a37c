"""Show what expertp finds on this machine: Python, torch, cores, memory, disk, devices, extras.

The exit code is 1 if something that expertp needs is missing.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
from typing import Any

from expertp.cli.text import text_table
from expertp.errors import how_to_install
from expertp.util.machine import memory_bytes, processor_name

EXAMPLES = """\
  expertp doctor
  expertp doctor --json
"""

EXTRAS = {
    "pyarrow": "data",
    "datasets": "data",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
    "transformers": "hf",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Examine the machine and print the results."""
    facts = examine()
    if args.json:
        print(json.dumps(facts, indent=2))
    else:
        print(text_table([("item", "found"), *((name, str(value)) for name, value in facts.items())]))
    return 0 if facts["gpt2 vocabulary"] == "found" else 1


def examine() -> dict[str, Any]:
    """Return the properties of the machine and the installation by name."""
    import torch

    from expertp.data.tokenizers import load_gpt2

    try:
        load_gpt2()
        vocabulary = "found"
    except Exception as error:
        vocabulary = f"missing: {error}"
    return {
        "expertp": importlib.metadata.version("expertp"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads used by torch": torch.get_num_threads(),
        "memory": f"{memory_bytes() / 2**30:.1f} GiB",
        "free disk here": f"{shutil.disk_usage('.').free / 2**30:.0f} GiB",
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "gpt2 vocabulary": vocabulary,
        **{f"extra {name}": _version(name, extra) for name, extra in EXTRAS.items()},
    }


def _version(package: str, extra: str) -> str:
    if importlib.util.find_spec(package) is None:
        return f"not installed; {how_to_install(extra)}"
    return importlib.metadata.version(package)
