// The page: fields to state, state to tables, figure and texts.
const find = (selector) => document.querySelector(selector);
const byKey = (attribute, key) => find(`[data-${attribute}="${CSS.escape(key)}"]`);
let state = { ...data.state }, hasPlan = false;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const SYMBOLS = {
  init_std: "σ", lr: "η", weight_decay: "λ", adam_eps: "ε", bias_lr: ["η", "b"], c_init: ["c", ""], c_lr: ["c", ""], longer: ["T/T", "0"],
  m_N: ["m", "N"], "m_N^gamma": ["m", "N"], m_KV: ["m", "N"], m_L: ["m", "L"], m_E: ["m", "E"], m_a: ["m", "α"], d_head: ["d", "head"], n_act: ["n", "act"],
};

/** A formula as in the paper; symbols that are 1 in every plan of this kind are left out. */
function formula(place, symbols) {
  if (place === null || place < 0) return [];
  const order = (symbol) => data.symbols.indexOf(symbol);
  const terms = data.monomials[place].filter(([symbol]) => !((symbol.startsWith("c_") || symbol === "longer") && symbols[symbol] === 1));
  if (!terms.length) return ["1"];
  return [...terms].sort((one, two) => order(one[0]) - order(two[0])).flatMap(([symbol, over, under]) => {
    const [name, index] = [SYMBOLS[symbol] ?? symbol].flat();
    const parts = [name];
    if (index) parts.push(element("sub", {}, index));
    const exponent = symbol === "m_N^gamma" ? `${over < 0 ? "−" : ""}γ` : over === under ? "" : `${over}`.replace("-", "−") + (under > 1 ? `/${under}` : "");
    if (exponent) parts.push(element("sup", {}, exponent));
    return [...parts, " "];
  });
}

function settingCell(label, value, base, place, symbols, start, mark) {
  if (value === null && start !== "gain") return element("td", { "data-label": label, class: "absent" }, "–");
  if (value === null) return element("td", { "data-label": label }, element("span", { class: "value" }, "gain 1"));
  const how = element("span", { class: "how" });
  if (value && base) how.append(element("span", { class: "factor" }, `×${shown(value / base)}`), " ");
  how.append(...formula(place, symbols));
  return element("td", { "data-label": label }, element("span", { class: "value", title: `${value}` }, shown(value) + mark), how);
}

function renderPlan(plan) {
  const symbolsAt = symbolsOf(plan.base, plan.target, plan.values, plan.values["hps.decay"] === "tau" ? plan.values["train.steps"] / plan.values["hps.tuned_steps"] : 1);
  const papers = data.settings[plan.values["hps.rules"]].paper.false;
  const differs = (place) => rowsOf(plan.values)[place][3] !== papers[place][3];
  const heads = ["init std", "learning rate", "weight decay", "Adam eps"];
  const rows = data.groups.flatMap((group, place) => {
    const settings = plan.groups[group];
    if (settings.lr === null) return [];
    const constants = plan.values.constants[group], symbols = { ...symbolsAt, c_lr: constants.lr, c_init: constants.init };
    const where = data.where[plan.values["hps.rules"]][place];
    const head = element("th", { scope: "row" }, group, element("span", { class: "role" }, where));
    const cells = SETTINGS.map((name, column) =>
      settingCell(heads[column], settings[name], plan.atBase[group][name], rowsOf(plan.values)[place][column], symbols, column === 0 ? data.starts[place] : "", name === "adam_eps" && differs(place) ? " *" : ""));
    return [element("tr", { "data-group": group }, head, ...cells)];
  });
  find("#plan").replaceChildren(
    element("thead", {}, element("tr", {}, ...["parameter group", ...heads].map((text) => element("th", { scope: "col" }, text)))),
    element("tbody", {}, ...rows),
  );
  find("#plan-note").textContent = "Below each value: its factor relative to the base, and its rule. Norms start with gain 1 and bias 0." +
    (plan.values["model.ffn"] === "moe" ? " The expert bias is not trained by Adam." : "") +
    (data.groups.some((group, place) => plan.groups[group].lr !== null && differs(place)) ? " * differs from the eps in the paper." : "");
  const meanings = { residual: "output of every block ×", logits: "logits ×", attention_scale: "attention scores q·k ×", moe_output: "sum over active experts ×" };
  find("#forward").replaceChildren(element("tbody", {}, ...Object.entries(plan.forward).filter(([, value]) => value !== null).map(([name, value]) =>
    element("tr", { "data-forward": name }, element("th", { scope: "row" }, meanings[name]),
      element("td", {}, element("span", { class: "value", title: `${value}` }, shown(value)), element("span", { class: "how" }, ...formula(plan.forwardPlaces[name], symbolsAt)))))));
}

