// A plan as text: JSON as `expertp plan --json` prints it, a run file, and parameter groups of PyTorch.
const architecture = (values) => ({
  d_head: values["model.d_head"], gate: values["model.gate"], tied_embeddings: values["model.tied_embeddings"] === "true",
  linear_bias: values["model.linear_bias"] === "true", ffn: values["model.ffn"], activation: "gelu",
});

/** JSON with BigInts as numbers. */
function asJson(value, indent = "") {
  if (typeof value === "bigint") return `${value}`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}  `;
  const parts = Array.isArray(value)
    ? value.map((each) => inner + asJson(each, inner))
    : Object.entries(value).map(([key, each]) => `${inner}${JSON.stringify(key)}: ${asJson(each, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return parts.length ? `${open}\n${parts.join(",\n")}\n${indent}${close}` : open + close;
}

function planJson(plan) {
  const shared = architecture(plan.values);
  return asJson({
    rules: plan.values["hps.rules"], eps_rule: plan.values["hps.eps_rule"],
    base: { ...plan.base, ...shared }, target: { ...plan.target, ...shared },
    multipliers: plan.multipliers, groups: plan.groups, forward: plan.forward, counts: plan.cost.target.counts,
    cost: { flops_per_token: plan.cost.target.flops_per_token, training_flops: plan.cost.target.training_flops, training_bytes: plan.cost.target.training_bytes },
  });
}

function runYaml(plan, state) {
  const { values } = plan, isMoe = values["model.ffn"] === "moe";
  const lines = ["# A run file: set train.data, then `expertp train run.yaml --out out/target`."];
  for (const [section, side] of [["base", "base"], ["model", "target"]]) {
    lines.push(`${section}:`);
    for (const name of SIZES) if (isMoe || !["n_exp", "n_act"].includes(name)) lines.push(`  ${name}: ${state[`${side}.${name}`].trim()}`);
    for (const name of ["ffn", "d_head", "gate", "tied_embeddings", "linear_bias"]) lines.push(`  ${name}: ${state[`model.${name}`].trim()}`);
  }
  lines.push("hps:");
  for (const name of ["lr", "init_std", "adam_eps", "weight_decay", "bias_lr", "rules", "eps_rule", "residual", "decay", "tuned_steps"])
    if (state[`hps.${name}`].trim()) lines.push(`  ${name}: ${state[`hps.${name}`].trim()}`);
  lines.push(`  gamma: ${values["hps.gamma"] === Infinity ? ".inf" : state["hps.gamma"].trim()}`);
  lines.push(`  betas: [${data.betas.join(", ")}]`);
  if (data.clip !== null) lines.push(`  clip: ${data.clip}`);
  const constants = Object.keys(values.constants.named);
  if (state["hps.constants"] !== "custom") lines.push(`  constants: ${state["hps.constants"]}`);
  else lines.push(`  constants: {${constants.map((name) => `${name}: ${state[`constants.${name}`].trim()}`).join(", ")}}`);
  lines.push("train:", "  data: prepared/builtin  # token shards of `expertp prepare`", `  steps: ${values["train.steps"]}`, `  batch_tokens: ${values["train.batch_tokens"]}`);
  if (state.allow_kappa_change === "true") lines.push("allow_kappa_change: true");
  return `${lines.join("\n")}\n`;
}

function pytorchCode(plan) {
  const { forward, groups } = plan;
  const python = (value) => (value === null ? "None" : `${value}`);
  const rows = Object.entries(groups)
    .filter(([name, group]) => group.lr !== null && name !== "expert_bias")
    .map(([name, group]) => `    "${name}": (${SETTINGS.map((setting) => python(group[setting])).join(", ")}),`);
  const bias = groups.expert_bias.lr;
  return [
    "import torch",
    "",
    "# init std (None: gain 1, bias 0), lr, weight decay, Adam eps",
    "SETTINGS = {",
    ...rows,
    "}",
    `# In the forward pass: block outputs x ${shown(forward.residual)}, logits x ${shown(forward.logits)}, q.k x ${shown(forward.attention_scale)}` +
      (forward.moe_output === null ? "." : `, sum over active experts x ${shown(forward.moe_output)}.`),
    ...(bias === null ? [] : [`# The expert bias starts at 0 and is not trained by Adam; its learning rate is ${shown(bias)}.`]),
    "",
    "",
    "def param_groups(model, group_of):",
    '    """Return parameter groups of Adam; group_of maps the name of a parameter to a key of SETTINGS."""',
    "    parameters = {group: [] for group in SETTINGS}",
    "    for name, parameter in model.named_parameters():",
    "        parameters[group_of(name)].append(parameter)",
    "    return [",
    '        {"name": group, "params": parameters[group], "lr": lr, "weight_decay": decay, "eps": eps}',
    "        for group, (_, lr, decay, eps) in SETTINGS.items()",
    "        if parameters[group]",
    "    ]",
    "",
    "",
    `# optimizer = torch.optim.AdamW(param_groups(model, group_of), betas=(${data.betas.join(", ")}))`,
    "",
  ].join("\n");
}

const isConstant = (key) => key.startsWith("constants.") || key === "hps.constants";
const textOf = (entries) => entries.map(([key, text]) => `${key}=${encodeURIComponent(text)}`).join("&");

/** The state as a fragment; fields that are as the page was written are left out, constants as a whole. */
function asFragment(state) {
  const all = Object.entries(state), before = Object.entries(data.state);
  const constants = textOf(all.filter(([key]) => isConstant(key)));
  const changed = textOf(all.filter(([key, text]) => !isConstant(key) && text !== data.state[key]));
  const parts = [changed, constants === textOf(before.filter(([key]) => isConstant(key))) ? "" : constants].filter(Boolean);
  return parts.length ? `#${parts.join("&")}` : "";
}

/** The state of a fragment; what the page does not know is ignored. */
function fromFragment(fragment) {
  const entries = fragment.replace(/^#/, "").split("&").map((part) => [part.slice(0, part.indexOf("=")), part.slice(part.indexOf("=") + 1)]);
  const state = { ...data.state };
  if (entries.some(([key]) => isConstant(key))) for (const key of Object.keys(state)) if (key.startsWith("constants.")) delete state[key];
  for (const [key, encoded] of entries) {
    const isNamed = key.startsWith("constants.") && data.constants.names.includes(key.slice("constants.".length));
    const choices = data.choices[key];
    try {
      const text = decodeURIComponent(encoded);
      if ((Object.hasOwn(data.state, key) || isNamed) && (!choices || choices.includes(text))) state[key] = text;
    } catch { /* a broken link keeps what can be read */ }
  }
  return state;
}
