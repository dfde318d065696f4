// Audio on its way to the server. It is kept until its text is final, so that it can be sent again: after a lost
// connection what did not arrive, after a restart of the server what has no final text.

export const RATE = 16000;
const KEPT = 120 * RATE; // samples that the server has received and that have no final text, at most
const LONGEST = 30 * 60 * RATE; // samples that wait to be sent, at most

export class Outbox {
  constructor() {
    this.restart();
  }

  /** Nothing is kept; the next sample is the first. */
  restart() {
    this.pieces = []; // { from, length, pcm, when }: samples, and when they were sent first
    this.end = 0; // samples recorded
    this.next = 0; // the first sample to be sent
  }

  /** Whether there is no room for more. */
  get full() {
    return this.end - this.next >= LONGEST;
  }

  /** 16-bit samples, in the order in which they were recorded. */
  add(pcm) {
    const length = pcm.byteLength / 2;
    this.pieces.push({ from: this.end, length, pcm, when: null });
    this.end += length;
  }

  /** What is to be sent next, or null. */
  take(now) {
    const piece = this.pieces[this.place(this.next)];
    if (!piece) return null;
    const skipped = Math.max(0, this.next - piece.from);
    this.next = piece.from + piece.length;
    piece.when ??= now;
    return skipped ? piece.pcm.slice(2 * skipped) : piece.pcm;
  }

  /** The server has received so many samples, and the text of the first `settled` is final. */
  settle(settled, received) {
    const done = Math.max(settled, received - KEPT);
    this.pieces.splice(0, this.place(Math.min(done, this.next)));
  }

  /** Begin again with this sample or, if it is not kept any more, the first that is. */
  rewind(sample) {
    if (!this.pieces.length) this.end = sample;
    this.next = Math.max(sample, this.pieces[0]?.from ?? this.end);
    return this.next;
  }

  /** What was recorded follows so many samples that another page has sent. */
  shift(samples) {
    for (const piece of this.pieces) piece.from += samples;
    this.end += samples;
    this.next += samples;
  }

  /** When a sample was sent first; null if that is not known. */
  sentAt(sample) {
    return this.pieces[this.place(sample - 1)]?.when ?? null;
  }

  /** Which piece holds a sample; how many there are if it is a later one. */
  place(sample) {
    let [low, high] = [0, this.pieces.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      const { from, length } = this.pieces[middle];
      if (from + length > sample) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}
