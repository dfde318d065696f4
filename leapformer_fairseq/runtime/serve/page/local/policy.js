// When to write, as in leapformer_fairseq/runtime/simul/policy.py: `write` is called after every step of source.
// There is no alignatt: the page does not ask exported models for attention weights.

const waitK = ({ k, catch_up: rate }) => ({
  lag: k, // how many steps of source a token is written behind what it translates
  async write(draft) {
    while (draft.nSteps - Math.floor(draft.nTokens / rate) >= k && (await draft.writeNext()));
  },
});

const offline = () => ({ async write() {} });

const holdN = ({ hold }) => ({
  async write(draft) {
    const tokens = await draft.continuation();
    await draft.commit(tokens.slice(0, Math.max(0, tokens.length - hold)));
  },
});

const localAgreement = ({ agree }) => {
  let drafts = []; // of the last steps, each from the first token that is not committed
  return {
    async write(draft) {
      drafts = [...drafts.slice(1 - agree), await draft.continuation()];
      if (drafts.length < agree) return;
      let agreed = 0;
      while (drafts.every((tokens) => agreed < tokens.length && tokens[agreed] === drafts[0][agreed])) agreed++;
      await draft.commit(drafts[0].slice(0, agreed));
      drafts = drafts.map((tokens) => tokens.slice(agreed));
    },
  };
};

/** From the fields of PolicyOptions to the policy of a new utterance. */
export const POLICIES = { "wait-k": waitK, "hold-n": holdN, "local-agreement": localAgreement, offline };
