"""Write what two translations share, but nothing that is still being said."""

from leapformer_fairseq.runtime.simul import Draft, Option, Policy, register


@register("steady", Option("newest", 4, "steady: a token that attends most to one of the newest states waits", least=1))
class Steady(Policy):
    """Write what this translation and the last one share, up to a token that attends most to the newest states."""

    attends = True
    last: tuple[int, ...] = ()  # what was not written of the last translation

    def write(self, draft: Draft) -> None:
        tokens, agreed = draft.continuation(), 0
        for token, before in zip(tokens, self.last, strict=False):
            if token.id != before or token.attention.argmax() >= draft.n_states - self.chosen.newest:
                break
            agreed += 1
        draft.commit(tokens[:agreed])
        self.last = tuple(token.id for token in tokens[agreed:])
