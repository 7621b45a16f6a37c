"""Records of `expertp theory`: what is written is read back as the same value."""

import json

import pytest

from expertp.theory.compare import compare
from expertp.theory.finite import Size
from expertp.theory.records import (
    ApproachRecord,
    ComparisonRecord,
    NetworkRecord,
    SimulationRecord,
    SizingRecord,
    SolveRecord,
)
from expertp.theory.sizing import ErrorLaw
from expertp.theory.spec import TheorySpec

SPEC = TheorySpec(
    P=3,
    D=4,
    T=4,
    eta=0.1,
    solver={"nodes": 4, "neurons": 8, "replicates": 2},
    networks={"sizes": [{"N": 8, "E": 4, "n_hid": 2}, {"N": 16, "E": 4, "n_hid": 2}], "seeds": 2},
)


@pytest.fixture(scope="module")
def found():
    return compare(SPEC.problem, SPEC.solver, SPEC.networks)


def law(curve):
    offsets = dict.fromkeys(("N", "E", "n_hid", "alpha_star", "L"), curve)
    return ErrorLaw(SPEC.problem, curve, offsets, {"N": 0.1, "E": 0.1, "E n_hid": 0.1})


def records(found):
    networks = tuple(NetworkRecord.of(size, each) for size, each in found.networks.items())
    return {
        "solve": SolveRecord.of(SPEC, found.theory),
        "simulate": SimulationRecord(problem=SPEC, networks=networks),
        "compare": ComparisonRecord.of(SPEC, found),
        "size": SizingRecord.of(SPEC, law(found.theory.loss), [0.5, 1e-9], 0.1),
    }


@pytest.mark.parametrize("name", ["solve", "simulate", "compare", "size"])
def test_a_record_survives_json(found, name):
    record = records(found)[name]
    text = json.dumps(record.to_dict())
    assert type(record).from_dict(json.loads(text)) == record
    assert json.loads(text)["problem"]["n_hid"] == "Infinity"


def test_a_comparison_has_the_keys_of_its_file(found):
    values = ComparisonRecord.of(SPEC, found).to_dict()
    assert list(values) == ["problem", "theory", "networks", "approaches"]
    assert list(values["theory"]) == ["loss", "f", "mc_error"]
    assert list(values["networks"][0]) == ["N", "E", "n_hid", "seeds", "loss", "loss_sd", "error", "error_of_mean"]
    assert list(values["approaches"][0]) == ["dimension", "values", "errors", "slope"]
    assert values["networks"][1]["error"] == found.error(Size(16, 4, 2))
    assert ComparisonRecord.from_dict(values).networks[1].size == Size(16, 4, 2)


def test_sizes_that_no_network_reaches_are_null(found):
    reached, unreached = records(found)["size"].to_dict()["answers"]
    assert list(reached["smallest"]) == ["N", "E", "n_hid", "L"]
    assert unreached["smallest"] is None


def test_one_seed_has_no_standard_deviation(found):
    one = found.networks[Size(8, 4, 2)]
    single = type(one)(one.f, one.f_each[:1], one.y, one.p[:1], one.loads[:1], one.biases[:1])
    assert NetworkRecord.of(Size(8, 4, 2), single).loss_sd is None


@pytest.mark.parametrize("damage", [{"values": "many"}, {"slope": None}])
def test_a_damaged_record_is_a_value_error(damage):
    values = {"dimension": "N", "values": [8, 16], "errors": [0.2, 0.1], "slope": -1.0}
    assert ApproachRecord.from_dict(values).values == (8, 16)
    with pytest.raises(ValueError, match=next(iter(damage))):
        ApproachRecord.from_dict(values | damage)
    with pytest.raises(ValueError, match="slope"):
        ApproachRecord.from_dict({key: values[key] for key in ("dimension", "values", "errors")})
