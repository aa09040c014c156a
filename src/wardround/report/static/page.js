"use strict";
// Draw the figures in the colours of the page, and again when the reader changes between light and dark.
const figures = JSON.parse(document.getElementById("figures").textContent);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function draw() {
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), automargin: true };
  for (const figure of figures) {
    const layout = {
      ...figure.layout,
      paper_bgcolor: colour("--ground"), plot_bgcolor: colour("--ground"),
      font: { color: colour("--ink"), family: "system-ui, sans-serif", size: 13 },
      margin: { l: 60, r: 20, t: 40, b: 50 }, hovermode: "closest",
      legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
      xaxis: { ...axis, ...figure.layout.xaxis }, yaxis: { ...axis, ...figure.layout.yaxis },
    };
    Plotly.react(figure.key, figure.data, layout, { responsive: true, displaylogo: false, displayModeBar: "hover" });
  }
}
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

// Tables sort by the column whose heading is pressed.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement, body = heading.closest("table").tBodies[0];
    const index = heading.cellIndex, ascending = heading.getAttribute("aria-sort") !== "ascending";
    const value = (row) => { const text = row.cells[index].dataset.value ?? row.cells[index].textContent; return text === "" ? NaN : isNaN(text) ? text : Number(text); };
    const order = (a, b) => {
      const x = value(a), y = value(b);
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return (x > y ? 1 : x < y ? -1 : 0) * (ascending ? 1 : -1);
    };
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    body.append(...[...body.rows].sort(order));
  });
}
