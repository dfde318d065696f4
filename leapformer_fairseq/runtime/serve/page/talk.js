// What is written so far: segments of final words with their times, and the draft behind the last one.

const LONGEST_S = 30; // of a paragraph: a segment may last for hours

export class Talk {
  /** `between` stands between two pieces of text. */
  constructor(between) {
    this.between = between;
    this.restart([]);
  }

  /** Begin with the final events that the server has of it. */
  restart(history) {
    this.segments = []; // { text, words: [{ text, audio_s, delay_ms }], start_s, end_s }
    this.draft = "";
    this.ended = false;
    this.open = false; // whether the last segment may get more words
    this.drawn = -1; // segments that are drawn and cannot change
    for (const event of history) this.add(event, null);
  }

  /** Begin with segments of final words, after which the next word begins another. */
  resume(segments, ended) {
    this.restart([]);
    this.segments = segments;
    this.ended = ended;
  }

  add(event, delay) {
    if (!event.final) {
      this.draft = event.text;
      return;
    }
    this.draft = "";
    if (event.text) {
      const last = this.segments.at(-1);
      if (!this.open || last.end_s - last.start_s >= LONGEST_S) {
        this.segments.push({ text: "", words: [], start_s: last ? last.end_s : 0, end_s: event.audio_s });
      }
      const segment = this.segments.at(-1);
      segment.words.push({ text: event.text, audio_s: event.audio_s, delay_ms: delay });
      segment.text = segment.words.map((word) => word.text).join(this.between);
      segment.end_s = event.audio_s;
      this.open = true;
    }
    if (event.ends) this.open = false;
  }

  /** Milliseconds of the last final words that have one. */
  delay() {
    return this.segments.at(-1)?.words.at(-1)?.delay_ms ?? null;
  }

  /** A paragraph for each segment; finished ones are left as they are. */
  draw(box) {
    if (this.drawn < 0) box.replaceChildren();
    const kept = Math.max(0, Math.min(this.drawn, box.children.length));
    while (box.children.length > kept) box.lastChild.remove();
    this.segments.slice(kept).forEach((segment) => box.append(paragraph(segment, this.between)));
    if (this.draft) {
      const last = this.open ? box.lastChild : box.appendChild(document.createElement("p"));
      const draft = last.appendChild(document.createElement("span"));
      draft.className = "draft";
      draft.setAttribute("aria-hidden", "true"); // screen readers get final words only
      draft.textContent = this.draft;
    }
    this.drawn = this.segments.length - (this.open ? 1 : 0);
  }
}

function paragraph(segment, between) {
  const made = document.createElement("p");
  for (const word of segment.words) {
    made.append(word.text + between);
    if (word.delay_ms === null) continue;
    const delay = made.appendChild(document.createElement("small"));
    delay.textContent = `${Math.round(word.delay_ms)} ms`;
  }
  return made;
}

/** Subtitles. */
export function srt(segments) {
  return segments
    .map(({ text, start_s: start, end_s: end }, i) => `${i + 1}\n${clock(start)} --> ${clock(end)}\n${text}\n`)
    .join("\n");
}

function clock(seconds) {
  const ms = Math.round(seconds * 1000);
  const parts = [Math.floor(ms / 3600000), Math.floor(ms / 60000) % 60, Math.floor(ms / 1000) % 60];
  return `${parts.map((part) => String(part).padStart(2, "0")).join(":")},${String(ms % 1000).padStart(3, "0")}`;
}
