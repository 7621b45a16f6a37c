// From the texts of the fields to numbers, mistakes and a plan. Nothing here touches the page.
const data = JSON.parse(document.getElementById("data").textContent);
const SIZES = ["n_embd", "n_layer", "n_exp", "n_act", "alpha_ffn", "vocab_size", "context"];
const SETTINGS = ["init_std", "lr", "weight_decay", "adam_eps"];
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

const parseNumber = (text) => (NUMBER.test(text) ? Number(text) : NaN);
const FRACTION = /^([+-]?\d+)\/(\d+)$/;
const parseRatio = (text) => {
  const fraction = text.match(FRACTION);
  return fraction ? Number(fraction[1]) / Number(fraction[2]) : parseNumber(text);
};

/** Return {value} or {mistake} of one field. */
function readField(text, limits, isGamma) {
  text = text.trim();
  if (limits.kind === "choice") return { value: text };
  if (text === "") return limits.optional ? { value: null } : { mistake: "is empty; give a number" };
  if (isGamma && /^\.?inf(inity)?$/i.test(text)) return { value: Infinity };
  if (limits.kind === "whole") {
    if (!/^\d+$/.test(text)) return { mistake: `${text} is not a whole number` };
    if (!Number.isSafeInteger(Number(text))) return { mistake: "is too large" };
  }
  const value = limits.kind === "ratio" ? parseRatio(text) : parseNumber(text);
  if (!Number.isFinite(value)) return { mistake: `${text} is not a number${limits.kind === "ratio" ? " or a fraction such as 1/4" : ""}` };
  if (limits.gt !== undefined && !(value > limits.gt)) return { mistake: `must be above ${limits.gt}` };
  if (limits.ge !== undefined && !(value >= limits.ge)) return { mistake: `must be at least ${limits.ge}` };
  if (limits.lt !== undefined && !(value < limits.lt)) return { mistake: `must be below ${limits.lt}` };
  if (isGamma && value > 16) return { mistake: "is above 16; write inf for a router that starts at zero" };
  return { value };
}

const gcd = (a, b) => (b ? gcd(b, a % b) : a);
const shownRatio = (numerator, denominator) => {
  const common = gcd(numerator, denominator);
  return denominator === common ? `${numerator / common}` : `${numerator / common}/${denominator / common}`;
};

/** Read all fields: {values by key, mistakes by key: {text, fix: {key: text}, fixLabel}}. */
function readState(state) {
  const values = {}, mistakes = {};
  const isDense = state["model.ffn"] === "dense";
  for (const [key, limits] of Object.entries(data.fields)) {
    if (isDense && /\.n_(exp|act)$/.test(key)) { values[key] = 1; continue; }
    const found = readField(state[key], limits, key === "hps.gamma");
    if (found.mistake) mistakes[key] = { text: found.mistake };
    else values[key] = found.value;
  }
  const has = (...keys) => keys.every((key) => values[key] !== undefined && !mistakes[key]);
  const wrong = (key, text, fix) => { mistakes[key] ??= { text, fix }; };
  for (const side of ["base", "target"]) checkShape(side, values, has, wrong);
  checkSparsity(state, values, mistakes, has, wrong);
  if (has("hps.decay", "hps.tuned_steps") && values["hps.decay"] === "tau" && values["hps.tuned_steps"] === null)
    wrong("hps.tuned_steps", "is missing; decay tau needs the steps of the base's run", has("train.steps") ? { "hps.tuned_steps": state["train.steps"] } : undefined);
  if (has("train.batch_tokens", "target.context") && values["train.batch_tokens"] % values["target.context"]) {
    const context = values["target.context"];
    const near = Math.max(1, Math.round(values["train.batch_tokens"] / context)) * context;
    wrong("train.batch_tokens", `is not a multiple of the target's context of ${context}`, { "train.batch_tokens": `${near}` });
  }
  values.constants = readConstants(state, wrong);
  return { values, mistakes };
}

function checkShape(side, values, has, wrong) {
  const at = (name) => values[`${side}.${name}`];
  if (has(`${side}.n_act`, `${side}.n_exp`) && at("n_act") > at("n_exp"))
    wrong(`${side}.n_act`, `is more than the ${at("n_exp")} experts`, { [`${side}.n_act`]: `${at("n_exp")}` });
  if (has(`${side}.n_embd`, "model.d_head") && at("n_embd") % values["model.d_head"]) {
    const size = values["model.d_head"];
    const near = Math.max(size, Math.round(at("n_embd") / size) * size);
    wrong(`${side}.n_embd`, `is not a multiple of the head size ${size}`, { [`${side}.n_embd`]: `${near}` });
  }
  if (has(`${side}.n_embd`, `${side}.alpha_ffn`)) {
    const hidden = at("alpha_ffn") * at("n_embd"), near = Math.max(1, Math.round(hidden));
    if (Math.abs(hidden - near) > 1e-6)
      wrong(`${side}.alpha_ffn`, `makes ${shown(hidden)} hidden units, which is not a whole number`, { [`${side}.alpha_ffn`]: shownRatio(near, at("n_embd")) });
  }
}

/** Learning rates do not transfer across sparsity. */
function checkSparsity(state, values, mistakes, has, wrong) {
  if (!has("base.n_exp", "base.n_act", "target.n_exp", "target.n_act") || state.allow_kappa_change === "true") return;
  const [E0, K0, E, K] = ["base.n_exp", "base.n_act", "target.n_exp", "target.n_act"].map((key) => values[key]);
  if (K * E0 === K0 * E) return;
  const sparsities = `The sparsity n_act/n_exp is ${shownRatio(K, E)} in the target but ${shownRatio(K0, E0)} in the base: learning rates do not transfer`;
  const step = E0 / gcd(E0, K0);
  if ((E * K0) % E0 === 0) wrong("target.n_act", sparsities, { "target.n_act": `${(E * K0) / E0}` });
  else {
    const near = Math.max(1, Math.round(E / step)) * step;
    wrong("target.n_exp", sparsities, { "target.n_exp": `${near}`, "target.n_act": `${(near * K0) / E0}` });
  }
}

