// Draws the ratios of a case round by round, one plot for each implementation, and below them what
// the GPU reported between the rounds. All plots have one cursor.
"use strict";

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Rounds that do not count, as hatched bands.
function hatch(plot, masked) {
  const { ctx, bbox } = plot;
  const width = Math.max(2 * devicePixelRatio, bbox.width / plot.data[0].length);
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.strokeStyle = style("--strong-line");
  ctx.lineWidth = devicePixelRatio;
  for (const round of masked.keys()) {
    const x = plot.valToPos(round, "x", true) - width / 2;
    ctx.save();
    ctx.beginPath();
    ctx.rect(x, bbox.top, width, bbox.height);
    ctx.clip();
    ctx.beginPath();
    for (let y = bbox.top - 20; y < bbox.top + bbox.height + 20; y += 6 * devicePixelRatio) {
      ctx.moveTo(x, y + width);
      ctx.lineTo(x + width, y);
    }
    ctx.stroke();
    ctx.restore();
  }
  ctx.restore();
}

// A scale that a few outliers do not stretch; logarithmic if the values differ much.
function scale(values) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  const at = (share) => sorted[Math.floor(share * (sorted.length - 1))];
  if (at(0.98) > 3 * at(0.02)) return { distr: 3, range: () => [at(0.02) / 1.5, at(0.98) * 1.5] };
  const room = Math.max((at(0.98) - at(0.02)) * 0.5, at(0.5) * 0.004);
  const ends = [at(0.02) - room, at(0.98) + room];
  return { range: () => ends };
}

// Where a logarithmic scale has marks: at 1, 2 and 5 times powers of ten, at most 6 of them. uPlot's own
// marks never end if the scale begins just below a power of ten under 1.
function marks(plot, side, low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const times of [1, 2, 5]) {
      const mark = Number(`${times}e${power}`);
      if (mark >= low && mark <= high) found.push(mark);
    }
  }
  const every = Math.ceil(found.length / 6);
  return found.filter((mark, number) => number % every === 0);
}

function draw(root, details) {
  const first = details.samples_us[root.dataset.first] || [];
  const masked = new Map(details.masked.map((one) => [one.round, one.reason]));
  const rounds = first.map((_, round) => round);
  const readings = details.readings;
  const axis = { stroke: style("--muted"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", size: 26 };
  const cursor = { sync: { key: "rounds" }, y: false, points: { show: false } };
  const round = { label: "round", value: (plot, at) => (at === null ? "–" : `${at}${masked.has(at) ? `, masked: ${masked.get(at)}` : ""}`) };
  const hooks = { drawClear: [(plot) => hatch(plot, masked)] };
  details.measurements.slice(1).forEach((row, number) => {
    const samples = details.samples_us[row.implementation] || [];
    if (!samples.length || row.ratio === null) return;
    const ratios = rounds.map((round) => (first[round] && samples[round] ? samples[round] / first[round] : null));
    const of = (set) => ratios.map((ratio, round) => (details.input_sets[round] === set ? ratio : null));
    const colour = style(`--c${row.implementation === "copy" ? 7 : (number + 1) % 7}`);
    // A line joins the rounds of one set of inputs, between which are those of the other set.
    const points = (shade) => ({ spanGaps: true, width: 0.75, points: { show: true, size: 4, width: 0, fill: shade, stroke: shade }, stroke: shade });
    const y = scale(ratios);
    const value = (plot, ratio) => (ratio === null || ratio === undefined ? "–" : ratio.toFixed(4));
    new uPlot(
      {
        width: root.clientWidth,
        height: 150,
        title: row.implementation,
        cursor,
        legend: { live: true },
        scales: { x: { time: false }, y },
        axes: [
          { ...axis, size: 22 },
          { ...axis, size: 52, ...(y.distr ? { splits: marks, filter: (plot, all) => all, values: (plot, all) => all.map((mark) => (mark < 0.001 ? mark.toExponential() : String(mark))) } : {}) },
        ],
        series: [
          round,
          { label: "first inputs", ...points(colour), value },
          { label: "second inputs", ...points(style(row.implementation === "copy" ? "--text" : "--muted")), value },
        ],
        hooks,
      },
      [rounds, of(0), of(1)],
      root
    );
  });
  if (!readings || !root.children.length) return;
  [
    ["clock", "MHz", readings.sm_clock_mhz, "--c3"],
    ["power", "W", readings.power_w, "--c5"],
    ["temperature", "°C", readings.temperature_c, "--c6"],
  ].forEach(([title, unit, values, colour]) => {
    if (values.every((value) => value === null)) return;
    // A reading stands for the rounds since the one before it.
    let next = 0;
    const filled = rounds.map((at) => {
      while (next < values.length - 1 && readings.rounds[next] < at) next += 1;
      return values[next];
    });
    const value = (plot, shown) => (shown === null || shown === undefined ? "–" : `${Math.round(shown)} ${unit}`);
    new uPlot(
      {
        width: root.clientWidth,
        height: 100,
        title: `${title}, ${unit}`,
        cursor,
        legend: { live: true },
        scales: { x: { time: false }, y: { range: (plot, low, high) => [low - Math.max(1, (high - low) * 0.1), high + Math.max(1, (high - low) * 0.1)] } },
        axes: [{ ...axis, size: 22 }, { ...axis, size: 52 }],
        series: [round, { label: title, stroke: style(colour), width: 1.5, points: { show: false }, value }],
        hooks,
      },
      [rounds, filled],
      root
    );
  });
}

const root = document.querySelector("#rounds");
if (root) {
  let details = null;
  const redraw = () => {
    root.replaceChildren();
    draw(root, details);
    root.dataset.drawn = "yes";
    document.getElementById("zoom").hidden = !root.querySelector(".uplot");
  };
  fetch(root.dataset.url)
    .then((response) => (response.ok ? response.json() : Promise.reject(response.status)))
    .then((found) => {
      details = found;
      redraw();
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
      let width = root.clientWidth;
      new ResizeObserver(() => {
        if (Math.abs(root.clientWidth - width) > 2) {
          width = root.clientWidth;
          redraw();
        }
      }).observe(root);
    })
    .catch((error) => {
      root.textContent = `The rounds cannot be drawn: ${error}`;
    });
}
