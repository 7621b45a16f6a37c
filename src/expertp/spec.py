"""What a model, its hyperparameters and a run are: frozen, validated values, with parameter and FLOP counts.

Names follow the paper in ASCII. `hps.lr` is linear; grids elsewhere are log2 and say so.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

RuleSetName = Literal["expertp", "sp", "mup", "completep", "fan_in_down"]
EpsRule = Literal["consistent", "paper"]
Schedule = Literal["constant", "cosine", "wsd"]
Balance = Literal["proportional", "sign", "aux_loss", "none"]
Dtype = Literal["float32", "bfloat16", "float64"]
DtypeOrAuto = Literal["auto", "float32", "bfloat16", "float64"]
ExpertBackend = Literal["auto", "fused", "loop", "grouped"]
# Where a power of the width would soon be no number any more.
MOST_GAMMA = 16


def _number(value: object) -> object:
    """Read "1/4" as 0.25, so that ratios can be written as the paper writes them."""
    if isinstance(value, str) and "/" in value:
        try:
            return float(Fraction(value))
        except (ValueError, ZeroDivisionError):
            return value
    return value


def _no_power_without_end(gamma: float) -> float:
    if MOST_GAMMA < gamma < math.inf:
        raise ValueError(f"{gamma:g} is above {MOST_GAMMA}; .inf is a router that begins at zero")
    return gamma


Finite = Annotated[float, Field(allow_inf_nan=False)]
Ratio = Annotated[Finite, BeforeValidator(_number)]
Gamma = Annotated[float, BeforeValidator(_number), AfterValidator(_no_power_without_end)]
Beta = Annotated[float, Field(ge=0, lt=1)]
# In the order of its keys, so that equal mappings are written alike.
Ratios = Annotated[dict[str, Ratio], AfterValidator(lambda ratios: dict(sorted(ratios.items())))]


class Spec(BaseModel):
    """Base of all specs: immutable, and no field that is not declared."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, data: Any) -> Any:
        for key, value in data.items() if isinstance(data, dict) else ():
            field = cls.model_fields.get(key)
            if isinstance(value, bool) and field is not None and field.annotation is not bool:
                raise ValueError(f"{key}={str(value).lower()} is not a number or a name")
        return data

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values, validated like a new one.

        >>> ModelSpec(n_embd=64, n_layer=2, n_exp=4, n_act=1).replace(n_embd=128).n_embd
        128
        """
        return type(self)(**{**dict(self), **changes})

    def to_tree(self) -> dict[str, Any]:
        """Return the plain tree that loads back to an equal spec and is valid JSON (infinity is a string)."""
        tree: dict[str, Any] = json.loads(self.model_dump_json())
        return tree


@dataclass(frozen=True)
class Counts:
    """Numbers of parameters: exact, and by the paper's two formulas (appendix A), which leave out the router."""

    total: int
    active: int
    non_embedding_total: int
    non_embedding_active: int
    paper_total: int
    paper_active: int