/** Return {group: {lr, init}}; constants that are not named are 1. */
function readConstants(state, wrong) {
  const named = {};
  if (state["hps.constants"] === "paper") Object.assign(named, data.constants.paper);
  if (state["hps.constants"] === "custom")
    for (const [key, text] of Object.entries(state)) {
      if (!key.startsWith("constants.")) continue;
      const value = parseRatio(text.trim());
      if (value > 0 && Number.isFinite(value)) named[key.slice("constants.".length)] = value;
      else wrong(key, "must be a positive number or a fraction such as 1/16");
    }
  const resolved = Object.fromEntries(data.groups.map((group) => [group, { lr: 1, init: 1 }])), owner = {};
  for (const [name, value] of Object.entries(named)) {
    const [, family, what] = name.match(/^(.*)_(lr|init)$/);
    for (const group of data.constants.families[family]) {
      const place = `${group}_${what}`;
      if (owner[place]) wrong(`constants.${name}`, `${what} of ${group} is also set by ${owner[place]}; remove one of them`);
      owner[place] = name;
      if (resolved[group]) resolved[group][what] = value;
    }
  }
  resolved.named = named;
  return resolved;
}

const modelOf = (side, values) => Object.fromEntries(SIZES.map((name) => [name, values[`${side}.${name}`]]));

/** Values of the symbols in the rules, for a target relative to a base. */
function symbolsOf(base, target, values, longer) {
  const m_N = target.n_embd / base.n_embd, gamma = values["hps.gamma"];
  return {
    m_N, "m_N^gamma": gamma === Infinity ? 1 : m_N ** gamma, m_KV: m_N, m_L: target.n_layer / base.n_layer,
    m_E: target.n_exp / base.n_exp, m_a: target.alpha_ffn / base.alpha_ffn, L: target.n_layer, "(2L)": 2 * target.n_layer,
    d_head: values["model.d_head"], n_act: target.n_act, longer,
    ...Object.fromEntries(["lr", "init_std", "weight_decay", "adam_eps", "bias_lr"].map((name) => [name, values[`hps.${name}`]])),
  };
}

const product = (place, symbols) =>
  place === null ? null : place < 0 ? 0 : data.monomials[place].reduce((total, [symbol, over, under]) => total * symbols[symbol] ** (over / under), 1);

const polynomial = (terms, sizes) =>
  terms.reduce((total, [factor, names]) => total + names.reduce((part, name) => part * sizes[name], BigInt(factor)), 0n);

const variantOf = (values) => data.variants[["ffn", "tied_embeddings", "linear_bias"].map((name) => values[`model.${name}`]).join()];
const rowsOf = (values) => data.settings[values["hps.rules"]][values["hps.eps_rule"]][values["hps.gamma"] === Infinity];

/** Settings of every group of a target: null where a setting or the group is absent. */
function groupsOf(base, target, values, longer) {
  const symbols = symbolsOf(base, target, values, longer), present = variantOf(values).present;
  return Object.fromEntries(data.groups.map((group, place) => {
    const { lr, init } = values.constants[group];
    const settings = rowsOf(values)[place].map((each) => (present[place] ? product(each, { ...symbols, c_lr: lr, c_init: init }) : null));
    return [group, Object.fromEntries(SETTINGS.map((name, column) => [name, settings[column]]))];
  }));
}

/** Counts, FLOPs and memory of a model, exactly. */
function costOf(model, values) {
  const sizes = Object.fromEntries(SIZES.filter((name) => name !== "alpha_ffn").map((name) => [name, BigInt(model[name])]));
  sizes.n_hid = BigInt(Math.round(model.alpha_ffn * model.n_embd));
  const variant = variantOf(values), flops = polynomial(variant.flops_per_token, sizes);
  return {
    counts: Object.fromEntries(Object.entries(variant.counts).map(([name, terms]) => [name, polynomial(terms, sizes)])),
    flops_per_token: flops,
    training_flops: flops * BigInt(values["train.steps"]) * BigInt(values["train.batch_tokens"]),
    training_bytes: polynomial(variant.training_bytes, sizes),
  };
}

/** The plan of a state without mistakes. */
function planOf(values) {
  const base = modelOf("base", values), target = modelOf("target", values);
  const isTau = values["hps.decay"] === "tau";
  const longer = isTau ? values["train.steps"] / values["hps.tuned_steps"] : 1;
  const symbols = symbolsOf(base, target, values, longer), isMoe = values["model.ffn"] === "moe";
  const forward = data.forward[values["hps.rules"]][values["hps.residual"]];
  return {
    base, target, values,
    multipliers: { width: symbols.m_N, depth: symbols.m_L, experts: symbols.m_E, alpha: symbols.m_a },
    groups: groupsOf(base, target, values, longer),
    atBase: groupsOf(base, base, values, 1),
    forward: Object.fromEntries(Object.entries(forward).map(([name, place]) => [name, name === "moe_output" && !isMoe ? null : product(place, symbols)])),
    forwardPlaces: forward,
    cost: { base: costOf(base, values), target: costOf(target, values) },
  };
}

/** Write a number with four digits. */
function shown(number) {
  if (number === null) return "–";
  if (number === 0) return "0";
  const size = Math.abs(number);
  return size >= 1e-4 && size < 1e6 ? `${Number(number.toPrecision(4))}` : Number(number.toPrecision(4)).toExponential().replace("e+", "e");
}
