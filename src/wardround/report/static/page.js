"use strict";
// Draw the figures in the colours of the page, and again when the reader changes between light and dark.
const figures = JSON.parse(document.getElementById("figures").textContent);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const drawn = new Set();
function draw(figure) {
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), automargin: true };
  const narrow = document.documentElement.clientWidth < 600;
  const scaled = figure.data.some((trace) => trace.colorbar);
  const layout = {
    ...figure.layout,
    paper_bgcolor: colour("--ground"), plot_bgcolor: colour("--ground"),
    font: { color: colour("--ink"), family: "system-ui, sans-serif", size: 13 },
    // The icons stand in a column of their own at the right, or above a plot with a colour scale there: they cover
    // neither legend nor scale nor curves.
    margin: { l: narrow ? 45 : 60, r: narrow ? 10 : 45, t: 40, b: 50 }, hovermode: "closest",
    modebar: { orientation: scaled ? "h" : "v", bgcolor: "rgba(0,0,0,0)", color: colour("--faint"), activecolor: colour("--accent") },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
    xaxis: { ...axis, ...figure.layout.xaxis }, yaxis: { ...axis, ...figure.layout.yaxis },
  };
  // On a narrow screen a colour scale lies below its plot: beside it, it would take half of the width.
  const below = { orientation: "h", x: 0.5, xanchor: "center", y: -0.3, yanchor: "top", thickness: 10, tickfont: { size: 10 } };
  const data = !(narrow && scaled) ? figure.data : figure.data.map((trace) => ({
    ...trace, colorbar: { ...trace.colorbar, ...below, ticktext: trace.colorbar.ticktext?.map((text) => text.replace(", ", ",<br>")) },
  }));
  drawn.add(figure);
  Plotly.react(figure.key, data, layout, {
    responsive: true, displaylogo: false, displayModeBar: narrow ? false : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  });
}
// What is folded away has no size to draw in, and may never be opened: it is drawn when it is.
const folded = (figure) => document.getElementById(figure.key).closest("details:not([open])");
const drawVisible = () => figures.filter((figure) => !drawn.has(figure) && !folded(figure)).forEach(draw);
drawVisible();
for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", drawVisible);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(draw));
addEventListener("beforeprint", () => { document.querySelectorAll("details").forEach((details) => { details.open = true; }); drawVisible(); });

// Tables sort by the column whose heading is pressed.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement, bodies = heading.closest("table").tBodies;
    const index = heading.cellIndex, ascending = heading.getAttribute("aria-sort") !== "ascending";
    const value = (row) => { const text = row.cells[index].dataset.value ?? row.cells[index].textContent; return text === "" ? NaN : isNaN(text) ? text : Number(text); };
    const order = (a, b) => {
      const x = value(a), y = value(b);
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return (x > y ? 1 : x < y ? -1 : 0) * (ascending ? 1 : -1);
    };
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    // Rows stay in their group; its heading stays on top.
    for (const body of bodies) body.append(...[...body.rows].filter((row) => !row.classList.contains("group")).sort(order));
  });
}
