// Numbers as people read them, always with their unit.

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A count, such as 12,345. */
export const count = (value: number): string => plain.format(value);

/** A number with about three digits that count. */
export function digits(value: number): string {
  if (!Number.isFinite(value)) return "-";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 100) return plain.format(value);
  if (size >= 10) return value.toFixed(1);
  if (size >= 1) return value.toFixed(2);
  return Number(value.toPrecision(2)).toString();
}

/** A time of so many seconds. */
export function seconds(value: number): string {
  if (!Number.isFinite(value)) return "-";
  if (value === 0) return "0 ms";
  if (value >= 60) return `${digits(value / 60)} min`;
  if (value >= 1) return `${digits(value)} s`;
  if (value >= 1e-3) return `${digits(value * 1e3)} ms`;
  return `${digits(value * 1e6)} µs`;
}

export const micros = (us: number): string => seconds(us / 1e6);

export function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  let size = value;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit++;
  }
  return `${unit === 0 ? size : digits(size)} ${units[unit]}`;
}

export const percent = (share: number): string => `${digits(share * 100)} %`;

export const rate = (value: number): string => (value === 0 ? "0" : digits(value));

/** The time of day of a moment in unix ms. */
export function clock(ms: number): string {
  const date = new Date(ms);
  const two = (value: number): string => String(value).padStart(2, "0");
  const thousandth = String(date.getMilliseconds()).padStart(3, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${thousandth}`;
}

/** How long ago a moment was. */
export function ago(ms: number, now: number): string {
  if (!ms) return "never";
  const past = Math.max(0, (now - ms) / 1000);
  if (past < 2) return "now";
  if (past < 120) return `${Math.round(past)} s ago`;
  if (past < 7200) return `${Math.round(past / 60)} min ago`;
  return `${Math.round(past / 3600)} h ago`;
}

export const plural = (number: number, word: string): string => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
