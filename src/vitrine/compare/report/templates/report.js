"use strict";
const plots = JSON.parse(document.getElementById("plots").textContent);
const hiddenRows = new Set();
const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

// Plots use the font and colours of the page, in light and dark.
function themed(layout, width) {
  const narrow = window.innerWidth < 560;
  const axis = {
    gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line"), zeroline: false,
    tickcolor: colour("--line"), fixedrange: true, automargin: true,
  };
  const text = { family: getComputedStyle(document.body).fontFamily, size: narrow ? 11 : 13, color: colour("--ink") };
  const made = {
    width, margin: { l: 8, r: 16, t: 24, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: text,
    showlegend: false, dragmode: false, hovermode: "closest",
    hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: text }, ...structuredClone(layout),
  };
  for (const name of ["xaxis", "yaxis"]) {
    made[name] = { ...axis, ...made[name] };
    if (made[name].title) made[name].title = { font: { size: text.size, color: colour("--quiet") }, standoff: 12, ...made[name].title };
  }
  for (const note of made.annotations ?? []) note.bgcolor = colour("--paper");
  if (made.annotations) {  // parallel coordinates: a line for each axis
    made.shapes = made.xaxis.tickvals.map((x) => ({ type: "line", x0: x, x1: x, y0: 0, y1: 1, layer: "below", line: { color: colour("--quiet"), width: 1 } }));
    const titles = made.xaxis.ticktext.map((title) => 0.6 * text.size * title.length);
    const longest = Math.max(...titles), { l, r } = made.margin;
    const turned = longest > (width - l - r) / (titles.length - 1);
    if (turned) Object.assign(made.margin, { l: Math.max(l, titles[0] / 2), t: Math.min(200, 20 + 0.87 * longest) });
    made.xaxis = { ...made.xaxis, showgrid: false, tickangle: turned ? 60 : 0, automargin: false };
  }
  return made;
}

// A confusion matrix colours mistakes only: correct predictions would dominate the colour scale.
function confusionMatrix({ counts, sizes }) {
  const cells = (make) => counts.map((line, row) => line.map((count, column) => make(count, row, column)));
  return {
    z: cells((count, row, column) => (row === column ? 0 : (100 * count) / (sizes[row] || 1))),
    text: cells((count) => (count ? String(count) : "")),
  };
}

function traced(traces) {
  return traces.map((trace) => {
    const made = { ...trace, visible: !hiddenRows.has(trace.meta.row) };
    if (trace.meta.counts) Object.assign(made, confusionMatrix(trace.meta));
    if (trace.type === "heatmap") {
      made.colorscale = [[0, colour("--raised")], [1, colour("--heat")]];
      made.textfont = { color: colour("--ink") };  // legible on the whole scale
    }
    return made;
  });
}

function draw(node) {
  const plot = plots[node.dataset.plot];
  if (!node.clientWidth) return;  // hidden: its menu draws it
  node.dataset.drawn = "yes";
  Plotly.react(node, traced(plot.traces), themed(plot.layout, node.clientWidth), { displayModeBar: false });
  const number = node.querySelector(".heatmap-label text");  // Plotly shrinks numbers to their cells
  node.classList.toggle("crowded", number !== null && parseFloat(getComputedStyle(number).fontSize) < 9);
}
const drawn = () => document.querySelectorAll(".plot[data-drawn]");

// A plot is drawn when it is about to be visible, so that a page of many plots opens at once.
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting && !entry.target.dataset.drawn) draw(entry.target);
}, { rootMargin: "400px" });
document.querySelectorAll(".plot").forEach((node) => near.observe(node));

let resized;
window.addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => drawn().forEach((node) => { if (node.layout.width !== node.clientWidth) draw(node); }), 100);
});

// On paper, the page is light, and as wide as A4 and Letter are within their margins.
let screenTheme;
window.addEventListener("beforeprint", () => {
  screenTheme = root.dataset.theme;
  root.dataset.theme = "light";
  document.body.style.cssText = "width: 680px; padding: 0";
  document.querySelectorAll(".plot").forEach(draw);
});
window.addEventListener("afterprint", () => {
  if (screenTheme) root.dataset.theme = screenTheme; else delete root.dataset.theme;
  document.body.style.cssText = "";
  drawn().forEach(draw);
});

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

document.addEventListener("themechange", () => drawn().forEach(draw));

// Sort "1.23 M", "< 0.001", "98.46 ± 0.41" by their first number, choices by their number if they are one, then texts.
const units = { k: 1e3, M: 1e6, G: 1e9, T: 1e12 };
function numberIn(text) {
  const match = text.match(/^(<\s*)?([-+]?\d[\d.]*(?:e[-+]?\d+)?)(?:\s([kMGT])\b)?/);
  return match ? Number(match[2]) * (units[match[3]] ?? 1) - (match[1] ? 1e-12 : 0) : NaN;
}
document.querySelectorAll(".sortable thead th").forEach((heading, column) => {
  heading.querySelector("button").addEventListener("click", () => {
    const ascending = heading.getAttribute("aria-sort") !== "ascending";
    const body = heading.closest("table").tBodies[0];
    const value = heading.classList.contains("number") ? numberIn : (text) => (text ? Number(text) : NaN);
    const rows = [...body.rows].map((row) => ({ row, text: row.cells[column].textContent, value: value(row.cells[column].textContent) }));
    rows.sort((a, b) => {
      if (Number.isNaN(a.value) !== Number.isNaN(b.value)) return Number.isNaN(a.value) ? 1 : -1;
      const order = Number.isNaN(a.value) ? a.text.localeCompare(b.text, "en", { numeric: true }) : a.value - b.value;
      return ascending ? order : -order;
    });
    heading.parentNode.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    body.append(...rows.map(({ row }) => row));
    document.getElementById("sorted").textContent =
      `Sorted by ${heading.textContent.trim()}, ${ascending ? "ascending" : "descending"}.`;
  });
});
