"use strict";
const plots = JSON.parse(document.getElementById("plots").textContent);
const hiddenRows = new Set();
const root = document.documentElement;
const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

// Plots use the font and colours of the page, in light and dark.
function themed(layout) {
  const narrow = window.innerWidth < 560;
  const axis = {
    gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line"), zeroline: false,
    tickcolor: colour("--line"), fixedrange: true, automargin: true,
  };
  const text = { family: getComputedStyle(document.body).fontFamily, size: narrow ? 11 : 13, color: colour("--ink") };
  const made = {
    margin: { l: 8, r: 16, t: 24, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: text,
    showlegend: false, dragmode: false, hovermode: "closest",
    hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: text }, ...structuredClone(layout),
  };
  for (const name of ["xaxis", "yaxis"]) {
    made[name] = { ...axis, ...made[name] };
    if (made[name].title) made[name].title = { font: { size: text.size, color: colour("--quiet") }, standoff: 12, ...made[name].title };
  }
  return made;
}

// A confusion matrix colours mistakes only: correct predictions would dominate the colour scale.
function confusionMatrix(counts) {
  const cells = (make) => counts.map((line, row) => line.map((count, column) => make(count, row, column)));
  const totals = counts.map((line) => line.reduce((sum, count) => sum + count, 0) || 1);
  return {
    z: cells((count, row, column) => (row === column ? null : (100 * count) / totals[row])),
    text: cells((count) => (count ? String(count) : "")),
  };
}

// Parallel coordinates are one trace: the lines of hidden rows are taken out.
function visibleLines(trace) {
  const kept = (values) => values.filter((_, index) => !hiddenRows.has(trace.meta.rows[index]));
  const dimensions = trace.dimensions.map((axis) => {
    const range = axis.range ?? [Math.min(...axis.values), Math.max(...axis.values)];
    return { ...axis, range, values: kept(axis.values) };
  });
  return { dimensions, line: { ...trace.line, color: kept(trace.line.color) }, labelangle: window.innerWidth < 560 ? -30 : 0 };
}

function traced(traces) {
  return traces.map((trace) => {
    const made = { ...trace, visible: !hiddenRows.has(trace.meta.row) };
    if (trace.meta.rows) Object.assign(made, visibleLines(trace));
    if (trace.meta.counts) Object.assign(made, confusionMatrix(trace.meta.counts));
    if (trace.type === "heatmap") made.colorscale = [[0, colour("--raised")], [1, colour("--heat")]];
    return made;
  });
}

function draw(node) {
  const plot = plots[node.dataset.plot];
  node.dataset.drawn = "yes";
  Plotly.react(node, traced(plot.traces), themed(plot.layout), { displayModeBar: false, responsive: true });
}
const drawn = () => document.querySelectorAll(".plot[data-drawn]");

// A plot is drawn when it is about to be visible, so that a page of many plots opens at once.
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting && !entry.target.dataset.drawn) draw(entry.target);
}, { rootMargin: "400px" });
document.querySelectorAll(".plot").forEach((node) => near.observe(node));
window.addEventListener("beforeprint", () => document.querySelectorAll(".plot").forEach(draw));

document.querySelectorAll(".legend input").forEach((box) => box.addEventListener("change", () => {
  if (box.checked) hiddenRows.delete(box.value); else hiddenRows.add(box.value);
  drawn().forEach(draw);
}));

document.querySelectorAll("select[data-part]").forEach((menu) => menu.addEventListener("change", () => {
  document.querySelectorAll(`[data-choice^="${menu.dataset.part}-"]`).forEach((part) => {
    part.hidden = part.dataset.choice !== `${menu.dataset.part}-${menu.value}`;
    if (!part.hidden) draw(part.querySelector(".plot"));
  });
}));

const darkSystem = window.matchMedia("(prefers-color-scheme: dark)");
const theme = document.getElementById("theme");
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : darkSystem.matches;
function showTheme() {
  theme.setAttribute("aria-pressed", String(isDark()));
  drawn().forEach(draw);
}
theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; showTheme(); });
darkSystem.addEventListener("change", showTheme);
showTheme();

// Sort "1.23 M", "< 0.001", "98.46 ± 0.41" by their first number, other texts alphabetically, missing values last.
const units = { k: 1e3, M: 1e6, G: 1e9, T: 1e12 };
function numberIn(text) {
  const match = text.match(/^(<\s*)?([-+]?\d[\d.]*(?:e[-+]?\d+)?)(?:\s([kMGT])\b)?/);
  return match ? Number(match[2]) * (units[match[3]] ?? 1) - (match[1] ? 1e-12 : 0) : NaN;
}
document.querySelectorAll(".sortable thead th").forEach((heading, column) => {
  heading.querySelector("button").addEventListener("click", () => {
    const ascending = heading.getAttribute("aria-sort") !== "ascending";
    const body = heading.closest("table").tBodies[0];
    const rows = [...body.rows].map((row) => ({ row, text: row.cells[column].textContent, value: numberIn(row.cells[column].textContent) }));
    const numbers = rows.some((row) => !Number.isNaN(row.value)) && heading.classList.contains("number");
    rows.sort((a, b) => {
      if (numbers && Number.isNaN(a.value) !== Number.isNaN(b.value)) return Number.isNaN(a.value) ? 1 : -1;
      const order = numbers ? a.value - b.value : a.text.localeCompare(b.text, "en", { numeric: true });
      return ascending ? order : -order;
    });
    heading.parentNode.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    body.append(...rows.map(({ row }) => row));
    document.getElementById("sorted").textContent =
      `Sorted by ${heading.textContent.trim()}, ${ascending ? "ascending" : "descending"}.`;
  });
});