const UNITS = [[1e24, "Y"], [1e21, "Z"], [1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
function withUnit(big, suffix = "", units = UNITS) {
  const number = Number(big), [size, unit] = units.find(([least]) => number >= least) ?? [1, ""];
  return `${Number((number / size).toPrecision(3))}${suffix ? ` ${unit}${suffix}` : unit}`;
}
const BYTES = [[2 ** 50, "Pi"], [2 ** 40, "Ti"], [2 ** 30, "Gi"], [2 ** 20, "Mi"], [2 ** 10, "Ki"]];
const COUNTS = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];

function renderCost({ base, target }) {
  const rows = [
    ["parameters", (cost) => cost.counts.total, (big) => withUnit(big, "", COUNTS)],
    ["active per token", (cost) => cost.counts.active, (big) => withUnit(big, "", COUNTS)],
    ["FLOPs per token", (cost) => cost.flops_per_token, (big) => withUnit(big)],
    ["training FLOPs", (cost) => cost.training_flops, (big) => withUnit(big)],
    ["training memory", (cost) => cost.training_bytes, (big) => withUnit(big, "B", BYTES)],
  ];
  find("#cost").replaceChildren(
    element("thead", {}, element("tr", {}, ...["", "base", "target", "ratio"].map((text, column) => element("th", { scope: "col", class: column ? "number" : undefined }, text)))),
    element("tbody", {}, ...rows.map(([name, of, write]) => element("tr", { "data-cost": name },
      element("th", { scope: "row" }, name),
      ...[base, target].map((cost) => element("td", { class: "number", title: `${of(cost)}` }, write(of(cost)))),
      element("td", { class: "number" }, `×${shown(Number(of(target)) / Number(of(base)))}`)))),
  );
}

function renderNotes({ values, target, base }) {
  const notes = [];
  if (values["hps.tuned_steps"] !== null && values["hps.tuned_steps"] !== values["train.steps"])
    notes.push(`The base was tuned at ${values["hps.tuned_steps"]} steps and the target has ${values["train.steps"]}: learning rates do not transfer to another number of steps.`);
  if (target.n_act * base.n_exp !== base.n_act * target.n_exp) notes.push("Base and target differ in sparsity: learning rates do not transfer.");
  find("#notes").replaceChildren(...notes.map((text) => element("li", {}, text)));
  find("#notes").hidden = !notes.length;
}

function renderMistakes(mistakes) {
  for (const place of document.querySelectorAll("[data-mistake]")) {
    const key = place.dataset.mistake, mistake = mistakes[key];
    byKey("key", key).toggleAttribute("aria-invalid", false);
    place.hidden = !mistake;
    place.replaceChildren();
    if (!mistake) continue;
    byKey("key", key).setAttribute("aria-invalid", "true");
    place.append(`${/^(is|must|makes) /.test(mistake.text) ? `${key.split(".").at(-1)} ` : ""}${mistake.text}.`);
    if (!mistake.fix) continue;
    const words = Object.entries(mistake.fix).map(([field, text]) => `${field} = ${text}`).join(", ");
    const button = element("button", { type: "button", class: "fix" }, `Set ${words}`);
    button.addEventListener("click", () => {
      Object.assign(state, mistake.fix);
      Object.keys(mistake.fix).forEach(follow);
      byKey("key", key).focus();
      changed();
    });
    place.append(button);
  }
  const count = Object.keys(mistakes).length, box = find("#state");
  box.hidden = !count;
  const before = hasPlan ? " The plan below is the last one without mistakes." : "";
  box.textContent = count ? `Mistakes are marked at their fields: ${Object.keys(mistakes).join(", ")}.${before}` : "";
  find("#results").classList.toggle("stale", count > 0);
  for (const button of document.querySelectorAll("button.copy")) button.disabled = count > 0 && button.dataset.copy !== "as-link";
}

function render() {
  const { values, mistakes } = readState(state);
  renderMistakes(mistakes);
  for (const name of SIZES) {
    const [base, target] = [values[`base.${name}`], values[`target.${name}`]], place = byKey("times", name);
    place.textContent = base && target ? `×${shown(target / base)}` : "";
    place.classList.toggle("grows", base !== target);
  }
  const link = location.href.replace(/#.*/, "") + asFragment(state);
  find("#as-link").textContent = link;
  const isBroken = Object.keys(mistakes).length > 0;
  const plan = isBroken ? null : planOf(values);
  for (const [name, text] of [["yaml", () => runYaml(plan, state)], ["json", () => planJson(plan)], ["pytorch", () => pytorchCode(plan)]])
    find(`#as-${name}`).textContent = isBroken ? "" : text();
  find("#results").hidden = isBroken && !hasPlan;
  if (isBroken) return;
  hasPlan = true;
  renderCost(plan.cost);
  renderNotes(plan);
  renderPlan(plan);
  const figure = { chart: find("#chart"), words: find("#chart-words"), legend: find("#chart-legend") };
  drawChart(plan, figure, find("#chart-axis").value, find("#chart-setting").value);
}

/** Constants of the user's own: one row each, and one more to add. */
function renderConstants() {
  const box = find("#constants"), isOwn = state["hps.constants"] === "custom";
  box.hidden = !isOwn;
  box.replaceChildren();
  if (!isOwn) return;
  const named = Object.keys(state).filter((key) => key.startsWith("constants."));
  for (const key of named) {
    const name = key.slice("constants.".length);
    const remove = element("button", { type: "button", class: "plain", "aria-label": `Remove ${name}` }, "Remove");
    remove.addEventListener("click", () => { delete state[key]; changed(); find("#add-constant").focus(); });
    const input = element("input", { id: `constant-${name}`, type: "text", "data-key": key, autocomplete: "off", "aria-describedby": `constant-${name}-mistake` });
    box.append(element("div", { class: "constant" }, element("label", { for: `constant-${name}` }, name), input, remove,
      element("p", { class: "mistake", id: `constant-${name}-mistake`, "data-mistake": key, hidden: "" })));
  }
  const add = element("select", { id: "add-constant", "aria-label": "Add a constant" }, element("option", { value: "" }, "Add a constant …"),
    ...data.constants.names.filter((name) => !named.includes(`constants.${name}`)).map((name) => element("option", {}, name)));
  add.addEventListener("change", () => { state[`constants.${add.value}`] = "1"; const id = `constant-${add.value}`; changed(); document.getElementById(id).focus(); });
  box.append(add);
}

/** Stops of a slider; widths that are no multiple of the head size are left out. */
function stopsOf(slider) {
  const all = slider.dataset.stops.split(" "), head = Number(state["model.d_head"]);
  const fitting = slider.dataset.slides.endsWith(".n_embd") ? all.filter((stop) => stop % head === 0) : all;
  return fitting.length ? fitting : all;
}

function showSlider(slider) {
  const stops = stopsOf(slider), value = parseRatio(state[slider.dataset.slides].trim());
  slider.max = stops.length - 1;
  if (!(value > 0)) return;
  const distances = stops.map((stop) => Math.abs(Math.log(parseRatio(stop) / value)));
  slider.value = distances.indexOf(Math.min(...distances));
  slider.setAttribute("aria-valuetext", state[slider.dataset.slides]);
}

/** Show the state in all fields, except in the one that is being written. */
function showState() {
  renderConstants();
  for (const field of document.querySelectorAll("[data-key]")) if (field.value !== state[field.dataset.key]) field.value = state[field.dataset.key];
  for (const box of document.querySelectorAll("[data-check]")) box.checked = state[box.dataset.check] === "true";
  for (const slider of document.querySelectorAll("[data-slides]")) showSlider(slider);
  const isDense = state["model.ffn"] === "dense";
  for (const name of ["n_exp", "n_act"]) byKey("size", name).hidden = isDense;
  find(".sparsity").hidden = isDense;
  render();
}

/** The target's active experts follow, where the base's sparsity allows it. */
function follow(key) {
  if (!find("#follow").checked || !["base.n_exp", "base.n_act", "target.n_exp"].includes(key)) return;
  const [E0, K0, E] = ["base.n_exp", "base.n_act", "target.n_exp"].map((name) => Number(state[name]));
  const active = (E * K0) / E0;
  if (Number.isInteger(active) && active >= 1) state["target.n_act"] = `${active}`;
}

let waiting = 0;
function changed() {
  showState();
  clearTimeout(waiting); // browsers refuse many changes of the address in a short time
  waiting = setTimeout(() => history.replaceState(null, "", asFragment(state) || location.pathname), 300);
}

find("#controls").addEventListener("input", (event) => {
  const { key, slides, check } = event.target.dataset;
  if (key) state[key] = event.target.value;
  else if (slides) state[slides] = stopsOf(event.target)[event.target.value];
  else if (check) state[check] = `${event.target.checked}`;
  else if (event.target.id !== "follow") return;
  if (key === "hps.constants" && state[key] === "custom" && !Object.keys(state).some((name) => name.startsWith("constants.")))
    for (const [name, value] of Object.entries(data.constants.paper)) state[`constants.${name}`] = `1/${1 / value}`;
  follow(key ?? slides ?? "target.n_exp");
  changed();
});
find("#controls").addEventListener("submit", (event) => event.preventDefault());
find("#reset").addEventListener("click", () => {
  state = { ...data.state };
  find("#follow").checked = find("#follow").defaultChecked;
  changed();
});
for (const id of ["#chart-axis", "#chart-setting"]) find(id).addEventListener("input", render);
narrow.addEventListener("change", render);

const tabs = [...document.querySelectorAll("[role=tab]")];
function chooseTab(tab) {
  for (const each of tabs) {
    each.setAttribute("aria-selected", each === tab);
    each.tabIndex = each === tab ? 0 : -1;
    document.getElementById(each.getAttribute("aria-controls")).hidden = each !== tab;
  }
}
for (const [place, tab] of tabs.entries()) {
  tab.addEventListener("click", () => chooseTab(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs.at((place + step) % tabs.length);
    chooseTab(next);
    next.focus();
  });
}
find(".skip").addEventListener("click", (event) => { event.preventDefault(); find("#main").focus(); }); // the fragment is the state
addEventListener("hashchange", () => { state = fromFragment(location.hash); showState(); });
state = fromFragment(location.hash);
showState();
