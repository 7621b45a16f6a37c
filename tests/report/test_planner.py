"""The planner exports the formulas of the program, and in a browser its page computes what `plan` does."""

import ast
import json
import random
from urllib.parse import quote

import pytest
import torch
from pydantic import ValidationError

from expertp import BaseHPs, ModelSpec, load_run, plan
from expertp.cli.main import main
from expertp.config import load_base, load_target
from expertp.model import MoETransformer, group_of
from expertp.plan import constant_names, resolve_constants
from expertp.report.formulas import Polynomial, Symbolic, formulas
from expertp.report.planner import planner_page
from expertp.rules import CONSTANT_FAMILIES, EXPERTP, ONE, REFERENCE_RULES
from expertp.training.optim import param_groups

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 400, "height": 850}
LARGEST_PAGE = 300_000
SIZES = ("n_embd", "n_layer", "n_exp", "n_act", "alpha_ffn", "vocab_size", "context")
GO = """fragment => {
    history.replaceState(null, "", fragment);
    dispatchEvent(new Event("hashchange"));
    const all = (selector, within = document) => [...within.querySelectorAll(selector)];
    const cells = (row) => all("td", row).map((cell) => cell.querySelector("[title]")?.title ?? null);
    return {
        json: document.getElementById("as-json").textContent,
        cost: Object.fromEntries(all("#cost tr[data-cost]").map((row) => [
            row.dataset.cost, all("td[title]", row).map((cell) => cell.title),
        ])),
        shown: Object.fromEntries(all("#plan tr[data-group]").map((row) => [row.dataset.group, cells(row)])),
        wrong: all("[data-mistake]:not([hidden])").map((each) => [each.dataset.mistake, each.textContent]),
    };
}"""
# The text below every value: its factor, and its rule with ^ and _ for exponents and indices.
RULES_SHOWN = """() => {
    const text = (node) => ({ SUB: "_", SUP: "^" }[node.tagName] ?? "") + node.textContent;
    const rule = (how) => [...how.childNodes].filter((each) => each.className !== "factor").map(text).join("").trim();
    const cell = (how) => how && [how.querySelector(".factor")?.textContent ?? "", rule(how)];
    const cells = (row) => [...row.querySelectorAll("td")].map((each) => cell(each.querySelector(".how")));
    return Object.fromEntries(
        [...document.querySelectorAll("#plan tr[data-group]")].map((row) => [row.dataset.group, cells(row)])
    );
}"""
CUT = """() => [...document.querySelectorAll('body *')].filter(each =>
    each.getBoundingClientRect().right > window.innerWidth + 1 && !each.closest('.scroll, pre, .hidden')
).map(each => each.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The planner as the command writes it."""
    path = tmp_path_factory.mktemp("planner") / "planner.html"
    assert main(["planner", "--out", str(path)]) == 0
    return path


@pytest.fixture
def page(visit_page, path):
    page = visit_page(path, DESK, permissions=["clipboard-read", "clipboard-write"])
    yield page
    assert page.complaints == []


def fragment(state):
    return "#" + "&".join(f"{key}={quote(str(value), safe='')}" for key, value in state.items())


