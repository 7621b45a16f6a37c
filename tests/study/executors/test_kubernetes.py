"""The Job for Kubernetes in docs/clusters.md is valid, and says what the command line does."""

import re
import signal
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from expertp.cli.main import EXIT_BAD_INPUT, EXIT_FAILED, build_parser
from expertp.util.plain_yaml import read_yaml

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install -e '.[dev]'")

PAGE = Path(__file__).parents[3] / "docs/clusters.md"
OLDEST = "1.33"  # the first in which all of its fields are stable


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    [text] = re.findall(r"^```yaml\n(apiVersion: .*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    tree = read_yaml(text)
    assert isinstance(tree, dict)
    return tree


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_the_job_is_valid(job: dict[str, Any], version: str) -> None:
    assert job["kind"] == "Job"
    kubernetes_validate.validate(job, version, strict=True)


MISTAKES: list[Callable[[dict[str, Any]], Any]] = [
    lambda job: job["spec"].pop("template"),
    lambda job: job["spec"].update(completionmode="Indexed"),
    lambda job: job["spec"].update(parallelism="16"),
    lambda job: job["spec"]["podFailurePolicy"]["rules"][1].pop("action"),
    lambda job: job["spec"]["template"]["spec"]["containers"][0].update(command="expertp sweep"),
    lambda job: job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][0].pop("mountPath"),
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_job_would_be_seen(job: dict[str, Any], mistake: Callable[[dict[str, Any]], Any]) -> None:
    wrong = deepcopy(job)
    mistake(wrong)
    assert wrong != job
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


def test_what_schemas_cannot_see(job: dict[str, Any]) -> None:
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["completionMode"] == "Indexed"  # backoffLimitPerIndex requires it
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy requires it
    assert spec["backoffLimitPerIndex"] > 0  # FailIndex requires it
    [container] = pod["containers"]
    program, verb, *arguments = container["command"]
    assert (program, verb) == ("expertp", "sweep")
    args = build_parser(verb).parse_intermixed_args(arguments)
    assert args.workers == 1
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert all(str(path).startswith(f"{mounted['work']}/") for path in (args.study_file, args.out))
    assert {volume["name"] for volume in pod["volumes"]} == set(mounted)


def test_the_exit_codes_are_those_of_the_command_line(job: dict[str, Any]) -> None:
    rules = job["spec"]["podFailurePolicy"]["rules"]
    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule}
    assert codes == {
        "Ignore": [128 + signal.SIGTERM],
        "FailIndex": [EXIT_FAILED],
        "FailJob": [EXIT_BAD_INPUT],
    }
