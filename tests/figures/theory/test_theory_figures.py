"""Figures of the theory: their numbers from trajectories made by hand, and that their drawings say what they show."""

import csv
import io
import itertools
import math

import numpy as np
import pytest

from expertp.figures.save import render
from expertp.figures.style import INK, new_figure
from expertp.figures.theory import error, kernels, loss, router, soft_router
from expertp.figures.theory.sizes import changing, small_to_large, some_layers
from expertp.figures.theory.ticks import round_numbers
from expertp.theory.compare import Comparison
from expertp.theory.finite import Size
from expertp.theory.problem import Problem
from expertp.theory.soft_router import Way
from expertp.theory.trajectory import Trajectory

P, T, L = 3, 6, 2
PROBLEM = Problem(P=P, T=T, L=L, D=4, gate="soft0")
Y = np.array([1.0, -2.0, 0.5])
SMALL, LARGE = Size(8, 4, 2), Size(32, 16, 8)


def trajectory(deltas, experts=4, spread=1.0, seed=0, with_kernels=False):
    """Return a run of which the network of a place misses the targets by deltas[place] times 2^-t, relative to them."""
    rng = np.random.default_rng(seed)
    shares = np.asarray(deltas)[:, None, None] * 2.0 ** -np.arange(T)
    f_each = Y[None, :, None] * (1 - shares)
    R = len(f_each)
    p = spread * rng.standard_normal((R, L, experts, P, T))
    p += np.arange(P)[:, None]
    C_h, C_g = (10 * scale + rng.random((L + 1, P, T, P, T)) for scale in (1, 2)) if with_kernels else (None, None)
    return Trajectory(f_each.mean(0), f_each, Y, p, p.mean(3), p[..., 0, :], C_h, C_g)


def comparison(**options):
    # The larger comes first: figures sort sizes.
    networks = {LARGE: trajectory([0.95, 1.05], 16, seed=1), SMALL: trajectory([0.8, 1.2], seed=2)}
    return Comparison(PROBLEM, trajectory([1.0, 1.0], 1, 0.0), networks, **options)


def ways():
    """Return two ways of scaling, and what could have come out of each."""
    limit, laws = trajectory([1.0]), {2: trajectory([1.0], 64, seed=3), 8: trajectory([1.0], 64, 0.5, seed=4)}
    one = Way("growing E", (Size(8, 4, 2), Size(8, 16, 2)))
    other = Way("growing N", (Size(8, 4, 2), Size(32, 4, 8)))
    found = [
        Comparison(
            PROBLEM,
            limit,
            {size: trajectory([0.9, 1.0], size.E, seed=5) for size in way.sizes},
            {size.n_hid: laws[size.n_hid] for size in way.sizes},
        )
        for way in (one, other)
    ]
    return (one, other), found


def panels(module, shown):
    figure = new_figure(*shown.shape)
    module.draw(figure, shown)
    return [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]


FIGURES = {
    "loss": (loss, lambda: loss.data(comparison())),
    "router": (router, lambda: router.data(comparison())),
    "kernels": (
        kernels,
        lambda: kernels.data(trajectory([1.0], with_kernels=True), trajectory([1, 1], with_kernels=True), LARGE),
    ),
    "error": (error, lambda: error.data(comparison())),
    "soft_router": (soft_router, lambda: soft_router.data(*ways())),
}


def test_losses_are_those_of_each_seed_and_their_mean():
    shown = loss.data(comparison())
    assert list(shown.networks) == [SMALL, LARGE]
    first = float((Y**2).mean() / 2)
    assert shown.limit == pytest.approx([first * 4.0**-step for step in range(T)])
    small = shown.networks[SMALL]
    assert small[:, 0].tolist() == pytest.approx([0.64 * first, 1.44 * first])
    # The mean of losses, not the loss of the mean output, which would be that of the limit.
    assert small.mean(0)[0] == pytest.approx(1.04 * first)
    assert (shown.n_seeds, shown.steps) == (2, list(range(T)))
    rows = shown.rows()
    assert len(rows) == T * (1 + 2 * 3)
    assert rows[0] == {
        "curve": "limit", "N": None, "E": None, "n_hid": None, "step": 0, "loss": pytest.approx(first),
        "relative_to_limit": 0.0,
    }  # fmt: skip
    assert [row["relative_to_limit"] for row in rows if row["curve"] == "mean" and row["N"] == 8] == pytest.approx(
        [0.04] * T
    )


