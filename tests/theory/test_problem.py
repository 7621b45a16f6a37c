import math

import numpy as np
import pytest
import torch
import yaml

from expertp.config import build
from expertp.errors import InputError
from expertp.theory.problem import Problem, make_data
from expertp.util.plain_yaml import read_yaml


def made(**values):
    return build(Problem, values, "problem.yaml:")


def refusal(action, *args, **kwargs):
    """Return what the user would read: one line."""
    with pytest.raises(InputError) as error:
        action(*args, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("degree", "indices", "seed"), [(1, 1, 0), (2, 3, 1), (3, 2, 2), (4, 3, 3)])
def test_the_polynomial_has_mean_zero_and_unit_variance(degree, indices, seed):
    y = make_data(made(P=200_000, D=4, degree=degree, indices=indices, data_seed=seed)).y
    for moment, expected in ((y, 0.0), (y**2, 1.0)):
        error = moment.std() / math.sqrt(len(y))
        assert error < 0.04
        assert abs(moment.mean() - expected) < 4 * error


def test_hermite_polynomials_are_orthonormal():
    """Of one direction, each coefficient is an average against He_n / sqrt(n!): their squares sum to one."""
    data = make_data(made(P=40, D=1, degree=5, indices=1, data_seed=3))
    # He_n by its own recursion, not by the code's: numpy's.
    columns = [
        np.polynomial.hermite_e.hermeval(data.X[:, 0], np.eye(6)[n]) / math.sqrt(math.factorial(n)) for n in range(6)
    ]
    coefficients, *_ = np.linalg.lstsq(np.stack(columns, 1), data.y, rcond=None)
    assert np.allclose(np.stack(columns, 1) @ coefficients, data.y, rtol=0, atol=1e-12)
    assert coefficients[0] == pytest.approx(0, abs=1e-10)
    assert np.sum(coefficients**2) == pytest.approx(1, abs=1e-10)
    assert (np.abs(coefficients[1:]) > 1e-3).all()


@pytest.mark.parametrize("indices", [1, 2, 3])
def test_the_polynomial_depends_on_few_directions(indices):
    data = make_data(made(P=200, D=5, degree=2, indices=indices, data_seed=4))
    # A polynomial of degree two is known by its constant, gradient and Hessian, which a fit finds exactly.
    rows, columns = np.triu_indices(5)
    terms = np.concatenate([np.ones((200, 1)), data.X, data.X[:, rows] * data.X[:, columns]], 1)
    fit, *_ = np.linalg.lstsq(terms, data.y, rcond=None)
    assert np.allclose(terms @ fit, data.y, rtol=0, atol=1e-12)
    hessian = np.zeros((5, 5))
    hessian[rows, columns] += fit[6:]
    hessian[columns, rows] += fit[6:]
    strengths = np.linalg.svd(np.column_stack([fit[1:6], hessian]), compute_uv=False)
    assert (strengths[indices:] < 1e-10).all()
    assert strengths[indices - 1] > 0.01


def test_points_are_normal_and_kernels_are_their_products():
    data = make_data(made(P=20_000, D=3, indices=1))
    assert np.allclose(np.cov(data.X.T), np.eye(3), atol=5 * math.sqrt(2 / 20_000))
    few = make_data(made(P=4, D=3, indices=1))
    assert few.K_x[1, 2] == pytest.approx(few.X[1] @ few.X[2] / 3)
    assert few.K_x.shape == (4, 4)


def test_the_seed_decides_data_and_target():
    one, same, other = (make_data(made(P=5, D=4, data_seed=seed)) for seed in (7, 7, 8))
    assert np.array_equal(one.X, same.X)
    assert np.array_equal(one.y, same.y)
    assert not np.isclose(one.X, other.X).any()
    assert not np.isclose(one.y, other.y).any()