def random_state(chance):
    """Return a state without mistakes, as a reader could type it."""
    kappa_under, d_head = chance.choice([1, 2, 4, 8, 12]), chance.choice([16, 32, 64, 128])
    active = chance.randint(1, kappa_under)
    is_dense = chance.random() < 0.2

    def sizes():
        times = chance.randint(1, 16)
        width = d_head * chance.choice([1, 2, 3, 5, 8, 12, 45, 100])
        experts = {} if is_dense else {"n_exp": times * kappa_under, "n_act": times * active}
        return {
            **{"n_embd": width, "n_layer": chance.randint(1, 100), **experts},
            **{
                "alpha_ffn": chance.choice(["1/16", "0.25", "1/2", "1", "2", "4", f"7/{width}", f"{3 * width}/{width}"])
            },
            **{"vocab_size": chance.choice([256, 50304, 151936, 10**6]), "context": chance.choice([64, 1000, 131072])},
        }

    base, target = sizes(), sizes()
    state = {
        **{f"base.{name}": value for name, value in base.items()},
        **{f"target.{name}": value for name, value in target.items()},
        **{"model.d_head": d_head, "model.ffn": "dense" if is_dense else "moe"},
        "model.gate": chance.choice(["sigmoid", "softmax"]),
        **{f"model.{name}": chance.choice(["true", "false"]) for name in ("tied_embeddings", "linear_bias")},
        "hps.lr": chance.choice(["1/64", "0.016", "3e-4", "1/3", f"{chance.random():.6f}1"]),
        "hps.init_std": chance.choice(["0.02", "1/32", "1.5"]),
        "hps.adam_eps": chance.choice(["1e-12", "1e-8", "0.5"]),
        "hps.weight_decay": chance.choice(["0", "0.1", "1e-4"]),
        "hps.bias_lr": chance.choice(["0", "0.1", "0.001"]),
        "hps.gamma": chance.choice(["1", "0.5", "1/2", "0.7", "2", "inf"]),
        "hps.rules": chance.choice(sorted(REFERENCE_RULES)),
        "hps.eps_rule": chance.choice(["consistent", "paper"]),
        "hps.residual": chance.choice(["relative", "absolute"]),
        "hps.decay": chance.choice(["independent", "tau"]),
        "hps.tuned_steps": chance.choice([1000, 7, 300000]),
        "train.steps": chance.choice([1, 2000, 12345, 10**7]),
        "train.batch_tokens": target["context"] * chance.choice([1, 7, 512, 4096]),
        "hps.constants": chance.choice(["ones", "paper", "custom"]),
    }
    if state["hps.constants"] == "custom":
        taken = set()
        for name in chance.sample(constant_names(), chance.randint(0, 6)):
            family, _, what = name.rpartition("_")
            if not taken & {(group, what) for group in CONSTANT_FAMILIES[family]}:
                taken |= {(group, what) for group in CONSTANT_FAMILIES[family]}
                state[f"constants.{name}"] = chance.choice(["1/16", "0.3", "4", "1"])
    return state


def in_python(state):
    """Return base, target, hyperparameters and plan of a state."""
    both = {key.removeprefix("model."): value for key, value in state.items() if key.startswith("model.")}
    base, target = (
        ModelSpec(**{name: state[f"{side}.{name}"] for name in SIZES if f"{side}.{name}" in state}, **both)
        for side in ("base", "target")
    )
    given = {key.removeprefix("hps."): value for key, value in state.items() if key.startswith("hps.")}
    if given["constants"] == "custom":
        given["constants"] = {
            key.removeprefix("constants."): value for key, value in state.items() if key.startswith("constants.")
        }
    planned = plan(base, target, BaseHPs(**given), steps=int(state["train.steps"]))
    return base, target, planned


