// The factors of all groups along one way of growing, on logarithmic axes; rules are monomials, so lines are straight.
const NAMES = { residual: "block outputs", logits: "logits", attention_scale: "attention scores", moe_output: "sum over experts" };

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The model at a share of the way: all sizes from base to target, or one size that grows to `most` times the base's. */
function along(plan, axis, share, most) {
  const grown = { ...plan.base };
  if (axis === "path") for (const name of SIZES) grown[name] = plan.base[name] * (plan.target[name] / plan.base[name]) ** share;
  else {
    grown[axis] = plan.base[axis] * most ** share;
    if (axis === "n_exp") grown.n_act = plan.base.n_act * most ** share;
  }
  return grown;
}

/** Factors by name at a share of the way. */
function factorsAt(plan, axis, setting, share, most) {
  const model = along(plan, axis, share, most);
  if (setting === "forward") {
    const at = (sizes) => symbolsOf(plan.base, sizes, plan.values, 1);
    const isThere = ([name]) => plan.forward[name] !== null;
    return Object.fromEntries(Object.entries(plan.forwardPlaces).filter(isThere).map(([name, place]) => [NAMES[name], product(place, at(model)) / product(place, at(plan.base))]));
  }
  const groups = groupsOf(plan.base, model, plan.values, 1);
  const pairs = Object.entries(groups).map(([name, group]) => [name, group[setting], plan.atBase[name][setting]]);
  return Object.fromEntries(pairs.filter(([, ours, theirs]) => ours && theirs).map(([name, ours, theirs]) => [name, ours / theirs]));
}

/** Names that share a line: [{names, factor}], from the largest factor to the smallest. */
function linesOf(plan, axis, setting, most) {
  const lines = [];
  for (const [name, factor] of Object.entries(factorsAt(plan, axis, setting, 1, most))) {
    const same = lines.find((line) => Math.abs(Math.log(line.factor / factor)) < 1e-9);
    if (same) same.names.push(name);
    else lines.push({ names: [name], factor });
  }
  return lines.sort((one, two) => two.factor - one.factor);
}

const powerLabel = (exponent) => (exponent >= 0 ? `${2 ** exponent}` : exponent >= -3 ? `1/${2 ** -exponent}` : `2^${exponent}`);

/** Powers of two from `low` to `high`, at most about seven of them. */
function ticks(low, high) {
  const step = Math.max(1, Math.ceil((high - low) / 6));
  const marks = [];
  for (let exponent = Math.ceil(low / step) * step; exponent <= high + 1e-9; exponent += step) marks.push(exponent);
  return marks;
}

const narrow = matchMedia("(max-width: 46rem)");

function drawChart(plan, figure, axis, setting) {
  const [left, right, top, bottom] = [56, 500, 16, 330];
  const own = axis === "path" ? 0 : plan.target[axis] / plan.base[axis];
  const most = axis === "path" ? 1 : Math.max(own, 4);
  const lines = linesOf(plan, axis, setting, most);
  const exponents = lines.map((line) => Math.log2(line.factor));
  let [low, high] = [Math.min(0, ...exponents), Math.max(0, ...exponents)];
  if (high - low < 1) [low, high] = [low - 0.5, high + 0.5];
  const xEnd = axis === "path" ? 1 : Math.log2(most);
  const x = (at) => left + ((right - left) * at) / xEnd, y = (exponent) => bottom - ((bottom - top) * (exponent - low)) / (high - low);
  const { chart, words, legend } = figure;
  chart.replaceChildren();
  for (const mark of ticks(low, high))
    chart.append(
      svg("line", { class: "gridline", x1: left, x2: right, y1: y(mark), y2: y(mark) }),
      svg("text", { class: "quiet", x: left - 8, y: y(mark) + 4, "text-anchor": "end" }, powerLabel(mark)),
    );
  const xMarks = axis === "path" ? [[0, "base"], [1, "target"]] : ticks(0, xEnd).map((mark) => [mark, `${powerLabel(mark)}×`]);
  for (const [at, text] of xMarks)
    chart.append(
      svg("line", { class: "gridline", x1: x(at), x2: x(at), y1: top, y2: bottom }),
      svg("text", { class: "quiet", x: x(at), y: bottom + 22, "text-anchor": at === xEnd ? "end" : "middle" }, text),
    );
  if (own >= 1)
    chart.append(
      svg("line", { class: "here", x1: x(Math.log2(own)), x2: x(Math.log2(own)), y1: top, y2: bottom }),
      svg("text", { class: "quiet", x: x(Math.log2(own)), y: bottom + 40, "text-anchor": own === most ? "end" : "middle" }, "target"),
    );
  let lowest = bottom + 50;
  for (const [place, line] of lines.entries()) {
    line.colour = `var(--c${place % 7})`;
    line.end = y(Math.log2(line.factor));
    chart.append(svg("path", { class: "line", stroke: line.colour, d: `M${x(0)} ${y(0)}L${x(xEnd)} ${line.end}` }));
    chart.append(svg("circle", { cx: x(xEnd), cy: line.end, r: 4, fill: line.colour }));
  }
  if (!narrow.matches) lowest = Math.max(lowest, labelLines(chart, lines, x(xEnd)));
  chart.setAttribute("viewBox", `0 0 ${narrow.matches ? right + 12 : 760} ${lowest}`);
  legend.replaceChildren(...lines.map((line) => {
    const item = document.createElement("li"), factor = document.createElement("b");
    factor.textContent = `×${shown(line.factor)}`;
    factor.style.color = line.colour;
    item.append(factor, ` ${line.names.join(", ")}`);
    return item;
  }));
  const way = axis === "path" ? "from base to target" : `as ${chartNames.axis[axis]} grows to ${shown(most)} times the base's, all else as in the base`;
  words.textContent = `Factors on ${chartNames.setting[setting]}, relative to the base, ${way}. Both axes are logarithmic.`;
}

/** Write factor and names at the end of every line, below each other; return the lowest place that is used. */
function labelLines(chart, lines, end) {
  let above = -Infinity;
  for (const line of lines) {
    const rows = wrapped(line.names, 30);
    let at = Math.max(line.end + 4 - ((rows.length - 1) * 15) / 2, above + 19);
    chart.append(svg("path", { fill: "none", stroke: line.colour, "stroke-opacity": 0.5, d: `M${end + 6} ${line.end}L${end + 16} ${at - 4}` }));
    for (const [number, row] of rows.entries()) {
      const label = svg("text", { x: end + 20, y: at });
      if (number === 0) label.append(svg("tspan", { "font-weight": 600, style: `fill: ${line.colour}` }, `×${shown(line.factor)} `));
      label.append(row);
      chart.append(label);
      above = at;
      at += 15;
    }
  }
  return above + 16;
}

const chartNames = {
  axis: { n_embd: "width", n_layer: "depth", n_exp: "the number of experts", alpha_ffn: "expert size" },
  setting: { lr: "the learning rate", init_std: "the init std", weight_decay: "weight decay", adam_eps: "Adam's eps", forward: "the forward pass" },
};

/** Break a list of names into rows of at most `most` characters. */
function wrapped(names, most) {
  const rows = [""];
  names.forEach((name, place) => {
    const piece = place < names.length - 1 ? `${name}, ` : name;
    if (rows.at(-1).length + piece.length > most && rows.at(-1)) rows.push("");
    rows[rows.length - 1] += piece;
  });
  return rows;
}