def test_a_file_gives_its_first_rows(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("# x1, x2, y\n1,2,3\n4,5,6\n7,8,nan\n")
    data = make_data(made(data=str(path), target="last_column", P=2, D=2, indices=1))
    assert np.array_equal(data.X, [[1, 2], [4, 5]])
    assert np.array_equal(data.y, [3, 6])
    assert np.allclose(data.K_x, [[2.5, 7], [7, 20.5]])


def test_points_of_a_file_may_have_the_polynomial_as_target(tmp_path):
    X = make_data(made(P=9, D=3, indices=1)).X
    path = tmp_path / "points.csv"
    np.savetxt(path, X, delimiter=",", fmt="%.17g")
    one, same, other = (
        make_data(made(data=str(path), P=9, D=3, indices=1, degree=1, data_seed=seed)) for seed in (0, 0, 1)
    )
    assert np.array_equal(one.X, X)
    assert np.array_equal(one.y, same.y)
    assert not np.isclose(one.y, other.y).all()
    direction, *_ = np.linalg.lstsq(X, one.y, rcond=None)
    assert np.allclose(X @ direction, one.y, rtol=0, atol=1e-12)
    assert np.linalg.norm(direction) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x1,x2,y\n1,2,3\n4,5,6\n", "not a table of numbers (could not convert string 'x1'"),
        ("1,2,3\n4,5,six\n", "a header begins with #"),
        ("1,2,3\n4,5\n", "the number of columns changed from 3 to 2"),
        ("1,2,3\n", "1 rows of 3 numbers; P=2, D=2 and target=last_column need at least 2 rows of 3"),
        ("1,2\n4,5\n7,8\n", "3 rows of 2 numbers; P=2, D=2 and target=last_column need at least 2 rows of 3"),
        ("1,2,3,4\n4,5,6,7\n", "2 rows of 4 numbers; P=2, D=2 and target=last_column need at least 2 rows of 3"),
        ("1,2,3\n4,nan,6\n", "values that are not finite"),
        ("1,2,3\n4,5,inf\n", "values that are not finite"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path, text, said):
    path = tmp_path / "points.csv"
    path.write_text(text)
    message = refusal(make_data, made(data=str(path), target="last_column", P=2, D=2, indices=1))
    assert message.startswith(f"data: {path}: ")
    assert said in message


def test_a_file_with_targets_is_not_taken_for_one_without(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("1,2,3\n4,5,6\n")
    message = refusal(make_data, made(data=str(path), P=2, D=2, indices=1))
    assert message == (f"data: {path}: 2 rows of 3 numbers; P=2, D=2 and target=multi_index need at least 2 rows of 2")


def test_a_missing_file_is_told_what_data_can_be(tmp_path):
    message = refusal(make_data, made(data=str(tmp_path / "none.csv")))
    assert message.startswith(f"data: {tmp_path}/none.csv: no such file; give `gaussian` or a .csv")
    assert "gausian: no such file; give `gaussian`" in refusal(make_data, made(data="gausian"))


@pytest.mark.parametrize(
    ("tree", "facts"),
    [
        (
            {"optimizer": "adam"},
            ("optimizer=adam", "no closed mean-field equations", "use gd"),
        ),
        (
            {"readout": "elementwise"},
            ("readout=elementwise", "use readout=linear"),
        ),
        (
            {"target": "last_column"},
            ("target=last_column needs a file", "target=multi_index"),
        ),
        ({"kappa": 0.5}, ("kappa=0.5 belongs to gate=hard", "gate=soft ")),
        ({"gate": "soft0", "kappa": "1/4"}, ("kappa=0.25 belongs to gate=hard", "gate=soft0 ")),
        ({"indices": 5, "D": 4}, ("indices=5", "D=4")),
        (
            {"indices": 50, "D": 50, "degree": 6},
            ("degree=6", "indices=50", "32468436 terms", "lower one"),
        ),
        ({"n_hid": 2.5}, ("n_hid=2.5 is not a whole number", "inf")),
        ({"n_hid": "many"}, ("n_hid: must be a number, not 'many'",)),
        ({"n_hid": math.nan}, ("n_hid: input should be greater than or equal to 1, not nan",)),
        ({"n_hid": 0}, ("n_hid: input should be greater than or equal to 1, not 0",)),
        ({"gate": "hard", "kappa": 0}, ("kappa: input should be greater than 0, not 0",)),
        ({"gama0": 1.0}, ("gama0: unknown key; did you mean 'gamma0'?",)),
    ],
)
def test_what_the_theory_cannot_do_is_refused_with_the_way_out(tree, facts):
    message = refusal(build, Problem, tree, "problem.yaml:")
    assert message.startswith("problem.yaml: ")
    assert [fact for fact in facts if fact not in message] == []


@pytest.mark.parametrize("text", ["n_hid: inf", "n_hid: .inf", 'n_hid: "inf"', 'n_hid: " Infinite"'])
def test_experts_may_have_infinitely_many_neurons(text):
    assert build(Problem, read_yaml(text), "problem.yaml:").n_hid == math.inf


def test_a_problem_survives_yaml():
    for problem in (made(), made(n_hid=8, gate="hard", kappa="1/3", eta_b=0.1, L=3)):
        assert build(Problem, read_yaml(yaml.safe_dump(problem.to_dict())), "problem.yaml:") == problem


def test_one_datum_moves_a_weight_by_c():
    assert made(gamma0=3, eta=0.4, P=6).c == pytest.approx(0.2)


@pytest.mark.parametrize(("law", "tolerance"), [("normal", 1e-4), ("uniform", 1e-9)])
def test_quantiles_of_biases_have_mean_zero_and_the_deviation_asked_for(law, tolerance):
    share = (torch.arange(1_000_000, dtype=torch.float64) + 0.5) / 1_000_000
    b = made(bias=law, bias_std=0.7).bias_at(share)
    assert b.mean().item() == pytest.approx(0, abs=1e-12)
    assert b.std(correction=0).item() == pytest.approx(0.7, rel=tolerance)
    assert (b.diff() > 0).all()


def test_quantiles_belong_to_the_law_that_is_named():
    share = torch.tensor([0.5, 0.75, 0.975], dtype=torch.float64)
    assert made(bias_std=2).bias_at(share).tolist() == pytest.approx([0, 1.348979500392, 3.919927969080], abs=1e-9)
    sqrt12 = math.sqrt(12)
    assert made(bias="uniform").bias_at(share).tolist() == pytest.approx([0, 0.25 * sqrt12, 0.475 * sqrt12])
    assert made(bias="zero").bias_at(share).tolist() == [0, 0, 0]


def test_a_file_with_its_own_targets_needs_no_indices(tmp_path):
    file = tmp_path / "data.csv"
    file.write_text("1,2,3\n4,5,6\n")
    data = make_data(Problem(data=str(file), target="last_column", P=2, D=2))
    assert data.y.tolist() == [3, 6]


@pytest.mark.parametrize(("text", "message"), [("", "is empty"), (None, "no such file")])
def test_an_empty_file_and_a_directory_are_refused(tmp_path, text, message):
    file = tmp_path / "data.csv"
    file.mkdir() if text is None else file.write_text(text)
    with pytest.raises(InputError, match=message):
        make_data(Problem(data=str(file), P=2, D=2, indices=1))


def test_more_data_are_further_points_of_the_same_polynomial():
    few, many = (make_data(Problem(P=P, data_seed=3)) for P in (4, 9))
    assert np.array_equal(few.X, many.X[:4])
    assert few.y == pytest.approx(many.y[:4], rel=1e-12)
    assert make_data(Problem(P=4, data_seed=4)).y != pytest.approx(few.y, rel=0.1)
