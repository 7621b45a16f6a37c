"""Whether base and target are sizes of one architecture, so that hyperparameters transfer between them."""

from expertp.adapters.description import Description
from expertp.errors import InputError, shown
from expertp.spec import BaseHPs

# Axes that must grow with the width: heads have a fixed size, and their number grows.
GROW_WITH_WIDTH = ("Q", "O", "B", "A")
FIXED = ("D", "P")
# Configuration keys that change the architecture, not its size.
ARCHITECTURE_KEYS = (
    *("norm_topk_prob", "routed_scaling_factor", "router_scaling_factor", "route_scale", "moe_routed_scaling_factor"),
    *("expert_selection_fn", "scoring_func", "topk_method", "shared_expert_combination_strategy"),
    *("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "moe_layer_interval", "mlp_only_layers"),
    *("interleave_moe_layer_step", "decoder_sparse_step", "sliding_window", "hidden_act", "swiglu_alpha"),
    *("swiglu_limit", "rope_parameters", "rope_theta", "rope_scaling", "embedding_multiplier", "attention_multiplier"),
    *("moe_router_logit_softcapping", "use_qk_norm", "attention_value_scale"),
)


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
    for key in ARCHITECTURE_KEYS:
        ours, theirs = target.config.get(key), base.config.get(key)
        if ours != theirs:
            raise InputError(
                f"{key}={shown(ours)} in the target but {shown(theirs)} in the base; it changes the architecture, so "
                "make them equal"
            )


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


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in dict.fromkeys(values)) or "absent"
