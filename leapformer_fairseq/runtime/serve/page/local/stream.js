// One utterance: audio in, text out, as in leapformer_fairseq/runtime/simul/stream.py.
import { FeatureStream } from "./features.js";
import { POLICIES } from "./policy.js";
import { EMITTERS } from "./text.js";

/** The next tokens with which the last `size` tokens would be an n-gram already in `tokens`; none for size 0. */
function repeating(tokens, size) {
  const before = size - 1;
  if (before < 0) return [];
  const last = tokens.slice(tokens.length - before).join();
  const starts = [...tokens.slice(before).keys()];
  return starts.filter((i) => tokens.slice(i, i + before).join() === last).map((i) => tokens[i + before]);
}

/** One utterance with greedy search: `push` audio, `advance`, `flush` the text. */
export class TranslationStream {
  /**
   * `options`: the fields of DecodingOptions. `aligns`: record in `aligned` which encoder state each token
   * translates: the first of the k steps that it was written behind.
   */
  constructor(system, options, aligns) {
    Object.assign(this, { system, options, aligns });
    this.policy = POLICIES[system.policy.name](system.policy);
    this.features = new FeatureStream(system.stepFrames, system.fbank(), system.cmvn);
    this.engine = system.begin();
    this.emitter = new EMITTERS[options.unit](system.detokenizer);
    this.nSteps = 0; // pre-decision steps read
    this.aligned = []; // with `aligns`, the encoder state of each token, from 0
    this.expected = [0, []]; // number of states and all tokens of the last continuation
  }

  /** Add samples in [-1, 1] at 16 kHz. */
  async push(samples) {
    await this.features.push(samples);
  }

  /** Read and write as far as the audio allows. */
  async advance(sourceFinished) {
    while (this.read(sourceFinished)) await this.policy.write(this);
    if (!sourceFinished || !this.engine.nFrames) return; // at least one window of audio was heard
    const most = this.options.max_after_read ?? Infinity;
    for (let i = 0; i < most && (await this.write(true, false)); i++);
  }

  /**
   * Take over from another stream that had this many more states at the beginning.
   *
   * Its first `nTokens` tokens are forgotten with these states; the others count as written.
   */
  async follow(before, nTokens, nStates) {
    while (this.read(false));
    for (const token of before.engine.tokens.slice(nTokens)) {
      await this.engine.consume(this.nStates);
      this.engine.commit(token);
    }
    this.aligned = before.aligned.slice(nTokens).map((state) => Math.max(0, state - nStates));
    this.emitter = before.emitter;
    this.emitter.forget(nTokens);
    await this.policy.write(this);
  }

  /** Text that became final since the last call; with `final`, all remaining text. */
  flush(final) {
    return this.emitter.flush(final);
  }

  /** The text that would follow the flushed text if the source ended here; nothing is written. */
  async draft() {
    if (!this.nStates) return "";
    const written = this.engine.tokens;
    let [nStates, expected] = this.expected;
    if (nStates !== this.nStates || written.some((token, i) => token !== expected[i])) {
      expected = [...written, ...(await this.continuation())]; // the policy did not compute it
    }
    const whole = new EMITTERS[this.options.unit](this.system.detokenizer);
    whole.push(written);
    whole.flush(false); // what was flushed
    whole.push(expected.slice(written.length));
    return whole.flush(true);
  }

  // -------------------------------------------------------------------------------------------- what a policy can do
  get nTokens() {
    return this.engine.tokens.length;
  }

  get nStates() {
    return Math.min(this.engine.ready, this.nSteps * this.stepStates);
  }

  async writeNext() {
    const waits = this.options.early_eos === "wait";
    return this.write(waits, waits);
  }

  async continuation() {
    const [snapshot, tokens] = [this.engine.snapshot(), []];
    while (tokens.length < this.options.max_draft && !this.isFull()) {
      const token = await this.bestToken(true);
      if (token === this.system.eos) break;
      this.engine.commit(token);
      tokens.push(token);
    }
    this.engine.restore(snapshot);
    this.expected = [this.nStates, [...this.engine.tokens, ...tokens]];
    return tokens;
  }

  async commit(tokens) {
    for (const token of tokens) {
      await this.engine.consume(this.nStates);
      this.take(token);
    }
  }

  // ----------------------------------------------------------------------------------------------------------------
  /** Encoder states per pre-decision step. */
  get stepStates() {
    return Math.floor(this.system.stepFrames / this.system.stateFrames);
  }

  isFull() {
    const allowed = this.options.max_len_a * this.engine.nFrames + this.options.max_len_b;
    return this.nTokens >= Math.min(Math.floor(allowed), this.system.positions - 1);
  }

  /** Read one pre-decision step: as many frames as its states need to be ready; false when there is none. */
  read(sourceFinished) {
    const wanted = (this.nSteps + 1) * this.stepStates;
    while (this.engine.ready < wanted && !this.engine.finished) {
      const frames = this.features.nextStep(sourceFinished);
      if (frames) this.engine.feed(frames);
      else if (sourceFinished) this.engine.finish();
      else return false;
    }
    if (this.engine.ready <= wanted - this.stepStates) return false;
    this.nSteps++;
    return true;
  }

  /** Write the best next token; false when there is none, because it would end the sentence or that is full. */
  async write(eosOpen, takesBack) {
    if (this.isFull()) return false;
    const snapshot = takesBack ? this.engine.snapshot() : null;
    const token = await this.bestToken(eosOpen);
    if (token !== this.system.eos) this.take(token);
    else if (snapshot) this.engine.restore(snapshot);
    return token !== this.system.eos;
  }

  take(token) {
    this.engine.commit(token);
    this.emitter.push([token]);
    if (this.aligns) this.aligned.push(Math.max(0, this.nStates - this.policy.lag * this.stepStates));
  }

  async bestToken(eosOpen) {
    const repeated = repeating(this.engine.tokens, this.options.no_repeat_ngram_size);
    const forbidden = [...this.system.forbidden, ...repeated, ...(eosOpen ? [] : [this.system.eos])];
    return this.engine.best(this.nStates, forbidden);
  }
}
