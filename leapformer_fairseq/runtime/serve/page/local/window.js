// What to forget of a talk without pauses, as in leapformer_fairseq/runtime/simul/window.py.
import { UNIT_MS } from "./audio.js";

const MARGIN = 4; // states that are kept before the first one that retained text is aligned with
const LEAST = 1000 / UNIT_MS; // forgetting fewer states is not worth reading the others again

/** The number of first tokens and encoder states that a stream that aligns can drop; [0, 0]: it keeps all. */
export function forgettable(stream, words) {
  const starts = stream.emitter.starts();
  if (starts.length <= words) return [0, 0];
  const [step, first, unready] = [stream.stepStates, starts.at(-words), stream.system.chunkStates - 1];
  let states = Math.min(Math.min(...stream.aligned.slice(first)) - MARGIN, stream.engine.ready - unready - step);
  states -= states % step;
  return states >= LEAST ? [first, states] : [0, 0];
}