def close(ours, theirs):
    """Whether two trees of numbers are equal to 1e-12; integers exactly."""
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(close(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, float) and not isinstance(ours, str | None):
        return abs(ours - theirs) <= 1e-12 * abs(theirs)
    return ours == theirs


def compare(page, state):
    base, target, planned = in_python(state)
    found = page.evaluate(GO, fragment(state))
    assert found["wrong"] == [], state
    ours, theirs = json.loads(found["json"]), planned.to_dict()
    cost = ours.pop("cost")
    assert close(ours, theirs), (state, ours, theirs)
    tokens = int(state["train.steps"]) * int(state["train.batch_tokens"])
    assert cost == {
        "flops_per_token": target.flops_per_token(),
        "training_flops": target.flops_per_token() * tokens,
        "training_bytes": 16 * target.counts().total,
    }
    settings = {name: group for name, group in ours["groups"].items() if group["lr"] is not None}
    assert found["shown"].keys() == settings.keys()
    for name, cells in found["shown"].items():
        assert [None if cell is None else float(cell) for cell in cells] == list(settings[name].values())
    sides = (base, target)
    assert found["cost"] == {
        "parameters": [str(side.counts().total) for side in sides],
        "active per token": [str(side.counts().active) for side in sides],
        "FLOPs per token": [str(side.flops_per_token()) for side in sides],
        "training FLOPs": [str(side.flops_per_token() * tokens) for side in sides],
        "training memory": [str(16 * side.counts().total) for side in sides],
    }


@pytest.mark.heavy
def test_the_page_plans_as_python_does(page):
    chance = random.Random(0)
    for _ in range(30):
        compare(page, random_state(chance))


@pytest.mark.slow
def test_the_page_plans_as_python_does_300_times(page):
    chance = random.Random(1)
    for _ in range(300):
        compare(page, random_state(chance))


def test_symbols_go_through_products_and_sums():
    x, y = Symbolic.named("x"), Symbolic.named("y")
    assert (1.0 * x / y**2 * x).monomial.powers == (("x", 2), ("y", -2))
    n, m = Polynomial.named("n"), Polynomial.named("m")
    assert ((n + 2) * (m + 3 * n) + 0).terms == {("m", "n"): 1, ("n", "n"): 3, ("m",): 2, ("n",): 6}
    with pytest.raises(AssertionError, match="numeric factor"):
        2 * x


def test_the_export_holds_every_rule_set_and_is_small():
    data = formulas()
    assert set(data["settings"]) == set(REFERENCE_RULES)
    assert len(json.dumps(data)) < 60_000


def test_the_page_is_small_and_refers_to_nothing_outside(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < LARGEST_PAGE
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


@pytest.mark.heavy
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_it_opens_without_a_complaint_and_fits_the_window(visit_page, path, scheme, viewport):
    page = visit_page(path, viewport, color_scheme=scheme)
    for setting in ("lr", "forward"):
        page.select_option("#chart-setting", setting)
    for state in ({}, {"target.n_act": 3, "target.n_embd": 2901, "hps.lr": ""}):
        page.evaluate(GO, fragment(state))
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        assert page.evaluate(CUT) == []
    assert page.complaints == []


@pytest.fixture(scope="module")
def adapted_path(tmp_path_factory):
    """The page of a model of transformers."""
    pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("adapted") / "planner.html"
    files = ("tests/fixtures/hf/deepseek-v3-base.json", "tests/fixtures/hf/deepseek-v3.json")
    assert main(["planner", "--hf", *files, "hps.lr=0.01", "hps.weight_decay=0.1", "--out", str(path)]) == 0
    return path


@pytest.mark.heavy
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_the_page_of_an_adapted_model_opens_without_a_complaint_and_fits(visit_page, adapted_path, scheme, viewport):
    assert adapted_path.stat().st_size < LARGEST_PAGE
    page = visit_page(adapted_path, viewport, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert page.evaluate(CUT) == []
    assert page.locator("#settings-head").is_visible()
    assert page.complaints == []


def rule_texts(group, row, hps, constants):
    """Return the rules of init, lr, weight decay and eps of a group, as the page writes them."""

    def written(symbol, rule, what=""):
        text = "" if rule == ONE else str(rule).replace("gamma", "γ").replace("m_a", "m_α").replace("m_KV", "m_N")
        constant = "c" if constants.get((group, what), 1.0) != 1.0 else ""
        return " ".join(each for each in (symbol, constant, text.replace("-", "−")) if each)

    if group == "expert_bias":
        return ["", "η_b", None, None]
    init = {"gain": None, "zero": ""}.get(row.start) if row.init is None else written("σ", row.init, "init")
    decay = written("λ", 1 / row.lr) if row.decays else ""
    return [init, written("η", row.lr, "lr"), decay, written("ε", row.adam_eps(hps.eps_rule))]


@pytest.mark.heavy
@pytest.mark.parametrize("eps_rule", ["consistent", "paper"])
def test_factors_and_rules_are_shown_as_python_has_them(page, eps_rule):
    start = page.evaluate("JSON.parse(document.getElementById('data').textContent).state")
    changes = {"target.n_embd": 1536, "target.n_layer": 24, "target.alpha_ffn": "1/2"}
    changes |= {"target.n_exp": 64, "target.n_act": 16}
    changes |= {"model.linear_bias": "true", "hps.gamma": "0.7", "hps.weight_decay": "0.1", "hps.constants": "paper"}
    changes |= {"hps.eps_rule": eps_rule}
    found = page.evaluate(GO, fragment(changes))
    assert found["wrong"] == []
    state = {key: value for key, value in (start | changes).items() if value != "" and not key.startswith("allow")}
    base, _, planned = in_python(state)
    at_base, hps = plan(base, base, planned.hps), planned.hps
    shown = page.evaluate(RULES_SHOWN)
    assert len(shown) == 11
    constants = resolve_constants(hps.constants)
    for group, cells in shown.items():
        settings = [vars(each.groups[group]).values() for each in (planned, at_base)]
        factors = [f"×{here / there:.4g}" if here and there else "" for here, there in zip(*settings, strict=True)]
        rules = rule_texts(group, EXPERTP.rows[group], hps, constants)
        assert cells == [rule if rule is None else [times, rule] for times, rule in zip(factors, rules, strict=True)]


MISTAKES = [
    ({"target.n_act": 3}, "target.n_act", "n_act = 4"),
    ({"target.n_exp": 18}, "target.n_exp", "n_exp = 20, target.n_act = 5"),
    ({"base.n_act": 5}, "base.n_act", "n_act = 4"),
    ({"target.n_embd": 2900}, "target.n_embd", "n_embd = 2880"),
    ({"target.alpha_ffn": "0.3001"}, "target.alpha_ffn", "alpha_ffn = 3/10"),
    ({"hps.decay": "tau"}, "hps.tuned_steps", "tuned_steps = 2000"),
    ({"train.batch_tokens": 1500}, "train.batch_tokens", "batch_tokens = 1024"),
    ({"target.n_layer": "0"}, "target.n_layer", None),
    ({"target.n_layer": "2.5"}, "target.n_layer", None),
    ({"target.vocab_size": ""}, "target.vocab_size", None),
    ({"hps.lr": "-1"}, "hps.lr", None),
    ({"hps.lr": "fast"}, "hps.lr", None),
    ({"hps.lr": "1/0"}, "hps.lr", None),
    ({"hps.adam_eps": "1/2"}, "hps.adam_eps", None),
    ({"hps.gamma": "0.4"}, "hps.gamma", None),
    ({"hps.gamma": "17"}, "hps.gamma", None),
    ({"hps.constants": "custom", "constants.router_lr": "0"}, "constants.router_lr", None),
    (
        {"hps.constants": "custom", "constants.mlp_up_lr": "2", "constants.expert_up_lr": "2"},
        "constants.expert_up_lr",
        None,
    ),
]


@pytest.mark.heavy
def test_mistakes_are_said_at_their_fields_with_the_fix(page):
    start = page.evaluate("JSON.parse(document.getElementById('data').textContent).state")
    for change, key, fix in MISTAKES:
        changed = {**start, **change}
        with pytest.raises(ValueError):  # noqa: PT011, messages differ
            check_in_python(changed)
        found = page.evaluate(GO, fragment(change))
        assert [place for place, _ in found["wrong"]] == [key], change
        assert found["json"] == "", "nothing wrong can be copied"
        field = page.locator(f"[data-key='{key}']")
        assert field.get_attribute("aria-invalid") == "true"
        buttons = page.locator("button.fix")
        assert buttons.count() == (fix is not None)
        if fix is not None:
            assert buttons.text_content() == f"Set {key.partition('.')[0]}.{fix}"
            buttons.click()
            assert page.locator("[data-mistake]:not([hidden])").count() == 0
            assert json.loads(page.locator("#as-json").text_content())["groups"]


def check_in_python(state):
    """Raise an error for a state that Python refuses."""
    base, target, _ = in_python({key: value for key, value in state.items() if value != ""})
    del base
    if state["target.vocab_size"] == "":
        raise ValueError("missing")
    if int(state["train.batch_tokens"]) % target.context:
        raise ValueError("batch_tokens")


@pytest.mark.heavy
def test_another_sparsity_can_be_allowed_and_is_noted(page):
    found = page.evaluate(GO, fragment({"target.n_act": 3, "allow_kappa_change": "true"}))
    assert found["wrong"] == []
    assert "differ in sparsity" in page.locator("#notes").text_content()


@pytest.mark.heavy
def test_the_keyboard_alone_plans_and_copies(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the plan"
    page.keyboard.press("Enter")
    assert page.evaluate("[document.activeElement.id, location.hash]") == ["main", ""]
    page.locator("#target-n_layer").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.slides") == "target.n_layer"
    page.keyboard.press("ArrowRight")
    assert page.locator("#target-n_layer").input_value() == "12"
    assert page.locator("tr[data-forward=residual] .value").text_content() == "0.6667"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "target-n_exp"
    page.keyboard.press("Control+a")
    page.keyboard.type("32")
    assert page.locator("#target-n_act").input_value() == "8", "active experts follow"
    page.locator("#tab-yaml").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.textContent === 'Copied'")
    assert json.loads(page.evaluate("navigator.clipboard.readText()"))["target"]["n_exp"] == 32
    reached = set()
    page.keyboard.press("Home")
    page.locator(".skip").focus()
    for _ in range(200):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.key ?? document.activeElement.id"))
        if "as-json" in reached:
            break
    assert set(page.evaluate("[...document.querySelectorAll('[data-key]')].map((each) => each.dataset.key)")) <= reached


@pytest.mark.heavy
def test_every_choice_of_the_page_plans(page):
    for select in page.locator("select[data-key]").all():
        for value in select.evaluate("(each) => [...each.options].map((option) => option.value)"):
            key = select.get_attribute("data-key")
            found = page.evaluate(GO, fragment({key: value}))
            assert found["wrong"] == [] or key == "hps.decay", (key, value)
            assert select.input_value() == value
    page.evaluate(GO, "#hps.rules=native&target.n_layer=9")
    read = json.loads(page.locator("#as-json").text_content())
    assert (read["target"]["n_layer"], read["rules"]) == (9, "expertp"), "native is not a rule set of this page"


@pytest.mark.heavy
@pytest.mark.parametrize("text", ["1/64", "+3/128", "1e-2", ".5", "1.5/3", "1 / 64", "-1/-3", "1/0", "1/2/3", "one"])
def test_the_page_reads_the_numbers_that_the_program_reads(page, text):
    try:
        wanted = BaseHPs(lr=text).lr
    except ValidationError:
        wanted = None
    found = page.evaluate(GO, fragment({"hps.lr": text}))
    assert [key for key, _ in found["wrong"]] == ([] if wanted else ["hps.lr"])
    if wanted:
        assert json.loads(found["json"])["groups"]["embedding"]["lr"] == wanted


@pytest.mark.heavy
def test_start_over_also_lets_active_experts_follow_again(page):
    page.locator("#follow").uncheck()
    page.locator("#target-n_layer").fill("9")
    page.locator("#reset").click()
    assert page.locator("#follow").is_checked()
    assert page.locator("#target-n_layer").input_value() != "9"


@pytest.mark.heavy
def test_a_link_brings_the_same_plan_and_a_broken_one_what_it_can(page, visit_page, path):
    state = random_state(random.Random(5))
    found = page.evaluate(GO, fragment(state))
    link = page.locator("#as-link").text_content()
    again = visit_page(path, DESK, fragment="#" + link.partition("#")[2])
    assert again.locator("#as-json").text_content() == found["json"]
    strange = "#target.n_layer=9&hps.rules=<b>&__proto__=1&constructor=2&x&hps.lr=%E0%A4%A&constants.foo_lr=3"
    page.evaluate(GO, strange)
    read = json.loads(page.locator("#as-json").text_content())
    assert (read["target"]["n_layer"], read["rules"]) == (9, "expertp")


@pytest.mark.heavy
def test_the_run_file_and_the_parameter_groups_have_the_plan(page, tmp_path):
    chance = random.Random(9)
    for _ in range(6):
        state = random_state(chance)
        _, _, planned = in_python(state)
        page.evaluate(GO, fragment(state))
        (tmp_path / "run.yaml").write_text(page.locator("#as-yaml").text_content(), encoding="utf-8")
        run = load_run(tmp_path / "run.yaml", ["train.eval_every=0"])
        assert (run.base, run.model, run.hps) == (planned.base, planned.target, planned.hps)
        assert plan(run.base, run.model, run.hps, steps=run.train.steps) == planned
        code = page.locator("#as-pytorch").text_content()
        settings = ast.literal_eval(code.partition("SETTINGS = ")[2].partition("\n}")[0] + "}")
        for name, (init_std, lr, decay, eps) in settings.items():
            group = planned.groups[name]
            theirs = (group.init_std, group.lr, group.weight_decay, group.adam_eps)
            assert close(dict(enumerate((init_std, lr, decay, eps))), dict(enumerate(theirs)))


@pytest.mark.heavy
def test_the_parameter_groups_are_those_of_the_program(page):
    small = {**{"n_embd": 64, "n_layer": 1, "n_exp": 4, "n_act": 2}, **{"vocab_size": 64, "context": 16}}
    large = {**small, "n_embd": 128}
    state = {f"{side}.{name}": each for side, m in (("base", small), ("target", large)) for name, each in m.items()}
    page.evaluate(GO, fragment({**state, "train.batch_tokens": 1600}))
    made = {}
    exec(page.locator("#as-pytorch").text_content(), made)  # our own code
    planned = plan(ModelSpec(**small), ModelSpec(**large), BaseHPs(lr=0.016, constants="paper"))
    model = MoETransformer(planned.target, planned.forward)
    torch.optim.AdamW(made["param_groups"](model, group_of))
    ours = {group["name"]: group for group in made["param_groups"](model, group_of)}
    for theirs in param_groups(model, planned):
        group = ours[theirs["name"]]
        assert [id(each) for each in group["params"]] == [id(each) for each in theirs["params"]]
        assert (group["lr"], group["weight_decay"], group["eps"]) == pytest.approx(
            (theirs["lr"], theirs["weight_decay"], theirs["eps"]), rel=1e-12
        )


def test_the_page_starts_with_the_given_files(tmp_path, visit_page):
    base, hps = load_base("configs/base.yaml", ["hps.lr=1/128", "hps.constants={router_lr: 1/16}", "hps.gamma=.inf"])
    target = load_target("configs/target.yaml", ["model.alpha_ffn=1/4"])
    path = tmp_path / "page.html"
    path.write_text(planner_page(base, target, hps, 100, 4096), encoding="utf-8")
    page = visit_page(path, DESK)
    expected = plan(base, target, hps).to_dict()
    shown = json.loads(page.locator("#as-json").text_content())
    del shown["cost"]
    assert close(shown, expected)
    assert page.complaints == []
