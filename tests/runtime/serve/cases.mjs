// Asks the page's modules what cases.py has asked Python: node cases.mjs FOLDER_OF_THE_MODULES. Prints what differs.
import { isDeepStrictEqual } from "node:util";
import { readFileSync } from "node:fs";

const load = (name) => import(`${process.argv[2]}/local/${name}.js`);
const [{ Segmenter }, { SentenceEnds }, { POLICIES }, { Detokenizer, EMITTERS }, { Session }, { UNIT_SAMPLES }] =
  await Promise.all(["segments", "sentences", "policy", "text", "session", "audio"].map(load));
const RATE = 16000;

/** Noise of parts of [seconds, amplitude]. */
function sound(parts) {
  let number = 1;
  const noise = (amplitude) => {
    number = (Math.imul(1103515245, number) + 12345) & 0x7fffffff;
    return (number / 2 ** 30 - 1) * amplitude;
  };
  const part = ([seconds, amplitude]) => Array.from({ length: Math.round(seconds * RATE) }, () => noise(amplitude));
  return Float32Array.from(parts.flatMap(part));
}

async function all(generator) {
  const found = [];
  for await (const one of generator) found.push(one);
  return found;
}

/** In place of frames, as many of nothing. */
class Fbank {
  constructor() {
    Object.assign(this, { nSamples: 0, nFrames: 0 });
  }

  async push(samples) {
    this.nSamples += samples.length;
    const before = this.nFrames;
    this.nFrames = Math.max(0, Math.floor((this.nSamples - 400) / 160) + 1);
    return Array(this.nFrames - before).fill(new Float32Array(80));
  }
}

/** The network that is told the ends of sentences. */
const told = (ends) => ({
  begin() {
    let nUnits = 0;
    return { model: { delay: 5 }, push: async () => ends[String(++nUnits)] ?? null };
  },
});

async function segments({ segments: options, audio, ends, tokens, forgotten }) {
  const segmenter = new Segmenter({ ...options, sentences: told(ends) });
  const [samples, found] = [sound(audio), []];
  for (let at = 0; at < samples.length; at += UNIT_SAMPLES) {
    found.push(...(await all(segmenter.push(samples.subarray(at, at + UNIT_SAMPLES), tokens, forgotten))));
  }
  found.push(...(await all(segmenter.finish(tokens, forgotten))));
  const places = [];
  for (const [place, { length }] of found) {
    if (places.at(-1)?.[0] === place) places.at(-1)[1] += length;
    else places.push([place, length]);
  }
  return places;
}

async function sentences({ ahead, threshold, steps, piece }) {
  let step = 0;
  const model = { ahead, threshold, fbank: () => new Fbank(), step: async () => [...steps[step++], null] };
  const [ends, found] = [new SentenceEnds(model), []];
  const samples = new Float32Array((4 * steps.length - 1) * 160 + 400);
  for (let at = 0; at < samples.length; at += piece) found.push(await ends.push(samples.subarray(at, at + piece)));
  return found;
}

async function policies({ policy: options, script }) {
  const policy = POLICIES[options.name](options);
  const [tokens, steps] = [[], []];
  const draft = {
    nSteps: 0,
    get nTokens() { return tokens.length; },
    continuation: async () => script[draft.nSteps - 1].slice(tokens.length),
    writeNext: async () => {
      const rest = await draft.continuation();
      await draft.commit(rest.slice(0, 1));
      return Boolean(rest.length);
    },
    commit: async (given) => {
      tokens.push(...given);
      steps.push(...given.map(() => draft.nSteps));
    },
  };
  for (; draft.nSteps < script.length;) {
    draft.nSteps++;
    await policy.write(draft);
  }
  return { lag: policy.lag ?? null, tokens, steps };
}

async function texts({ unit, pieces, forgets }) {
  const detokenizer = new Detokenizer({ symbols: pieces, unk: pieces.indexOf("<unk>") });
  const [emitter, found] = [new EMITTERS[unit](detokenizer), [detokenizer.decode([...pieces.keys()])]];
  for (const token of pieces.keys()) {
    emitter.push([token]);
    found.push(emitter.flush(false));
    if (!forgets.includes(token)) continue;
    const starts = emitter.starts();
    const count = Math.max(...starts.filter((start) => start <= emitter.nSent));
    emitter.forget(count);
    found.push([...starts, count]);
  }
  return [...found, emitter.flush(true)];
}

