"""Options as the C API takes them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from corosrv.base.errors import LibllamaError
from corosrv.models.engine.binding.library import ffi, lib
from corosrv.models.engine.binding.values import Options, Placement
from corosrv.models.engine.libllama import REBUILD

POOLINGS = {
    "": lib.COROSRV_POOLING_MODEL,
    "none": lib.COROSRV_POOLING_NONE,
    "mean": lib.COROSRV_POOLING_MEAN,
    "cls": lib.COROSRV_POOLING_CLS,
    "last": lib.COROSRV_POOLING_LAST,
    "rank": lib.COROSRV_POOLING_RANK,
}
_KERNELS = {
    "auto": lib.COROSRV_KERNELS_AUTO,
    "ggml": lib.COROSRV_KERNELS_GGML,
    "avx2": lib.COROSRV_KERNELS_AVX2,
    "avx-vnni": lib.COROSRV_KERNELS_AVX_VNNI,
}


class BorrowedOptions:
    """`struct` is a corosrv_options; it, and what it points to, lives as long as this object."""

    def __init__(self, options: Options) -> None:
        self._model = ffi.new("char[]", options.model.encode())
        self._draft = ffi.new("char[]", options.draft.encode())
        self._paths = [ffi.new("char[]", path.encode()) for path in options.adapters]
        self._adapters = ffi.new("char *[]", self._paths)
        self._synthetic = ffi.NULL
        if options.synthetic is not None:
            self._synthetic = ffi.new("corosrv_synthetic *", asdict(options.synthetic))
        translated = {
            "model": self._model,
            "synthetic": self._synthetic,
            "draft": self._draft,
            "kernels": _KERNELS[options.kernels],
            "pooling": POOLINGS[options.pooling],
            "adapters": self._adapters,
            "n_adapters": len(self._paths),
            "grammars": asdict(options.grammars),
            "placement": self._placed(options.placement),
        }
        try:
            self.struct = ffi.new("corosrv_options *", asdict(options) | translated)
        except KeyError as error:  # sources were updated, and the extension was not
            raise LibllamaError(f"corosrv's extension is older than its Python code ({error}); {REBUILD}") from None

    def _placed(self, placement: Placement) -> Any:
        """Returns a corosrv_placement; it, and what it points to, lives as long as this object."""
        self._device_names = [ffi.new("char[]", name.encode()) for name in placement.devices]
        self._devices = ffi.new("char *[]", self._device_names)
        self._parts = ffi.new("float[]", placement.tensor_split)
        translated = {
            "devices": self._devices,
            "n_devices": len(placement.devices),
            "tensor_split": self._parts,
            "n_tensor_split": len(placement.tensor_split),
        }
        self._placement = ffi.new("corosrv_placement *", asdict(placement) | translated)
        return self._placement
