"""`Attention`, a layer for models of one's own, and `Cache`, what its layers keep while a model generates.

Shapes: B batch, T queries, S keys, C width of the model, H heads, D head dimension. Keep masks are True at real tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Literal, Self, overload

import torch
from torch import Tensor, nn

from ..support.errors import LeapformerError
from .block import AttentionBlock, Memory
from .capabilities import BLOCKS, DECODER_CROSS, DECODER_SELF, ENCODER_SELF, Context
from .decoding.step import Step
from .masks import CAUSAL, ChunkMask, Mask, PrefixMask, mask_of, whole_from
from .mechanism import Mechanism, State
from .positions import rotate, rotation
from .registry import build
from .tokens import TokenInfo, checked_keep

ABOUT = "about"  # in saved caches: what the layer is
NUMBERS = {"queries", "written", "mask"}  # in saved caches, besides the state
ARGUMENTS = ("mask", "keep", "target_keep", "cu_seqlens", "cache", "weights")
# arguments of torch.nn.MultiheadAttention, and what is given here
ELSEWHERE = {
    "query": "x, the first argument",
    "key": "source, the second argument, of keys and values, in cross-attention, and x alone in self-attention",
    "key_padding_mask": "keep=~key_padding_mask, True at real tokens",
    "attn_mask": "mask: CAUSAL, a PrefixMask, a ChunkMask or None; nothing can be added to scores",
    "need_weights": "weights=True, for the weights of each head",
}
ELSEWHERE |= {"value": ELSEWHERE["key"], "is_causal": ELSEWHERE["attn_mask"]}
ELSEWHERE |= {"average_attn_weights": ELSEWHERE["need_weights"]}
# arguments of other layers' constructors, and what is given here
BUILT_ELSEWHERE = {
    "embed_dim": "give dim, and the mechanism's name first",
    "num_heads": "give heads",
    "head_dim": "heads are dim / heads wide; choose dim and heads",
    "num_kv_heads": "give kv_heads",
    "kdim": "give source_dim, of keys and values",
    "batch_first": "leave it out; tokens are (batch, tokens, dim)",
    "causal": "a decoder-self block is causal; choose block='decoder-self' or 'encoder-self'",
    "input_dim": "give dim, or source_dim in cross-attention",
    "device": "build it, then call .to(device)",
    "dtype": "build it, then call .to(dtype)",
    "add_bias_kv": "leave it out; no token is added to the keys",
}
BUILT_ELSEWHERE |= {"vdim": BUILT_ELSEWHERE["kdim"], "is_causal": BUILT_ELSEWHERE["causal"]}
BUILT_ELSEWHERE |= {"add_zero_attn": BUILT_ELSEWHERE["add_bias_kv"]}
WRAPPERS = ("_orig_mod", "module")  # names that torch.compile and DistributedDataParallel put around a model


class Attention(AttentionBlock):
    """Multi-head attention by any mechanism, (B, T, C) to (B, T, C), with its projections.

    >>> attention = Attention("gated-leap", dim=64, heads=4)
    >>> attention(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])

    In generation, give the model's `Cache`: the layer then reads the next tokens, one or several, and finds there what
    it kept of those before. What a call returns is the same as for the whole sequence at once.
    """

    def __new__(cls, *given: object, **named: object) -> Self:
        for name in named:  # before Python says which arguments are missing instead
            if name in BUILT_ELSEWHERE:
                raise LeapformerError(f"Attention is built without {name}; {BUILT_ELSEWHERE[name]}")
        return super().__new__(cls)

    def __init__(
        self,
        name: str,
        dim: int,
        heads: int,
        *,
        block: str = DECODER_SELF,
        kv_heads: int | None = None,
        source_dim: int | None = None,
        bias: bool = True,
        normalise: bool = False,
        rotary: float | None = None,
        dropout: float = 0.0,
        **options: Any,
    ) -> None:
        """`name` is the mechanism, `dim` the width C, a multiple of `heads`, and `options` are the mechanism's.

        block:      decoder-self (causal), encoder-self (every token sees all), or decoder-cross (tokens see a source).
        kv_heads:   number of heads of keys and values, each shared by heads / kv_heads neighbouring heads of queries
                    (grouped-query attention, Ainslie et al., 2023, arXiv:2305.13245). It saves parameters; states have
                    all heads.
        source_dim: width of the source in cross-attention; by default `dim`.
        normalise:  scale queries and keys of each head to unit RMS, with learned weights (nn.RMSNorm).
        rotary:     base of rotary positions, such as 10_000, which rotate queries and keys before the mechanism (Su et
                    al., 2021, arXiv:2104.09864); None: none. Not in cross-attention.
        dropout:    of attention weights, for mechanisms that have some.

        Raises LeapformerError for sizes that do not fit, and if the mechanism is not supported in the block.
        """
        super().__init__()
        if block not in BLOCKS:
            raise LeapformerError(f"block {block!r} is unknown; choose from: {', '.join(BLOCKS)}")
        kv_heads = heads if kv_heads is None else kv_heads
        if not whole_from(1, heads, dim) or dim % heads:
            raise LeapformerError(f"dim={dim!r} is no multiple of {heads!r} heads; change one of them")
        if not whole_from(1, kv_heads) or heads % kv_heads:
            choices = ", ".join(str(number) for number in range(1, heads + 1) if heads % number == 0)
            raise LeapformerError(f"kv_heads={kv_heads!r} does not divide heads={heads}; choose from: {choices}")
        if source_dim is not None and not whole_from(1, source_dim):
            raise LeapformerError(f"source_dim={source_dim!r}: give a whole number")
        if not isinstance(dropout, (float, Real)) or not 0 <= dropout <= 1:
            raise LeapformerError(f"dropout={dropout!r}: give a probability, from 0 to 1")
        self.block, self.dim, self.kv_heads, head_dim = block, dim, kv_heads, dim // heads
        self.source_dim = dim if source_dim is None else source_dim
        if block != DECODER_CROSS and self.source_dim != dim:
            raise LeapformerError(f"source_dim={source_dim}: {block} attention has no source; leave it out")
        positive = isinstance(rotary, (float, Real)) and not isinstance(rotary, bool) and rotary > 0
        if rotary is not None and (block == DECODER_CROSS or head_dim % 2 or not positive):
            raise LeapformerError(
                f"rotary={rotary!r} with {block} and heads {head_dim} wide: it needs self-attention, an even width and "
                "a positive base, such as 10_000"
            )
        mechanism = build(name, head_dim, heads, dropout=dropout, block=block, input_dim=self.source_dim, **options)
        mask = CAUSAL if block == DECODER_SELF else None
        reason = mechanism.capabilities.unsupported_reason(block, mask, Context())
        if reason is None and kv_heads != heads and type(mechanism).receive is not Mechanism.receive:
            reason = "it uses the block's projections itself, which must have all heads; leave kv_heads out"
        if reason is not None:
            raise mechanism.refusal(f"{name} attention cannot be used as {block}: {reason}")
        self.rotary, self.normalise = rotary, normalise
        self.q_proj = nn.Linear(dim, dim, bias)
        self.k_proj, self.v_proj = (nn.Linear(self.source_dim, kv_heads * head_dim, bias) for _ in range(2))
        self.out_proj = nn.Linear(dim, dim, bias)
        if normalise:
            self.q_norm, self.k_norm = nn.RMSNorm(head_dim), nn.RMSNorm(head_dim)
        self.use(mechanism, crosses=block == DECODER_CROSS)

    @overload
    def forward(
        self, x: Tensor, source: Tensor | None = ..., *, mask: Mask | Literal["block"] = ...,
        keep: Tensor | None = ..., target_keep: Tensor | None = ..., cu_seqlens: Tensor | None = ...,
        cache: Cache | None = ..., weights: Literal[False] = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def forward(
        self, x: Tensor, source: Tensor | None = ..., *, mask: Mask | Literal["block"] = ...,
        keep: Tensor | None = ..., target_keep: Tensor | None = ..., cu_seqlens: Tensor | None = ...,
        cache: Cache | None = ..., weights: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...  # fmt: skip
    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *more: object,
        mask: Mask | Literal["block"] = "block",
        keep: Tensor | None = None,
        target_keep: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        cache: Cache | None = None,
        weights: bool = False,
        **others: object,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The output (B, T, C) for x (B, T, C); with `weights` also what each key contributed, (B, H, T, S).

        source:  (B, S, source_dim), in cross-attention; with a cache, the same in every call.
        mask:    who sees what: CAUSAL, a PrefixMask (wait-k) or a ChunkMask (streaming encoders), or None: all. By
                 default CAUSAL in decoder-self, otherwise None. A cache keeps the mask of its first call: later calls
                 may leave it out, and another one is an error. Under a ChunkMask each call but the last gives whole
                 chunks.
        keep:    (B, T) in self-attention, of the source (B, S) in cross-attention, False at padding, on either side;
                 under a PrefixMask or a ChunkMask on the right. Outputs at padding are undefined but finite.
        target_keep: (B, T) in cross-attention, of x, which may be left out for targets that are padded on the right.
        cu_seqlens: (B + 1,), where each of B sequences begins in x (N, C), which has them one after the other, and N;
                 the output is (N, C), too. They are padded here, so batch sequences of similar lengths.
        cache:   what was kept of the tokens before x. `keep` then describes x, as in a batch of prompts that are padded
                 on the left; weights are not available in self-attention.

        Raises LeapformerError for shapes and masks that do not fit, and for arguments that there are not.
        """
        if more or others:
            raise LeapformerError(_unknown(others))
        if cu_seqlens is not None:
            alone = source is None and keep is None and target_keep is None and cache is None and not weights
            return self._packed(x, cu_seqlens, mask, alone)
        memory = None if cache is None else self._memory(cache)
        if mask == "block":
            first = CAUSAL if self.block == DECODER_SELF else None
            mask = first if memory is None or memory.state is None else memory.mask
        keys = x if source is None else source
        if not torch.compiler.is_compiling():  # a graph would take the sizes for constants
            self._check(x, source, mask)
            if type(weights) is not bool:
                raise LeapformerError(f"weights is a {type(weights).__name__}; give True or False")
            if target_keep is not None and not self.crosses:
                raise LeapformerError(f"target_keep is of cross-attention; in {self.block} attention give keep, of x")
            for name, one, tokens in (("keep", keep, keys), ("target_keep", target_keep, x)):
                checked_keep(one, tokens.shape[:2], name)
                self._check_padding(name, one, mask)
            self._check_length(x, target_keep if self.crosses else keep, mask, memory)
            if memory is not None and not x.shape[0]:
                raise LeapformerError("x has no sequences, but a cache has at least one; end when all of them have")
        if memory is not None:
            return self._next(x, keys, mask, keep, target_keep, memory, weights)
        key_info = TokenInfo.whole(keys.shape[1], keep, x.device)
        if mask is not None and not self.crosses:  # in parts its length is not known, so nothing may depend on it
            key_info = key_info.without_lengths()
        key_info = self.described(key_info, keys)
        query_info = key_info
        if source is not None:
            query_info = self.described(TokenInfo.whole(x.shape[1], target_keep, x.device), x, as_keys=False)
        out, shares = self.attend(x, keys, query_info, key_info, mask, weights)
        return out if shares is None else (out, shares)

    def _next(
        self,
        x: Tensor,
        keys: Tensor,
        mask: Mask,
        keep: Tensor | None,
        target_keep: Tensor | None,
        memory: Memory,
        weights: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """`forward` for the tokens that follow those in the memory."""
        if memory.state is None:
            self._check_parts(mask)
        else:
            self._check_cached(x, keys, mask, memory, memory.state)
            self._check_chunks(keep, memory)
        if self.crosses:
            if mask is not None and target_keep is not None:
                if not bool(target_keep.all()):
                    raise LeapformerError(
                        "target_keep has padding, but under wait-k a cache counts columns; give targets of one length"
                    )
                target_keep = None
            out, shares = self.cross_step(x, keys, keep, memory, mask, weights, target_keep)
            return out if shares is None else (out, shares)
        if weights:
            raise LeapformerError("weights=True: a state has no weights of earlier tokens; call without the cache")
        return self.self_step(x, keep, memory, mask)

    def _memory(self, cache: Cache) -> Memory:
        """What the cache keeps of this layer."""
        if not isinstance(cache, Cache):
            raise LeapformerError(f"cache is a {type(cache).__name__}; give Cache(model)")
        return cache.memory(self)

    def _check_parts(self, mask: Mask) -> None:
        """Raise LeapformerError if what is read in parts would not be what is read at once."""
        mechanism = self.mechanism
        block = DECODER_SELF if mask == CAUSAL else self.block  # a causal encoder is read as a decoder is
        reason = mechanism.capabilities.unsupported_reason(block, mask, Context(incremental=True))
        if self.block == ENCODER_SELF and mask is None:
            reason = "every token sees all others, also those still to come; give the first call mask=ChunkMask(size)"
        if reason is not None:
            raise mechanism.refusal(
                f"{mechanism.name}: {self.block} attention cannot read a sequence in parts: {reason}"
            )

    def _check_length(self, x: Tensor, keep: Tensor | None, mask: Mask, memory: Memory | None) -> None:
        """Raise LeapformerError for targets beyond the mechanism's limit. Waits for a GPU only beyond it.

        Mechanisms also run beyond a limit that is an assumed length (cosFormer's), where their proportions mean less.
        """
        limit = self.mechanism.capabilities.max_target
        count, before = x.shape[1], 0 if memory is None else memory.queries
        if limit is None or before + count <= limit or (self.block == ENCODER_SELF and mask != CAUSAL):
            return
        tokens = TokenInfo.whole(count, keep) if memory is None else memory.tokens(count, keep, x.device)
        self.mechanism.check_limit(tokens, limit)

    def _check_cached(self, x: Tensor, keys: Tensor, mask: Mask, memory: Memory, state: State) -> None:
        """Raise LeapformerError for another mask, batch, device or source than those of the cache."""
        if mask != memory.mask:
            raise LeapformerError(
                f"mask={mask}: the cache was begun with mask={memory.mask}; leave mask out to go on with it, or begin "
                "with a new Cache"
            )
        device = next(iter(state.tensors().values())).device
        if state.batch_size != len(x):
            raise LeapformerError(
                f"the cache holds {state.batch_size} sequences and x {len(x)}; choose them by cache.select(rows), or "
                "begin with a new Cache"
            )
        if device != x.device:
            raise LeapformerError(f"the cache is on {device} and x on {x.device}; move it by cache.to(x.device)")
        if self.crosses and mask is None and memory.written != keys.shape[1]:
            raise LeapformerError(
                f"the cache has read a source of {memory.written} tokens and this one has {keys.shape[1]}; begin "
                "another source with a new Cache"
            )

    def _check_chunks(self, keep: Tensor | None, memory: Memory) -> None:
        """Raise LeapformerError for tokens that follow in a chunk whose other tokens have not seen them."""
        mask = memory.mask
        if not isinstance(mask, ChunkMask):
            return
        inside = f"inside a chunk of {mask.tokens}, whose other tokens did not see what comes now"
        if memory.queries % mask.tokens:
            raise LeapformerError(
                f"the cache has read {memory.queries} tokens and ends {inside}; give whole chunks, {mask} in every "
                "call but the last"
            )
        if memory.padded is None:
            return
        goes_on = memory.padded % mask.tokens != 0
        goes_on = goes_on if keep is None else goes_on & keep.any(1)
        if bool(goes_on.any()):
            raise LeapformerError(
                f"sequence {int(goes_on.nonzero()[0])} of the cache ended {inside}; give padding there (keep), or "
                "leave it out by cache.select(rows)"
            )

    def _check_padding(self, name: str, keep: Tensor | None, mask: Mask) -> None:
        """Raise LeapformerError for padding before real tokens if a mask counts tokens from the first column."""
        if keep is None or mask is None or mask == CAUSAL or keep.shape[1] < 2:
            return
        if bool((keep[:, 1:] > keep[:, :-1]).any()):
            raise LeapformerError(f"{name} has padding before real tokens, and {mask} counts columns; pad on the right")

    def _packed(self, x: Tensor, cu_seqlens: Tensor, mask: Mask | Literal["block"], alone: bool) -> Tensor:
        """`forward` for sequences one after the other."""
        if not isinstance(x, Tensor) or not isinstance(cu_seqlens, Tensor):
            raise LeapformerError(
                f"x is a {type(x).__name__} and cu_seqlens a {type(cu_seqlens).__name__}; give tensors, x (N, C) and "
                "cu_seqlens (B + 1,)"
            )
        if not alone or x.dim() != 2:
            raise LeapformerError(
                f"cu_seqlens with x {tuple(x.shape)}: give (N, {self.dim}), and no source, keep, cache or weights"
            )
        whole = cu_seqlens.dim() == 1 and len(cu_seqlens) > 1 and cu_seqlens.dtype in (torch.int32, torch.int64)
        places = cu_seqlens.tolist() if whole else []
        if not places or places != sorted(places) or (places[0], places[-1]) != (0, len(x)):
            given = str(places if len(places) < 9 else [*places[:4], "..", *places[-4:]]) if places else "a tensor"
            raise LeapformerError(
                f"cu_seqlens {given} ({cu_seqlens.dtype}, {tuple(cu_seqlens.shape)}): give whole numbers (B + 1,) that "
                f"do not decrease, from 0 to {len(x)}, where each sequence begins in x"
            )
        padded, keep = _padded(x, cu_seqlens.to(x.device))
        return self(padded, mask=mask, keep=keep)[keep]

    def _check(self, x: Tensor, source: Tensor | None, mask: Mask) -> None:
        """Raise LeapformerError if the inputs or the mask do not fit."""
        if self.crosses == (source is None):
            raise LeapformerError(
                f"{self.block} attention {'needs a' if self.crosses else 'has no'} source; "
                + ("call it with (x, source)" if self.crosses else "build it with block='decoder-cross'")
            )
        keys, weight = x if source is None else source, self.v_proj.weight
        for name, tokens, width in (("x", x, self.dim), ("source", keys, self.source_dim)):
            if not isinstance(tokens, Tensor):
                raise LeapformerError(f"{name} is a {type(tokens).__name__}; give a tensor (batch, tokens, {width})")
            fits = tokens.device == weight.device and (
                tokens.dtype == weight.dtype
                or (tokens.is_floating_point() and torch.is_autocast_enabled(tokens.device.type))
            )
            if not fits:
                raise LeapformerError(
                    f"{name} is {tokens.dtype} on {tokens.device}, and the layer {weight.dtype} on {weight.device}; "
                    "convert one of them"
                )
            if tokens.dim() != 3:
                raise LeapformerError(
                    f"{name} is {tuple(tokens.shape)}; give (batch, tokens, {width}), as by x.unsqueeze(0) for one "
                    "sequence"
                )
            if tokens.shape[2] != width or tokens.shape[0] != x.shape[0]:
                raise LeapformerError(
                    f"{name} is {tuple(tokens.shape)}; give (batch {x.shape[0]}, tokens, width {width})"
                )
        self._check_mask(mask)

    def _check_mask(self, mask: Mask) -> None:
        """Raise LeapformerError for a mask that this block does not have, or the mechanism."""
        self.mechanism.check_mask(mask)
        if self.block == DECODER_SELF and mask != CAUSAL:
            raise LeapformerError(
                f"mask={mask}: decoder-self attention must not see later tokens; leave mask out, or build it with "
                "block='encoder-self'"
            )
        if isinstance(mask, ChunkMask if self.crosses else PrefixMask) and mask != CAUSAL:
            raise LeapformerError(
                f"mask={mask} is none of {self.block} attention; "
                + ("give a PrefixMask (wait-k)" if self.crosses else "give a ChunkMask (a stream)")
                + ", or None: all"
            )

    def described(self, tokens: TokenInfo, x: Tensor, as_keys: bool = True) -> TokenInfo:
        # The length of a target that is generated is not known, so whole targets must not use it either.
        return super().described(tokens if as_keys else tokens.without_lengths(), x, as_keys)

    @property
    def value_dim(self) -> int:
        return self.dim // self.num_heads

    def decoding_step(self) -> Step | None:
        # A step knows projections, but nothing between them and the mechanism.
        between = self.rotary is not None or self.normalise or self.kv_heads != self.num_heads
        return None if between else super().decoding_step()

    def project_queries(self, x: Tensor, tokens: TokenInfo) -> Tensor:
        q = super().project_queries(x, tokens)
        return self._rotated(self.q_norm(q) if self.normalise else q, tokens)

    def project_keys(self, x: Tensor, tokens: TokenInfo) -> tuple[Tensor, Tensor]:
        v = self._of_groups(self.v_proj(x))
        if self.mechanism.capabilities.keys_are_values:
            return v, v
        k = self._of_groups(self.k_proj(x))
        return self._rotated(self.k_norm(k) if self.normalise else k, tokens), v

    def _rotated(self, x: Tensor, tokens: TokenInfo) -> Tensor:
        if self.rotary is None:
            return x
        return rotate(x, rotation(tokens.positions.unsqueeze(1), x.shape[3], self.rotary).to(x.dtype))

    def _of_groups(self, x: Tensor) -> Tensor:
        """Keys or values (B, H, S, D) of projected tokens; the head of a group is repeated for its queries' heads."""
        if self.kv_heads == self.num_heads:
            return self._heads(x)
        return (
            x.unflatten(-1, (self.kv_heads, -1)).transpose(1, 2).repeat_interleave(self.num_heads // self.kv_heads, 1)
        )

    def extra_repr(self) -> str:
        return f"{self.mechanism.name}, {self.block}, dim={self.dim}, heads={self.num_heads}"


class Cache:
    """What the `Attention` layers of a model keep of the tokens read so far; constant in size for linear mechanisms.

    >>> cache = Cache(model)                      # doctest: +SKIP
    >>> logits = model(prompt, cache=cache)       # doctest: +SKIP
    >>> logits = model(next_token, cache=cache)   # doctest: +SKIP

    The model hands it to its layers. A layer that runs several times in a pass needs a cache for each of these runs.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = model.named_modules() if isinstance(model, nn.Module) else ()
        self._layers = {_name(path): layer for path, layer in modules if isinstance(layer, Attention)}
        if not self._layers:
            raise LeapformerError(f"{type(model).__name__} has no Attention layers; give the model that will be called")
        self._names = {layer: name for name, layer in self._layers.items()}
        self._memories: dict[str, Memory] = {}

    def memory(self, layer: Attention) -> Memory:
        """The memory of a layer. Raises LeapformerError if the layer does not belong to the model."""
        if layer not in self._names:
            raise LeapformerError(
                "this Attention is not a layer of the cache's model; make a Cache of the model that is called"
            )
        name = self._names[layer]
        if name not in self._memories:
            self._memories[name] = layer.new_memory()
        return self._memories[name]

    @property
    def batch_size(self) -> int:
        """The number of sequences; 0 before the first token."""
        states = (memory.state for memory in self._memories.values() if memory.state is not None)
        return next((state.batch_size for state in states), 0)

    def _is_begun(self) -> bool:
        """Whether every layer that was called has read something."""
        return bool(self._memories) and all(memory.state is not None for memory in self._memories.values())

    def positions(self, count: int, keep: Tensor | None = None) -> Tensor:
        """Positions (B or 1, count) of the next tokens, for embeddings: 1 at the first real token of a sequence.

        `keep` (B, count) is theirs, as the layers get it. Ask before the layers read these tokens. Padding before the
        first real token is at 0.
        """
        layers = [name for name, layer in self._layers.items() if layer.block == DECODER_SELF] or list(self._layers)
        device = self._layers[layers[0]].v_proj.weight.device
        memory = self._memories.get(layers[0], Memory(None))
        return memory.tokens(count, keep, device).positions

    def nbytes(self) -> int:
        """Bytes held by the states."""
        return sum(memory.state.nbytes() for memory in self._memories.values() if memory.state is not None)

    def select(self, rows: Tensor | Sequence[int]) -> Cache:
        """The cache whose sequence i is the old sequence rows[i].

        Beam search repeats, drops and permutes sequences; a server leaves out those that have ended.
        """
        try:
            order = rows if isinstance(rows, Tensor) else torch.tensor(list(rows))
        except (TypeError, ValueError):
            order = torch.zeros(0)
        whole = order.dtype in (torch.int64, torch.int32) and order.dim() == 1 and order.numel() > 0
        if not whole or not 0 <= int(order.min()) <= int(order.max()) < self.batch_size:
            given = rows.tolist() if isinstance(rows, Tensor) else rows
            raise LeapformerError(
                f"rows {given!r}: give at least one whole number from 0 to {self.batch_size - 1}, the cache's "
                "sequences (for a mask of those that go on: mask.nonzero().flatten())"
            )
        return self._with({name: memory.reorder(order) for name, memory in self._memories.items()})

    reorder = select

    def fork(self) -> Cache:
        """An independent copy, to try a continuation and come back."""
        return self._with({name: memory.fork() for name, memory in self._memories.items()})

    @staticmethod
    def cat(caches: Sequence[Cache]) -> Cache:
        """The sequences of several caches of one model, which may have read different numbers of tokens."""
        if not isinstance(caches, (list, tuple)) or not caches or not all(isinstance(one, Cache) for one in caches):
            raise LeapformerError("give a list of caches, at least one")
        if any(cache._names != caches[0]._names for cache in caches):
            raise LeapformerError("caches of different models; join those of one")
        memories = [cache._memories for cache in caches]
        first = memories[0]
        if any(set(each) != set(first) for each in memories) or not all(cache._is_begun() for cache in caches):
            raise LeapformerError("a cache before its first token cannot be joined; let it read one")
        for name, other in ((name, other) for each in memories for name, other in each.items()):
            if other.mask != first[name].mask:
                raise LeapformerError(
                    f"caches with mask={first[name].mask} and with mask={other.mask} cannot be joined; join those of "
                    "one mask"
                )
        return caches[0]._with({name: Memory.cat([each[name] for each in memories]) for name in first})

    def to(self, device: torch.device | str) -> Cache:
        """The cache on another device, for a model that was moved there."""
        return self._with(
            {
                name: replace(memory.to(torch.device(device)), step=self._layers[name].new_memory().step)
                for name, memory in self._memories.items()
            }
        )

    def tensors(self) -> dict[str, Tensor]:
        """All that is kept, as tensors by name, to be saved with torch.save or safetensors; see `load`."""
        return {
            f"{name}/{key}": x.clone()
            for name, memory in self._memories.items()
            if memory.state is not None
            for key, x in {**memory.tensors(), ABOUT: _described(self._layers[name])}.items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> Cache:
        """The cache of `tensors`, as `tensors()` returned them.

        Raises LeapformerError if they belong to another model.
        """
        if not isinstance(tensors, Mapping) or not all(isinstance(x, Tensor) for x in tensors.values()):
            raise LeapformerError("these are no tensors by name; give what tensors() returned")
        by_layer: dict[str, dict[str, Tensor]] = {}
        for place, x in tensors.items():
            name, _, key = place.rpartition("/")
            by_layer.setdefault(name, {})[key] = x
        if unknown := sorted(set(by_layer) - set(self._layers)):
            raise LeapformerError(
                f"the model has no layer {unknown[0]!r} with Attention; load the cache into the model that made it"
            )
        decoding = {name for name, layer in self._layers.items() if layer.block != ENCODER_SELF}
        if missing := sorted(decoding - set(by_layer)):
            raise LeapformerError(f"the cache has nothing of layer {missing[0]!r}; load it into the model that made it")
        return self._with({name: self._loaded(name, parts) for name, parts in by_layer.items()})

    def _loaded(self, name: str, parts: dict[str, Tensor]) -> Memory:
        """The memory of the layer `name`. Raises LeapformerError for tensors of another one."""
        layer = self._layers[name]
        given = {key.removeprefix("state."): x for key, x in parts.items() if key.startswith("state.")}
        numbers = {key: x for key, x in parts.items() if not key.startswith("state.")}
        wrong = LeapformerError(
            f"layer {name!r}: the cache is damaged or of another layer than {layer.extra_repr()}, or of another "
            "version; load it into the model that made it"
        )
        about = numbers.get(ABOUT)
        if not numbers.keys() >= NUMBERS or about is None or not torch.equal(about.cpu(), _described(layer)):
            raise wrong
        try:
            mask = mask_of(numbers["mask"].flatten().tolist())
            layer._check_mask(mask)
        except LeapformerError as error:
            raise wrong from error
        with torch.no_grad():
            like = layer.v_proj.weight.new_zeros(1, 0, layer.source_dim)
            tokens = layer.described(TokenInfo.whole(0, device=like.device), like)
            empty = layer.mechanism.init_state(1, layer.value_dim, like, tokens, mask)
        if not _fit(given, empty.tensors()):
            raise wrong
        return replace(
            layer.new_memory(),
            state=type(empty)(**{key: x.clone() for key, x in given.items()}),
            mask=mask,
            queries=int(numbers["queries"]),
            written=int(numbers["written"]),
            padded=numbers.get("padded"),
        )

    def _with(self, memories: Mapping[str, Memory]) -> Cache:
        other = Cache.__new__(Cache)
        other._names, other._layers, other._memories = self._names, self._layers, dict(memories)
        return other


def _unknown(others: Mapping[str, object]) -> str:
    """What to give in the place of arguments that there are not: `others`, or, if none, too many without a name."""
    if not others:
        return f"Attention takes x and a source, all else by name: {', '.join(ARGUMENTS)}"
    name = next(iter(others))
    known = f"its arguments: x, source, {', '.join(ARGUMENTS)}"
    return f"Attention has no argument {name}; " + (f"give {ELSEWHERE[name]}" if name in ELSEWHERE else known)


def _described(layer: Attention) -> Tensor:
    """What a layer is, as bytes, which a saved cache must match."""
    options = ", ".join(f"{key}={value}" for key, value in sorted(vars(layer.mechanism.chosen).items()))
    text = f"{layer.extra_repr()}, {layer.rotary}, {layer.normalise}, {options}"
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def _fit(given: Mapping[str, Tensor], empty: Mapping[str, Tensor]) -> bool:
    """Whether tensors have the names, types and sizes of an empty state, in which 0 stands for any number of tokens."""
    if given.keys() != empty.keys() or len({len(x) for x in given.values() if x.dim()}) > 1:
        return False
    return all(
        x.dtype == empty[key].dtype
        and x.dim() == empty[key].dim()
        and all(wanted in (0, size) for size, wanted in zip(x.shape[1:], empty[key].shape[1:], strict=True))
        for key, x in given.items()
    )


def _name(path: str) -> str:
    """A layer's name in its model, without the names of wrappers."""
    return ".".join(part for part in path.split(".") if part not in WRAPPERS)


def _padded(x: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """Padded tokens (B, T, ..) and `keep` (B, T) of sequences one after another, x (N, ..), begun at `cu_seqlens`."""
    lengths = cu_seqlens.diff()
    keep = torch.arange(int(lengths.max()), device=x.device) < lengths.unsqueeze(1)
    padded = x.new_zeros(*keep.shape, *x.shape[1:])
    padded[keep] = x
    return padded, keep