@pytest.mark.parametrize(("last", "is_log"), [(0.5, False), (0.2, True)])
def test_a_loss_that_falls_far_has_a_logarithmic_axis(last, is_log):
    shown = loss.LossData((0, 1), np.array([1.0, last**2]), {SMALL: np.array([[1.0, 0.5]])})
    assert shown.is_log == is_log
    upper, lower = panels(loss, shown)
    assert (upper.get_yscale(), lower.get_yscale()) == ("log" if is_log else "linear", "linear")


def test_the_limit_lies_over_all_networks():
    upper, _ = panels(loss, loss.data(comparison()))
    *networks, limit = upper.get_lines()
    assert len(networks) == 2 * (2 + 1)
    assert limit.get_color() == INK
    assert limit.is_dashed()
    assert all(limit.get_zorder() > line.get_zorder() for line in networks)


def test_a_law_counts_every_expert_and_datum_of_the_last_step():
    found = comparison()
    shown = router.data(found)
    assert [each.layer for each in shown.layers] == [0, 1]
    laws = shown.layers[1]
    widths = np.diff(laws.edges)
    last = found.networks[LARGE].p[:, 1, :, :, -1]
    inside = (last >= laws.edges[0]) & (last <= laws.edges[-1])
    large = laws.sizes[1]
    assert (large.size, large.experts, large.theory_experts) == (LARGE, 2 * 16, 2)
    assert np.dot(large.networks, widths) == pytest.approx(inside.mean())
    assert inside.mean() > 1 - 4 * router.BEYOND
    # Without any spread between experts the theory has one point for each of three data.
    assert [share for share in np.multiply(large.theory, widths) if share] == pytest.approx([1 / P] * P)
    assert shown.theory_label.startswith("limit, n_hid ∞")
    assert len(shown.rows()) == L * 2 * router.BINS
    assert {row["layer"] for row in shown.rows()} == {1, 2}


def test_networks_are_set_beside_the_theory_of_their_own_size():
    laws = {2: trajectory([1.0], 64, 2.0, seed=6), 8: trajectory([1.0], 64, 0.1, seed=7)}
    shown = router.data(comparison(laws=laws))
    assert shown.theory_label == "theory at the same n_hid"
    small, large = shown.layers[0].sizes
    assert sum(density > 0 for density in small.theory) > 2 * sum(density > 0 for density in large.theory)
    assert small.theory_experts == 64


def test_a_centred_law_is_the_spread_between_experts():
    shown = router.data(comparison(), centred=True).layers[0]
    # The theory has none: a point, higher than what is drawn of it, and the figure says so.
    assert sum(density > 0 for density in shown.sizes[0].theory) == 1
    assert shown.is_cut
    assert "cut off" in router.data(comparison(), centred=True).theory_label
    assert shown.of.startswith("p − its mean")
    assert not router.data(comparison()).layers[0].is_centred


def test_values_that_are_all_the_same_have_a_law():
    still = trajectory([1.0], spread=0.0)
    still.p[:] = 0.0
    shown = router.data(Comparison(PROBLEM, still, {SMALL: still}))
    assert np.dot(shown.layers[0].sizes[0].networks, np.diff(shown.layers[0].edges)) == pytest.approx(1)
    assert len(panels(router, shown)) == L


def test_a_kernel_is_the_mean_over_data_at_pairs_of_steps():
    theory = trajectory([1.0], with_kernels=True)
    shown = kernels.data(theory)
    assert shown.sides == ["theory"]
    assert (shown.layers, shown.steps, shown.n_seeds) == ((0, 1, 2), tuple(range(T)), 0)
    expected = np.mean([theory.C_g[2, x, :, x, :] for x in range(P)], axis=0)
    assert shown.maps["C_g", "theory", 2] == pytest.approx(expected)
    rows = shown.rows()
    assert len(rows) == 2 * (L + 1) * T * (T + 1) / 2
    assert rows[1] == {"kernel": "C_h", "of": "theory", "layer": 0, "t": 1, "t_prime": 0,
                       "value": pytest.approx(theory.C_h[0, range(P), 1, range(P), 0].mean())}  # fmt: skip