class ModelSpec(Spec):
    """The shape of one model (paper, Section 3.1 and appendix A).

    >>> base = ModelSpec(n_embd=512, n_layer=8, n_exp=4, n_act=1)
    >>> base.kappa, base.n_hid, round(base.counts().paper_total / 1e6, 1)
    (Fraction(1, 4), 512, 51.4)
    """

    n_embd: int = Field(gt=0, description="width of the residual stream")
    n_layer: int = Field(gt=0, description="depth: blocks of attention + FFN")
    d_head: int = Field(64, gt=0, description="size of an attention head, the same at every width")
    n_exp: int = Field(1, gt=0, description="experts per layer; to be given unless ffn is dense")
    n_act: int = Field(1, gt=0, description="experts that each token visits")
    alpha_ffn: Ratio = Field(1.0, gt=0, lt=1e6, description="hidden size of an expert (or dense FFN) / n_embd")
    vocab_size: int = Field(50304, gt=0, description="rows of the token table")
    context: int = Field(1024, gt=0, description="tokens per sequence")
    gate: Literal["sigmoid", "softmax"] = Field("sigmoid", description="mixing coefficients")
    tied_embeddings: bool = Field(True, description="the token table is also the unembedding")
    linear_bias: bool = Field(False, description="biases in attention and dense FFN layers")
    ffn: Literal["moe", "dense"] = Field("moe", description="mixture of experts, or a dense FFN")
    activation: Literal["gelu"] = Field("gelu", description="non-linearity of the FFN")

    @model_validator(mode="after")
    def _is_a_model(self) -> ModelSpec:
        if self.n_act > self.n_exp:
            raise ValueError(
                f"n_act={self.n_act} is more than n_exp={self.n_exp}; a token visits at most n_exp experts"
            )
        if self.n_embd % self.d_head:
            near = max(self.d_head, round(self.n_embd / self.d_head) * self.d_head)
            raise ValueError(
                f"n_embd={self.n_embd} is not a multiple of d_head={self.d_head}; set n_embd={near} or another d_head"
            )
        hidden = self.alpha_ffn * self.n_embd
        if abs(hidden - round(hidden)) > 1e-6 or round(hidden) < 1:
            near = max(1, round(hidden))
            raise ValueError(
                f"alpha_ffn*n_embd={hidden:g} is not an integer >= 1; "
                f"set alpha_ffn={near}/{self.n_embd} for {near} hidden units"
            )
        if self.ffn == "dense" and self.n_exp != 1:
            raise ValueError(
                f"ffn=dense has no experts but n_exp={self.n_exp}; leave n_exp and n_act out and give alpha_ffn"
            )
        if self.ffn == "moe" and "n_exp" not in self.model_fields_set:
            raise ValueError("n_exp is missing; give n_exp and n_act, or set ffn=dense")
        return self

    @property
    def kappa(self) -> Fraction:
        """Sparsity: the fraction of experts that a token visits."""
        return Fraction(self.n_act, self.n_exp)

    @property
    def n_hid(self) -> int:
        """Hidden units of one expert, or of the dense FFN."""
        return round(self.alpha_ffn * self.n_embd)

    @property
    def n_head(self) -> int:
        """Attention heads; they grow with width at fixed d_head."""
        return self.n_embd // self.d_head

    def dense_twin(self) -> ModelSpec:
        """Return the dense model with the same active shape: one FFN as wide as all of a token's experts."""
        return self.replace(ffn="dense", n_exp=1, n_act=1, alpha_ffn=self.n_act * self.alpha_ffn)

    def counts(self) -> Counts:
        """Count parameters; the router and everything outside the experts is always active."""
        n, h = self.n_embd, self.n_hid
        tables = n * (self.vocab_size + self.context)
        attention = 4 * n * n + (4 * n if self.linear_bias else 0)
        norms = 4 * n
        expert = 2 * n * h
        if self.ffn == "dense":
            shared_ffn, experts, active = expert + (h + n if self.linear_bias else 0), 0, 0
        else:
            shared_ffn, experts, active = n * self.n_exp, self.n_exp * expert, self.n_act * expert
        head = 0 if self.tied_embeddings else n * self.vocab_size
        shared = self.n_layer * (attention + norms + shared_ffn) + 2 * n + head

        def paper(n_experts: int) -> int:
            return n * n * self.n_layer * 4 + self.n_layer * n_experts * expert + tables

        return Counts(
            total=tables + shared + self.n_layer * experts,
            active=tables + shared + self.n_layer * active,
            non_embedding_total=shared + self.n_layer * experts,
            non_embedding_active=shared + self.n_layer * active,
            paper_total=paper(self.n_exp),
            paper_active=paper(self.n_act),
        )

    def flops_per_token(self) -> int:
        """Training FLOPs per token, forward and backward.

        6 per active parameter (unembedding included, lookups in the tables not) and 12 n_layer n_embd context for
        attention scores and values, not halved for causality.
        """
        parameters = self.counts().non_embedding_active
        if self.tied_embeddings:
            parameters += self.n_embd * self.vocab_size
        return 6 * parameters + 12 * self.n_layer * self.n_embd * self.context


class BaseHPs(Spec):
    """Hyperparameters found at the base model; they mean nothing without the base they belong to."""

    lr: Ratio = Field(gt=0, description="Adam learning rate eta, linear")
    init_std: Ratio = Field(0.02, gt=0, description="init standard deviation sigma")
    adam_eps: Finite = Field(1e-12, gt=0, description="Adam epsilon")
    betas: tuple[Beta, Beta] = Field((0.9, 0.95), description="Adam beta_1 and beta_2")
    weight_decay: Finite = Field(0.0, ge=0, description="lambda of torch's AdamW, coupled to lr")
    bias_lr: Finite = Field(0.1, ge=0, description="eta_bias of the expert biases; never scaled")
    gamma: Gamma = Field(1.0, ge=0.5, description="router init is sigma m_N^-gamma; .inf is a zero router")
    rules: RuleSetName = Field("expertp", description="scaling rule set")
    eps_rule: EpsRule = Field("consistent", description="column of Adam eps")
    residual: Literal["relative", "absolute"] = Field("relative", description="1/m_L or 1/L on block outputs")
    decay: Literal["independent", "tau"] = Field("independent", description="keep lr*wd, or steps*lr*wd, constant")
    tuned_steps: int | None = Field(None, gt=0, description="steps of the base run; needed by decay: tau")
    constants: Literal["ones", "paper"] | Ratios = Field(
        "ones", description="constant multipliers per group: a preset, or a mapping such as {router_lr: 1/16}"
    )
    clip: float | None = Field(None, gt=0, description="global gradient norm, or null for no clipping")


