"""Whether base and target are sizes of one architecture, so that hyperparameters transfer between them."""

from typing import Any

from expertp.adapters.description import Description
from expertp.adapters.keys import HEAD_KEYS, HIDDEN_KEYS, SIZE_KEYS
from expertp.errors import InputError, shown
from expertp.spec import BaseHPs

# Axes that must grow with the width: heads have a fixed size, and their number grows.
GROW_WITH_WIDTH = ("Q", "O", "B", "A")
FIXED = ("D", "P")
# Configuration keys that may differ; every other one changes the architecture. First sizes, some of which have a check
# of their own, then training and bookkeeping.
MAY_DIFFER = frozenset(
    (
        *(key for keys in SIZE_KEYS.values() for key in keys),
        *(*HEAD_KEYS, *HIDDEN_KEYS, "num_attention_heads_per_layer", "head_dim", "max_position_embeddings"),
        *("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        *("n_group", "topk_group", "n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
        *("moe_layer_end_index", "max_window_layers", "num_nextn_predict_layers"),
        *("initializer_range", "router_aux_loss_coef", "output_router_logits", "use_cache", "pretraining_tp"),
        *("architectures", "dtype", "transformers_version", "id2label", "label2id", "problem_type"),
        *("pad_token_id", "bos_token_id", "eos_token_id", "eod_token_id", "sep_token_id"),
    )
)
# A key that lists the numbers of layers; lists with an entry per layer are recognized by their length.
LAYER_NUMBERS = "moe_layers"


def check_comparable(base: Description, target: Description, hps: BaseHPs, allow_kappa_change: bool = False) -> None:
    """Raise an error unless base and target are sizes of one architecture."""
    if base.family.model_type != target.family.model_type:
        raise InputError(
            f"model_type='{target.family.model_type}' in the target but '{base.family.model_type}' in the base; "
            "hyperparameters transfer between sizes of one architecture only"
        )
    if hps.residual == "absolute":
        raise InputError("hps.residual=absolute would change the base, whose forward pass is fixed; use relative")
    _check_parameters(base, target)
    _check_heads(base, target)
    _check_experts(base, target, allow_kappa_change)
    _check_configurations(base, target)


def _check_parameters(base: Description, target: Description) -> None:
    ours, theirs = ({tensor.row.pattern for tensor in each.tensors} for each in (target, base))
    if different := sorted(ours ^ theirs):
        has, lacks = ("target", "base") if different[0] in ours else ("base", "target")
        raise InputError(f"the {has} has {different[0]} and the {lacks} does not; make their architectures equal")


def _check_heads(base: Description, target: Description) -> None:
    for what in ("head_dim", "scaling"):
        ours, theirs = (sorted(value for name, value in each.heads if name == what) for each in (target, base))
        if ours != theirs:
            raise InputError(
                f"{what} of attention is {_listed(ours)} in the target but {_listed(theirs)} in the base; the size of "
                "a head is fixed, so let the number of heads grow with the width"
            )
    for symbol in FIXED:
        if base.sizes.axes.get(symbol) != target.sizes.axes.get(symbol):
            raise InputError(
                f"axis {symbol} is {target.sizes.axes.get(symbol)} in the target but {base.sizes.axes.get(symbol)} in "
                "the base; the size of a head is fixed, so make them equal"
            )
    for symbol in GROW_WITH_WIDTH:
        wide, narrow = (each.sizes.axes.get(symbol, 0) for each in (target, base))
        if wide * base.sizes.n_embd != narrow * target.sizes.n_embd:
            raise InputError(
                f"attention has {symbol}={wide} at width {target.sizes.n_embd} in the target but {narrow} at "
                f"{base.sizes.n_embd} in the base; let the number of heads grow in proportion to the width"
            )


def _check_experts(base: Description, target: Description, allow_kappa_change: bool) -> None:
    ours, theirs = target.sizes, base.sizes
    if ours.kappa != theirs.kappa and not allow_kappa_change:
        n_act = ours.n_exp * theirs.kappa
        fix = f"{n_act} of {ours.n_exp}" if n_act.denominator == 1 else f"a multiple of {n_act.denominator} experts"
        raise InputError(
            f"kappa=n_act/n_exp={ours.kappa} in the target but {theirs.kappa} in the base; learning rates do not "
            f"transfer across sparsity, so use {fix}"
        )
    if target.gate != base.gate:
        raise InputError(f"the gate is a {target.gate} in the target but {base.gate} in the base; make them equal")
    for where, each in (("target", target), ("base", base)):
        if each.sizes.n_act == 1 and each.gate == "mean":
            raise InputError(
                f"the {where} has n_act=1 and normalized gates, so its router gets no gradient; use 2 experts per "
                "token or gates that are not normalized"
            )
    if target.family.experts_are_fixed and ours.n_act != theirs.n_act:
        raise InputError(f"model_type '{target.family.model_type}' cannot have {ours.n_act} experts per token; use 2")
    _check_groups_of_experts(base, target)


def _check_groups_of_experts(base: Description, target: Description) -> None:
    """Groups of experts may grow with the experts; the fraction that is chosen stays."""
    (n_ours, k_ours), (n_theirs, k_theirs) = (
        (each.config.get("n_group") or 1, each.config.get("topk_group") or 1) for each in (target, base)
    )
    if k_ours * n_theirs != k_theirs * n_ours:
        raise InputError(
            f"topk_group/n_group={k_ours}/{n_ours} in the target but {k_theirs}/{n_theirs} in the base; make them equal"
        )


def _check_configurations(base: Description, target: Description) -> None:
    """All keys must be equal but for sizes; one that only one side has is not of the family, whose keys both have."""
    may_differ = MAY_DIFFER | {multiplier.key for multiplier in target.family.native}
    depths = {each.sizes.n_layer for each in (base, target)}
    layers = min(depths) - (len(depths) > 1)
    for key in sorted(base.config.keys() & target.config.keys() - may_differ):
        ours, theirs = (_of_first_layers(each, key, layers) for each in (target, base))
        if ours != theirs and not key.startswith("_"):
            raise InputError(
                f"{key}={shown(ours)} in the target but {shown(theirs)} in the base; it changes the architecture, so "
                "make them equal"
            )


def _of_first_layers(model: Description, key: str, layers: int) -> Any:
    """Return the value of a key for the first layers; a deeper model begins as the other one but for its last layer."""
    value = model.config[key]
    if isinstance(value, list) and key == LAYER_NUMBERS:
        return [number for number in value if number < layers]
    if isinstance(value, list) and len(value) == model.sizes.n_layer:
        return value[:layers]
    return value


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in dict.fromkeys(values)) or "absent"