def test_kernels_of_networks_stand_below_where_there_are_any():
    theory, networks = trajectory([1.0], with_kernels=True), trajectory([1.0, 1.0], with_kernels=True, seed=8)
    assert kernels.data(theory, trajectory([1.0, 1.0]), LARGE).sides == ["theory"]
    shown = kernels.data(theory, networks, LARGE)
    assert (shown.sides, shown.n_seeds) == (["theory", "networks"], 2)
    drawn = panels(kernels, shown)
    assert len(drawn) == 2 * 2 * (L + 1)
    limits = [ax.images[0].get_clim() for ax in drawn]
    assert len(set(limits)) == 2  # one scale for each kernel
    assert limits[0] != limits[-1]
    with pytest.raises(ValueError, match="kernels=True"):
        kernels.data(trajectory([1.0]))


def test_many_steps_and_layers_are_thinned_evenly():
    T, L = 100, 8
    kernel = np.ones((L + 1, 1, T, 1, T))
    p = np.zeros((1, L, 1, 1, T))
    run = Trajectory(np.ones((1, T)), np.ones((1, 1, T)), np.ones(1), p, p[..., 0, :], p[..., 0, :], kernel, kernel)
    shown = kernels.data(run)
    assert shown.steps == tuple(range(0, 100, 5))
    assert shown.layers == (0, 3, 5, 8)
    assert shown.maps["C_h", "theory", 0].shape == (20, 20)


def with_errors(errors):
    """Return a comparison in which networks of a size lie so far from the limit."""
    limit = trajectory([1.0, 1.0])
    return Comparison(
        PROBLEM,
        limit,
        {
            size: Trajectory(
                limit.f, np.stack([limit.f * (1 + by), limit.f * (1 - by)]), Y, limit.p, limit.loads, limit.biases
            )
            for size, by in errors.items()
        },
    )


def test_errors_lie_on_the_line_that_fits_them():
    errors = {Size(N, 8, 4): 0.8 / math.sqrt(N) for N in (64, 16)} | {Size(16, E, 4): 1.6 / E for E in (32, 16)}
    shown = error.data(with_errors(errors))
    assert shown.dimensions == ["N", "E", "parameters"]
    (of_n,) = shown.of("N")
    assert of_n.sizes == (Size(16, 8, 4), Size(64, 8, 4))
    assert (of_n.values, error.fixed(of_n)) == ((16, 64), "E 8, n_hid 4")
    assert of_n.errors == pytest.approx([0.2, 0.1])
    assert of_n.slope == pytest.approx(-0.5)
    assert of_n.fitted(32) == pytest.approx(0.8 / math.sqrt(32))
    (of_e,) = shown.of("E")
    assert (of_e.slope, error.fixed(of_e)) == (pytest.approx(-1), "N 16, n_hid 4")
    assert len(shown.rows()) == 2 + 3 + 4
    assert shown.rows()[0] == {
        "dimension": "N", "value": 16, "N": 16, "E": 8, "n_hid": 4, "error": pytest.approx(0.2),
        "slope": pytest.approx(-0.5), "seeds": 2, "mc_error": 0.0,
    }  # fmt: skip


@pytest.mark.heavy
def test_an_error_has_its_slope_and_that_of_the_law_as_labels():
    shown = error.data(with_errors({Size(N, 8, 4): 0.8 / math.sqrt(N) for N in (16, 64)}))
    svg = render("error", error.draw, shown).svg
    assert "slope −0.50 at E 8, n_hid 4" in svg
    assert "slope −1/2 for reference" in svg
    assert "slope −1/6 for reference" in svg
    of_n, _ = panels(error, shown)
    assert (of_n.get_xscale(), of_n.get_yscale()) == ("log", "log")
    reference = of_n.get_lines()[-1]
    assert np.diff(np.log(reference.get_ydata())) / np.diff(np.log(reference.get_xdata())) == pytest.approx(-0.5)


