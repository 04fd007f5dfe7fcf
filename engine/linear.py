"""Matrix products with weights laid out for the hardware once, when the model is loaded."""

from __future__ import annotations

import torch
import torch.nn.functional as F

# oneDNN picks the layout for a number of rows; measured on two CPUs, the one for 64 is best or near it from 1 to 512.
_PACKED_FOR_ROWS = 64


def onednn_can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN multiplies by packed weights of this type on this machine."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


class Linear:
    """``x @ weight.T + bias``. Shape: weight (out, in), bias (out,) or None; x (rows, in) → (rows, out)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._bias = bias
        self._packed = onednn_can_pack(weight)
        if self._packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKED_FOR_ROWS)
        self._weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return F.linear(x, self._weight, self._bias)