// ------------------------------------------------------------------------------------- tests/scripted.py in JavaScript
const [EOS, STATE_FRAMES, WORDS] = [2, 4, 40];

/** The checksum of what Python would print of a tuple of numbers. */
function drawn(...numbers) {
  let sum = ~0;
  for (const letter of `(${numbers.join(", ")})`) {
    sum ^= letter.charCodeAt(0);
    for (let bit = 0; bit < 8; bit++) sum = (sum >>> 1) ^ (sum & 1 ? 0xedb88320 : 0);
  }
  return ~sum >>> 0;
}

class ScriptedEngine {
  constructor({ variety, ends_of: ends }) {
    Object.assign(this, { variety, ends, nFrames: 0, finished: false, tokens: [] });
  }

  get ready() {
    return (this.finished ? Math.ceil : Math.floor)(this.nFrames / STATE_FRAMES);
  }

  feed(frames) {
    this.nFrames += frames.length;
  }

  finish() {
    this.finished = true;
  }

  async best(visible, forbidden) {
    const { length } = this.tokens;
    const chance = drawn(length, Math.min(Math.floor(visible / 12), Math.floor(length / 3) + 2));
    if (!(chance % this.ends) && !forbidden.includes(EOS)) return EOS;
    let choice = 10 + (chance % this.variety);
    while (forbidden.includes(choice)) choice = 10 + ((choice - 9) % WORDS);
    return choice;
  }

  async consume() {}

  commit(token) {
    this.tokens = [...this.tokens, token];
  }

  snapshot() {
    return this.tokens;
  }

  restore(snapshot) {
    this.tokens = snapshot;
  }
}

class Words {
  piece(token) {
    return `${token % 3 === 0 ? "" : "\u2581"}w${token}`;
  }

  decode(tokens) {
    return tokens.map(this.piece).join("").replaceAll("\u2581", " ").trim();
  }
}

const scripted = (of, policy) => ({
  policy, stepFrames: 28, eos: EOS, forbidden: [0, 1, 3], detokenizer: new Words(), cmvn: null,
  stateFrames: STATE_FRAMES, chunkStates: of.chunk_states, positions: 1000,
  begin: () => new ScriptedEngine(of),
  fbank: () => new Fbank(),
  waiting: (k) => scripted(of, { ...policy, k }),
});

async function sessions(given) {
  const { policy, decoding, segments: options, drafts, audio, ends, lagging, sizes } = given;
  const session = new Session(scripted(given, policy), decoding, { ...options, sentences: told(ends) }, drafts);
  const [samples, events] = [sound(audio), []];
  for (let at = 0, number = 0; at < samples.length; number++) {
    const size = sizes[number % sizes.length];
    if (number === 3 && lagging) session.useLagging(lagging);
    events.push(...(await all(session.push(samples.subarray(at, at + size)))));
    at += size;
  }
  events.push(...(await all(session.finish())));
  return events.map(({ text, final, ends: last, segment, audio_s: seconds }) => [text, final, last, segment, seconds]);
}

// ------------------------------------------------------------------------------------------------------------- answers
let count = 0;
for (const [kind, answer] of Object.entries({ segments, sentences, policies, texts, sessions })) {
  const { common, cases } = JSON.parse(readFileSync(new URL(`cases/${kind}.json`, import.meta.url)));
  for (const { answer: expected, ...given } of cases) {
    const options = ["segments", "decoding", "policy"].filter((name) => name in common);
    const full = Object.fromEntries(options.map((name) => [name, { ...common[name], ...given[name] }]));
    const found = await answer({ ...common, ...given, ...full });
    count++;
    if (isDeepStrictEqual(found, expected)) continue;
    const at = Array.isArray(found) ? found.findIndex((one, i) => !isDeepStrictEqual(one, expected[i])) : null;
    const [ours, theirs] = at === null || at < 0 ? [found, expected] : [found[at], expected[at]];
    const words = [given, ours, theirs].map((one) => JSON.stringify(one));
    console.log(`${kind} ${words[0]} at ${at}: ${words[1]}, in Python ${words[2]}`);
    process.exitCode = 1;
  }
}
console.log(`${count} cases`);