def test_several_lines_of_a_dimension_are_told_apart():
    errors = {Size(N, E, 4): 1 / (math.sqrt(N) + E) for N in (16, 64) for E in (2, 8)}
    shown = error.data(with_errors(errors))
    assert [error.fixed(line) for line in shown.of("N")] == ["E 2, n_hid 4", "E 8, n_hid 4"]
    assert [error.fixed(line) for line in shown.of("E")] == ["N 16, n_hid 4", "N 64, n_hid 4"]


@pytest.mark.parametrize("errors", [(0.95, 1.05, 1.2, 1.9), (0.02, 0.5, 1e30, 1e90), (0.1, 0.101, 0.102, 0.103)])
def test_tick_labels_of_the_error_do_not_overlap(errors):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    sizes = (Size(48, 16, 8), Size(50, 16, 8), Size(1024, 64, 8), Size(1024, 64, 9))
    shown = error.data(with_errors(dict(zip(sizes, errors, strict=True))))
    figure = new_figure(*shown.shape)
    error.draw(figure, shown)
    FigureCanvasAgg(figure).draw()
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = axis.get_view_interval()
            labels = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            boxes = [label.get_window_extent() for label in labels if label.get_visible() and label.get_text()]
            assert labels
            assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))


def test_one_size_has_no_slope_and_the_figure_says_so():
    shown = error.data(with_errors({SMALL: 0.1}))
    assert shown.rows() == []
    assert "one size only" in render("error", error.draw, shown).svg


def test_each_way_of_scaling_has_its_losses_and_laws():
    shown = soft_router.data(*ways())
    assert shown.shape[0] == 2
    one, other = shown.ways
    assert (one.labels, one.fixed) == (["E 4", "E 16"], "N 8, n_hid 2")
    assert (other.labels, other.fixed) == (["N 8, n_hid 2", "N 32, n_hid 8"], "E 4")
    assert one.laws.layer == L - 1
    assert one.laws.sizes[0].theory == one.laws.sizes[1].theory  # both have the same n_hid
    assert other.laws.sizes[0].theory != other.laws.sizes[1].theory
    rows = shown.rows()
    assert len({tuple(row) for row in rows}) == 1
    assert len(rows) == 2 * (T * (1 + 2 * 3) + 2 * router.BINS)
    assert {row["way"] for row in rows} == {"growing E", "growing N"}
    assert one.laws.is_centred


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "n_panels", "words"),
    [
        ("loss", 2, ("N 8, E 4, n_hid 2 (n = 2 seeds)", "N 32, E 16, n_hid 8", "limit", "step")),
        ("router", L, ("layer 1", "layer 2", "p after 5 steps", "n = 2 seeds", "limit, n_hid ∞")),
        ("kernels", 4 * (L + 1), ("C_h, layer 0", "C_g, layer 2", "theory", "(n = 2 seeds)", "N 32, E 16, n_hid 8")),
        ("error", 1, ("parameters", "n = 2 seeds")),
        ("soft_router", 4, ("growing E", "N 8, n_hid 2", "E 16", "after 5 steps, layer 2", "n = 2 seeds")),
    ],
)
def test_a_drawing_has_its_panels_and_words_and_the_same_bytes_each_time(name, n_panels, words):
    module, make = FIGURES[name]
    shown = make()
    assert len(panels(module, shown)) == n_panels
    first, second = (render(name, module.draw, shown) for _ in range(2))
    assert first == second
    assert [word for word in words if word not in first.svg] == []
    assert first.png.startswith(b"\x89PNG")
    assert len(list(csv.DictReader(io.StringIO(first.csv)))) == len(shown.rows())
    assert "http" not in first.inline("title", "description")


def test_sizes_are_ordered_by_their_parameters_and_named_by_what_changes():
    assert small_to_large([LARGE, SMALL], PROBLEM) == [SMALL, LARGE]
    assert changing([SMALL]) == ["N", "E", "n_hid"]
    assert some_layers(1) == [0]


def test_round_numbers_become_more_in_a_short_range():
    assert round_numbers(1e-4, 1) == [1e-4, 1e-3, 1e-2, 0.1, 1]
    assert round_numbers(0.02, 0.3) == [0.03, 0.1, 0.3]
    assert all(3 <= len(round_numbers(low, 1.3 * low)) <= 6 for low in np.geomspace(0.01, 0.1, 40))
