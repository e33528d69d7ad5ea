// What a screen reader is told while an answer arrives: whole sentences, not oftener than every few seconds.

const EVERY = 4000; // milliseconds
const MOST = 400; // characters at a time

export class Announcer {
  constructor(region) {
    this.region = region;
    this.told = 0;
    this.last = 0;
  }

  say(text) {
    this.region.textContent = text;
  }

  begin() {
    this.told = 0;
    this.last = performance.now();
    this.say("The assistant answers.");
  }

  /** The text so far. */
  grow(text) {
    const now = performance.now();
    if (now - this.last < EVERY) return;
    const fresh = text.slice(this.told);
    const end = Math.max(...[". ", "! ", "? ", "\n", "。"].map((mark) => fresh.lastIndexOf(mark)));
    if (end < 0) return;
    this.last = now;
    this.say(fresh.slice(0, end + 1).slice(-MOST));
    this.told += end + 1;
  }

  end(text, how) {
    const rest = text.slice(this.told);
    this.say(`${rest.length > MOST ? `…${rest.slice(-MOST)}` : rest} ${how}`);
  }
}
