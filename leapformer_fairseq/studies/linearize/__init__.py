"""Convert a trained softmax model to other attention: alignment, choice of blocks, distillation."""
