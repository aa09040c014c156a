// Numbers and times as text.
export const NONE = "–";
const METRICS = { auroc: "AUROC", c_index: "C-index", auprc: "AUPRC", f1: "F1", brier: "Brier score", ece: "calibration error", accuracy: "accuracy", loss: "loss" };
export const metricName = (key) => METRICS[key] ?? key.replaceAll("_", " ");

export const fixed = (value, digits) => (value === null || value === undefined ? NONE : value.toFixed(digits));
export const share = (value) => (value === null || value === undefined ? NONE : `${(100 * value).toFixed(1)} %`);

export function digits(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(1);
  return size >= 1000 ? value.toFixed(0) : size >= 100 ? value.toFixed(1) : size >= 1 ? value.toFixed(2) : value.toFixed(3);
}

// One format for all numbers of a column, so that they are aligned.
export function column(values) {
  const sizes = values.filter((value) => Number.isFinite(value) && value !== 0).map(Math.abs), most = Math.max(0, ...sizes);
  if (most >= 1e5 || (most > 0 && most < 1e-3)) return (value) => (value === null ? NONE : value.toExponential(2));
  const places = most >= 1000 ? 0 : most >= 100 ? 1 : most >= 10 ? 2 : 3;
  return (value) => fixed(value, places);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  if (seconds < 1) return "< 1 s";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

export const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

// 3, 4, 5, 9 → "3–5, 9"
export function ranges(numbers) {
  const parts = [];
  for (let i = 0; i < numbers.length; i++) {
    const start = numbers[i];
    while (numbers[i + 1] === numbers[i] + 1) i++;
    parts.push(start === numbers[i] ? `${start}` : `${start}–${numbers[i]}`);
  }
  return parts.join(", ");
}
