"""Reading checkpoints: find one, list its tensors without reading them, refuse what cannot be exported."""

from qwen_export.checkpoint.inventory import components_of, expected_tensors, mtp_tensors
from qwen_export.checkpoint.locate import ASSET_FILES, config_names, load_config, open_config
from qwen_export.checkpoint.snapshot import Snapshot, TensorInfo, open_snapshot

__all__ = [
    "ASSET_FILES",
    "Snapshot",
    "TensorInfo",
    "components_of",
    "config_names",
    "expected_tensors",
    "load_config",
    "mtp_tensors",
    "open_config",
    "open_snapshot",
]
