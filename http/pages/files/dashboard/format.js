// Numbers in words that fit a tile.

const MISSING = "–";

/** At most three digits that matter, and a letter for thousands and more. */
export function short(value) {
  if (value === null || value === undefined) return MISSING;
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= size) return plain(value / (letter === "k" ? 1e3 : size)) + letter;
  }
  return plain(value);
}

function plain(value) {
  const size = Math.abs(value);
  const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2;
  return value.toLocaleString(undefined, { maximumFractionDigits: digits });
}

export function seconds(value) {
  if (value === null || value === undefined) return MISSING;
  if (value < 1) return `${plain(value * 1000)}\u00a0ms`;
  return value < 100 ? `${plain(value)}\u00a0s` : duration(value);
}

export function duration(value) {
  const whole = Math.floor(value);
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => whole >= size);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .map(([size, unit], place) => [place ? Math.floor((whole % parts[first][0]) / size) : Math.floor(whole / size), unit])
    .filter(([count], place) => count || !place)
    .map(([count, unit]) => `${count}\u00a0${unit}`)
    .join(" ");
}

export function percent(value) {
  if (value === null || value === undefined) return MISSING;
  return `${(value * 100).toLocaleString(undefined, { maximumFractionDigits: value > 0 && value < 0.1 ? 1 : 0 })}\u00a0%`;
}

export function bytes(value) {
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= size) return `${plain(value / size)}\u00a0${unit}`;
  }
  return `${value}\u00a0B`;
}

export const whole = (value) => (value === null || value === undefined ? MISSING : Math.round(value).toLocaleString());

export const clock = (time) => new Date(time * 1000).toLocaleTimeString();