class TrainSpec(Spec):
    """How one run goes: data, length, batch, schedule, numerics and bookkeeping."""

    data: str = Field(description="directory of token shards, written by `expertp prepare`")
    steps: int = Field(gt=0, description="optimizer steps")
    batch_tokens: int = Field(gt=0, description="tokens per optimizer step, a multiple of context")
    micro_batch: int | None = Field(None, gt=0, description="sequences per forward pass; null: the whole batch")
    schedule: Schedule = Field("constant", description="after warm-up: constant, cosine to zero, or wsd")
    warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up")
    decay_steps: int | None = Field(None, gt=0, description="wsd: steps of the final linear decay to zero")
    dtype: DtypeOrAuto = Field(
        "float32",
        description="compute type; weights and optimizer stay float32 under bfloat16; auto: by device and shape",
    )
    seed: int = Field(0, ge=0, description="of init and data order")
    eval_every: int = Field(100, ge=0, description="steps between validations; 0: never")
    eval_tokens: int = Field(65536, gt=0, description="validation tokens, the same in every run")
    log_every: int = Field(1, gt=0, description="steps between records in metrics.jsonl")
    diverge_above: float | None = Field(None, gt=0, description="loss that ends a run; null: 2 ln(vocab_size)")
    balance: Balance = Field("proportional", description="how expert load is balanced")
    aux_weight: Finite = Field(0.01, ge=0, description="weight of the auxiliary loss under balance: aux_loss")
    expert_backend: ExpertBackend = Field("auto", description="how experts are computed")
    activation_checkpointing: bool = Field(False, description="recompute blocks in the backward pass")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda if there is one")
    checkpoint_seconds: float = Field(30.0, gt=0, description="time between checkpoints: about what a crash can cost")
    checkpoint_steps: int | None = Field(None, gt=0, description="checkpoint every so many steps as well")

    @model_validator(mode="after")
    def _is_a_schedule(self) -> TrainSpec:
        if self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps={self.warmup_steps} is more than steps={self.steps}; lower it")
        if (self.schedule == "wsd") != (self.decay_steps is not None):
            raise ValueError("decay_steps belongs to schedule=wsd; give both or neither")
        if self.decay_steps is not None and self.warmup_steps + self.decay_steps > self.steps:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} + decay_steps={self.decay_steps} is more than "
                f"steps={self.steps}; shorten one"
            )
        return self

    @property
    def tokens(self) -> int:
        """Tokens of a whole run."""
        return self.steps * self.batch_tokens


class RunSpec(Spec):
    """One training run: the model, the base its hyperparameters belong to, the hyperparameters, and how to train."""

    base: ModelSpec
    model: ModelSpec
    hps: BaseHPs
    train: TrainSpec
    allow_kappa_change: bool = Field(False, description="permit another sparsity than the base's (negative control)")

    @model_validator(mode="after")
    def _batch_fits(self) -> RunSpec:
        train, context = self.train, self.model.context
        if train.batch_tokens % context:
            near = max(1, round(train.batch_tokens / context)) * context
            raise ValueError(
                f"train.batch_tokens={train.batch_tokens} is not a multiple of model.context={context}; set {near}"
            )
        if train.eval_every and train.eval_tokens < context:
            raise ValueError(
                f"train.eval_tokens={train.eval_tokens} is less than one sequence; set {context} or more, "
                "or train.eval_every=0"
            )
        if train.micro_batch and self.sequences % train.micro_batch:
            raise ValueError(
                f"train.micro_batch={train.micro_batch} does not divide the batch of {self.sequences} sequences; "
                f"set {math.gcd(train.micro_batch, self.sequences)} or another batch_tokens"
            )
        return self

    @property
    def flops(self) -> int:
        """Training FLOPs of the whole run."""
        return self.train.tokens * self.model.flops_per_token()

    @property
    def sequences(self) -> int:
        """Sequences per optimizer step."""
        return self.train.batch_tokens // self.model.context
