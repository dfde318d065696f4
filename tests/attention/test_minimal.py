"""The one-page LeaPformer is the mechanism of the package: outputs, states and gradients."""

from __future__ import annotations

import torch

from leapformer_fairseq.attention import CAUSAL, TokenInfo, build
from leapformer_fairseq.attention.minimal import Proportion, features, reference, scan, step

B, H, T, D, E = 2, 3, 131, 8, 5


def test_three_forms_are_the_mechanism():
    """In float64, with copied networks; a scan that is cut anywhere, and a step after it, go on where it ended."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(B, H, T, size, dtype=torch.float64, requires_grad=True) for size in (D, D, E))
    networks = Proportion(D).double(), Proportion(D).double()
    leap = build("leap", D, H).double()
    for ours, theirs in zip(networks, (leap.query_proportion, leap.key_proportion), strict=True):
        for layer, weight, bias in zip((ours.layers[0], ours.layers[2]), theirs.weights, theirs.biases, strict=True):
            weight.data, bias.data = layer.weight.data.T.clone(), layer.bias.data[None].clone()
    fq, fk = features(q, networks[0]), features(k, networks[1])
    expected = leap(q, k, v, mask=CAUSAL, execution="reference")
    head, state = scan(fq[:, :, :70], fk[:, :, :70], v[:, :, :70])
    middle, state = scan(fq[:, :, 70:-1], fk[:, :, 70:-1], v[:, :, 70:-1], state, chunk=9)
    last, state = step(fq[:, :, -1:], fk[:, :, -1:], v[:, :, -1:], state)
    outputs = {
        "reference": reference(fq, fk, v),
        "scan": scan(fq, fk, v)[0],
        "step": torch.cat([head, middle, last], 2),
    }
    weights = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * weights).sum(), (q, k, v))
    for name, out in outputs.items():
        assert float((out - expected).detach().abs().max()) < 1e-12, name
        grads = torch.autograd.grad((out * weights).sum(), (q, k, v), retain_graph=True)
        assert max(float((a - b).abs().max()) for a, b in zip(grads, wanted, strict=True)) < 1e-10, name
    kept = leap.write(leap.init_state(B, E, k), k, v, TokenInfo.whole(T))
    assert float((state - kept.kv).detach().abs().max()) < 1e-12
    assert state.shape == (B, H, 2 * D, E + 1)
