// The history as the page has it: columns that grow at the end, and lose what is older than an hour.

const HOUR = 3600;

export class Series {
  constructor() {
    this.columns = { time: [] };
  }

  clear() {
    this.columns = { time: [] };
  }

  /** The time of the newest row; 0: there is none. */
  get last() {
    return this.columns.time.at(-1) ?? 0;
  }

  /** Further rows. @param {Object<string, (number|null)[]>} more columns of equal length */
  add(more) {
    const known = this.columns.time.length;
    for (const [name, values] of Object.entries(more)) {
      this.columns[name] ??= Array(known).fill(null);
      this.columns[name].push(...values);
    }
    const old = this.columns.time.findIndex((time) => time > this.last - HOUR);
    if (old > 0) for (const values of Object.values(this.columns)) values.splice(0, old);
  }

  /** The columns of the last `seconds`. */
  recent(seconds, names) {
    const { time } = this.columns;
    const begin = this.last - seconds;
    const first = Math.max(0, time.findIndex((each) => each >= begin));
    return { time: time.slice(first), lines: names.map((name) => (this.columns[name] ?? Array(time.length).fill(null)).slice(first)) };
  }

  now(name) {
    return this.columns[name]?.at(-1) ?? null;
  }
}
