"""The names of the files of a checkpoint; this module needs no torch."""

STATE = "state.json"
WEIGHTS, OPTIMIZER = WHOLE_FILES = ("weights.safetensors", "optimizer.safetensors")
# The files of ranks: shard-RANK-model-KIND-of-00002.safetensors, where kind 1 is weights and 2 the optimizer's state.
WEIGHTS_PART, OPTIMIZER_PART = (f"-model-{kind:05d}-of-00002.safetensors" for kind in (1, 2))


def is_weights(name: str) -> bool:
    """Return whether a file has weights, and not the optimizer's state."""
    return name == WEIGHTS or name.endswith(WEIGHTS_PART)


def is_name_of_tensors(name: str) -> bool:
    """Return whether a file of a checkpoint that has this name holds tensors."""
    is_part = name.startswith("shard-") and name.endswith((WEIGHTS_PART, OPTIMIZER_PART)) and "/" not in name
    return name in WHOLE_FILES or is_part
