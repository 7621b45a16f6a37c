"""Specs of models, hyperparameters and runs: frozen, validated values with parameter and FLOP counts.

Names follow the paper in ASCII. `hps.lr` is linear; fields that hold log2 values have `log2_` in their name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    WrapValidator,
    model_validator,
)

from expertp.errors import shown
from expertp.util.text import count

RuleSetName = Literal[
    "expertp", "sp", "mup", "completep", "fan_in_down", "no_depth", "no_mean", "no_alpha", "fan_in_stack", "native"
]
EpsRule = Literal["consistent", "paper"]
Schedule = Literal["constant", "cosine", "wsd"]
Balance = Literal["proportional", "sign", "aux_loss", "none"]
Dtype = Literal["float32", "bfloat16", "float64"]
# Destinations of metrics in addition to the run directory.
TrackerName = Literal["tensorboard", "wandb", "wandb-offline", "trackio"]
DtypeOrAuto = Literal["auto", "float32", "bfloat16", "float64"]
ExpertBackend = Literal["auto", "fused", "loop", "grouped"]
# Larger powers of the width overflow or vanish.
MAX_GAMMA = 16
# Characters of the name of a study, an arm, a joint axis or a theory problem.
LONGEST_NAME = 60
# Larger integers are no seeds.
LARGEST_INTEGER = 2**64 - 1


def _number(value: object) -> object:
    """Read "1/4" as 0.25, so that files can state ratios as the paper does."""
    if isinstance(value, str) and "/" in value:
        try:
            return float(Fraction(value))
        except (ValueError, ZeroDivisionError):
            return value
    return value


def _integers(value: object) -> Iterator[int]:
    """Yield the integers in plain values."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _integers(inner)


def _bounded_gamma(gamma: float) -> float:
    if MAX_GAMMA < gamma < math.inf:
        raise ValueError(f"{gamma:g} is above {MAX_GAMMA}; use .inf for a router initialized to zero")
    return gamma


def _is_name(text: str) -> str:
    """Refuse a name that a page or a figure cannot show."""
    if not text.strip():
        raise ValueError("the name is empty; give it a name")
    if not text.isprintable():
        raise ValueError(f"the name {shown(text)} has characters that cannot be printed; remove them")
    if len(text) > LONGEST_NAME:
        raise ValueError(f"the name has {len(text)} characters; give at most {LONGEST_NAME}")
    return text


Name = Annotated[str, AfterValidator(_is_name)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Ratio = Annotated[Finite, BeforeValidator(_number)]
Gamma = Annotated[float, BeforeValidator(_number), AfterValidator(_bounded_gamma)]
Beta = Annotated[float, Field(ge=0, lt=1)]
# Sorted by key, so that equal mappings serialize identically.
Ratios = Annotated[dict[str, Ratio], AfterValidator(lambda ratios: dict(sorted(ratios.items())))]


class Spec(BaseModel):
    """Base class of all specs: immutable, rejects undeclared fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    # Names that fields had in files of earlier versions -> their names now.
    earlier_names: ClassVar[Mapping[str, str]] = {}
    # Fields of earlier versions that files may still have.
    earlier_fields: ClassVar[frozenset[str]] = frozenset()
    # Fields that hold a path -> words with another meaning.
    path_fields: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _check_values(cls, data: Any) -> Any:
        for key, value in data.items() if isinstance(data, dict) else ():
            field = cls.model_fields.get(key)
            if isinstance(value, bool) and field is not None and field.annotation is not bool:
                raise ValueError(f"{key}={str(value).lower()} is a boolean; give a number or a name")
            if not isinstance(value, int | list | tuple | Mapping):
                continue
            if too_large := next((each for each in _integers(value) if abs(each) > LARGEST_INTEGER), None):
                raise ValueError(f"{key} has {shown(too_large)}; give at most {LARGEST_INTEGER}")
        return data

    @classmethod
    def kind_of(cls, data: object) -> type[Self]:
        """Return the type that reads some plain values: this one, unless a type has several kinds."""
        del data
        return cls

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields replaced, validated again.

        >>> ModelSpec(n_embd=64, n_layer=2, n_exp=4, n_act=1).replace(n_embd=128).n_embd
        128
        """
        return type(self)(**{**dict(self), **changes})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are valid JSON and load back to an equal spec (infinity is a string)."""
        plain: dict[str, Any] = json.loads(self.model_dump_json())
        return plain


@dataclass(frozen=True)
class Counts:
    """Parameter counts: exact, and by the formulas of the paper's appendix A, which omit the router."""

    total: int
    active: int
    non_embedding_total: int
    non_embedding_active: int
    paper_total: int
    paper_active: int


class Model(Spec):
    """A model that can be counted and grown along axes: the reference model (`ModelSpec`), or one of another family.

    A kind of model is a subclass. Files tell kinds apart by a key that only one of them has, its `marker`.
    """

    marker: ClassVar[str] = ""
    # Libraries beside torch on which the numbers of a model depend.
    libraries: ClassVar[tuple[str, ...]] = ()
    kinds: ClassVar[dict[str, type[Model]]] = {}

    if TYPE_CHECKING:  # every kind has these; pydantic does not let a field take the place of a property

        @property
        def n_embd(self) -> int:
            """Width of the residual stream."""

        @property
        def n_layer(self) -> int:
            """Depth."""

        @property
        def n_exp(self) -> int:
            """Experts per layer."""

        @property
        def n_act(self) -> int:
            """Experts per token."""

        @property
        def alpha_ffn(self) -> float:
            """Hidden units of an expert divided by the width."""

        @property
        def n_hid(self) -> int:
            """Hidden units of one expert."""

        @property
        def vocab_size(self) -> int:
            """Rows of the embedding."""

        @property
        def context(self) -> int:
            """Tokens per sequence."""

        @property
        def is_moe(self) -> bool:
            """Whether the feed-forward layers have experts."""

        @property
        def variant(self) -> str:
            """What a model is beside its sizes, in a word; empty for the reference model of the paper."""

        def grown(self, **sizes: Any) -> Self:
            """Return the model with other sizes: n_embd, n_layer, n_exp, n_act or alpha_ffn."""

        def counts(self) -> Counts:
            """Count parameters."""

        def flops_per_token(self) -> int:
            """Return training FLOPs per token, forward and backward."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Register a kind of model."""
        super().__pydantic_init_subclass__(**options)
        Model.kinds[cls.marker] = cls

    @classmethod
    def kind_of(cls, data: object) -> type[Self]:
        """Return the kind of model that a section describes; the reference model has no marker."""
        if cls is not Model:
            return cls
        markers = data.keys() & Model.kinds.keys() if isinstance(data, Mapping) else set()
        return Model.kinds[min(markers, default="")]  # type: ignore[return-value]

    @property
    def kappa(self) -> Fraction:
        """Sparsity: the fraction of experts that are active per token."""
        return Fraction(self.n_act, self.n_exp)

    @property
    def label(self) -> str:
        """Short name of the model's size.

        >>> ModelSpec(n_embd=64, n_layer=2, n_exp=4, n_act=1).label
        'N64 L2 E4A1 a1'
        """
        ffn = f"E{self.n_exp}A{self.n_act}" if self.is_moe else "dense"
        return f"N{self.n_embd} L{self.n_layer} {ffn} a{self.alpha_ffn:g} {self.variant}".rstrip()

    def describe(self) -> str:
        """Return the shape and the parameter counts in one line.

        >>> ModelSpec(n_embd=512, n_layer=8, n_exp=4, n_act=1).describe()
        'n_embd 512, n_layer 8, E4A1, alpha_ffn 1: 51.5M parameters, 38.9M active'
        """
        counts = self.counts()
        ffn = f"E{self.n_exp}A{self.n_act}" if self.is_moe else "dense"
        return (
            f"n_embd {self.n_embd}, n_layer {self.n_layer}, {ffn}, alpha_ffn {self.alpha_ffn:g}: "
            f"{count(counts.total)} parameters, {count(counts.active)} active"
        )


def _of_its_kind(data: Any, validate: Callable[[Any], Any]) -> Any:
    return Model.kind_of(data).model_validate(data) if isinstance(data, Mapping) else validate(data)


# A field that holds a model of any kind.
AnyModel = Annotated[SerializeAsAny[Model], WrapValidator(_of_its_kind)]


class ModelSpec(Model):
    """Shape of one reference model.

    Paper: Section 3.1 and appendix A.

    >>> base = ModelSpec(n_embd=512, n_layer=8, n_exp=4, n_act=1)
    >>> base.kappa, base.n_hid, round(base.counts().paper_total / 1e6, 1)
    (Fraction(1, 4), 512, 51.4)
    """

    n_embd: int = Field(gt=0, description="width of the residual stream")
    n_layer: int = Field(gt=0, description="depth: number of blocks (attention + FFN)")
    d_head: int = Field(64, gt=0, description="size of an attention head, the same at every width")
    n_exp: int = Field(1, gt=0, description="experts per layer; required unless ffn is dense")
    n_act: int = Field(1, gt=0, description="active experts per token")
    alpha_ffn: Ratio = Field(1.0, gt=0, lt=1e6, description="hidden size of an expert (or of the dense FFN) / n_embd")
    vocab_size: int = Field(50304, gt=0, description="rows of the token embedding")
    context: int = Field(1024, gt=0, description="tokens per sequence")
    gate: Literal["sigmoid", "softmax"] = Field("sigmoid", description="gate function of the router")
    tied_embeddings: bool = Field(True, description="use the token embedding as the unembedding")
    linear_bias: bool = Field(False, description="biases in attention and dense FFN layers")
    ffn: Literal["moe", "dense"] = Field("moe", description="mixture of experts, or a dense FFN")
    activation: Literal["gelu"] = Field("gelu", description="non-linearity of the FFN")

    @model_validator(mode="after")
    def _check_shape(self) -> ModelSpec:
        if self.n_act > self.n_exp:
            raise ValueError(f"n_act={self.n_act} is more than n_exp={self.n_exp}; set n_act to n_exp or less")
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
    def n_hid(self) -> int:
        """Hidden units of one expert, or of the dense FFN."""
        return round(self.alpha_ffn * self.n_embd)

    @property
    def n_head(self) -> int:
        """Attention heads; their number grows with width at fixed d_head."""
        return self.n_embd // self.d_head

    @property
    def is_moe(self) -> bool:
        """Whether the feed-forward layers have experts."""
        return self.ffn == "moe"

    @property
    def variant(self) -> str:
        """The gate, where it is not the paper's."""
        return "softmax" if self.gate == "softmax" and self.is_moe else ""

    def grown(self, **sizes: Any) -> Self:
        """Return the model with other sizes: n_embd, n_layer, n_exp, n_act or alpha_ffn."""
        return self.replace(**sizes)

    def dense_twin(self) -> ModelSpec:
        """Return the dense model with the same active shape: one FFN as wide as all active experts together."""
        return self.replace(ffn="dense", n_exp=1, n_act=1, alpha_ffn=self.n_act * self.alpha_ffn)

    def counts(self) -> Counts:
        """Count parameters; the router and everything outside the experts are always active."""
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
        """Return training FLOPs per token, forward and backward.

        6 per active parameter (with the unembedding, without embedding lookups) + 12 n_layer n_embd context for
        attention scores and values, not halved for causal masking.
        """
        parameters = self.counts().non_embedding_active
        if self.tied_embeddings:
            parameters += self.n_embd * self.vocab_size
        return 6 * parameters + 12 * self.n_layer * self.n_embd * self.context

    def training_bytes(self) -> int:
        """Return the memory of weights, gradients and Adam's two moments in float32, without activations."""
        return 16 * self.counts().total


class BaseHPs(Spec):
    """Hyperparameters tuned on the base model; they are valid only together with that base."""

    lr: Ratio = Field(gt=0, description="Adam learning rate eta, linear")
    init_std: Ratio = Field(0.02, gt=0, description="standard deviation sigma of the init")
    adam_eps: Finite = Field(1e-12, gt=0, description="Adam epsilon")
    betas: tuple[Beta, Beta] = Field((0.9, 0.95), description="Adam beta_1 and beta_2")
    weight_decay: Finite = Field(0.0, ge=0, description="lambda of torch's AdamW, which multiplies it by lr")
    bias_lr: Finite = Field(0.1, ge=0, description="learning rate eta_bias of the expert biases; never scaled")
    gamma: Gamma = Field(1.0, ge=0.5, description="router init std is sigma m_N^-gamma; .inf: zero init")
    rules: RuleSetName = Field("expertp", description="scaling rule set")
    eps_rule: EpsRule = Field("consistent", description="which column of the rule table sets Adam eps")
    residual: Literal["relative", "absolute"] = Field("relative", description="scale block outputs by 1/m_L or 1/L")
    decay: Literal["independent", "tau"] = Field("independent", description="keep lr*wd or steps*lr*wd constant")
    tuned_steps: int | None = Field(None, gt=0, description="steps of the base run; required by decay: tau")
    constants: Literal["ones", "paper"] | Ratios = Field(
        "ones", description="constant multipliers by parameter group: a preset, or a mapping such as {router_lr: 1/16}"
    )
    clip: float | None = Field(None, gt=0, description="largest global gradient norm; null: no clipping")

    def __hash__(self) -> int:
        # A mapping of constants is not hashable; all other values are.
        constants = self.constants if isinstance(self.constants, str) else frozenset(self.constants.items())
        return hash(tuple(dict(self, constants=constants).values()))


class TrainSpec(Spec):
    """Training settings of one run: data, length, batch, schedule, numerics, logging and checkpoints."""

    path_fields: ClassVar[Mapping[str, tuple[str, ...]]] = {"data": ()}

    data: str = Field(description="directory of token shards written by `expertp prepare`")
    steps: int = Field(gt=0, description="optimizer steps")
    batch_tokens: int = Field(gt=0, description="tokens per optimizer step; a multiple of context")
    micro_batch: int | None = Field(None, gt=0, description="sequences per forward pass; null: the whole batch")
    schedule: Schedule = Field("constant", description="lr after warm-up: constant, cosine to zero, or wsd")
    warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up")
    decay_steps: int | None = Field(None, gt=0, description="wsd: steps of the final linear decay to zero")
    dtype: DtypeOrAuto = Field(
        "float32",
        description="compute dtype; bfloat16 keeps weights and optimizer state in float32; auto: by device and shape",
    )
    seed: int = Field(0, ge=0, description="seed of init and data order")
    eval_every: int = Field(100, ge=0, description="steps between validations; 0: never")
    eval_tokens: int = Field(65536, gt=0, description="validation tokens; the same tokens in every run")
    log_every: int = Field(1, gt=0, description="steps between records in metrics.jsonl")
    diverge_above: float | None = Field(
        None, gt=0, description="loss above which a run diverges; null: 2 ln(vocab_size)"
    )
    balance: Balance = Field("proportional", description="load balancing method")
    aux_weight: Finite = Field(0.01, ge=0, description="weight of the auxiliary loss, for balance: aux_loss")
    expert_backend: ExpertBackend = Field("auto", description="implementation of the experts")
    activation_checkpointing: bool = Field(False, description="recompute blocks in the backward pass")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda if available, else cpu")
    checkpoint_seconds: float = Field(30.0, gt=0, description="seconds between checkpoints")
    checkpoint_steps: int | None = Field(None, gt=0, description="additionally, steps between checkpoints")

    @model_validator(mode="after")
    def _check_schedule(self) -> TrainSpec:
        if self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps={self.warmup_steps} is more than steps={self.steps}; reduce warmup_steps")
        if (self.schedule == "wsd") != (self.decay_steps is not None):
            raise ValueError("decay_steps and schedule=wsd require each other; give both or neither")
        if self.decay_steps is not None and self.warmup_steps + self.decay_steps > self.steps:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} + decay_steps={self.decay_steps} is more than "
                f"steps={self.steps}; shorten one"
            )
        return self

    @property
    def tokens(self) -> int:
        """Training tokens of the whole run."""
        return self.steps * self.batch_tokens


class ParallelSpec(Spec):
    """How the processes of one run share its model; it changes sums by rounding only, so it is not part of a run."""

    replicas: int = Field(1, gt=0, description="copies of the model; the processes of one copy share its tensors")
    experts: int = Field(1, gt=0, description="processes over which the experts of a layer are spread")


class RunSpec(Spec):
    """One training run: the model, the base model, the base's hyperparameters, and the training settings."""

    base: AnyModel
    model: AnyModel
    hps: BaseHPs
    train: TrainSpec
    parallel: ParallelSpec = Field(ParallelSpec(), description="layout of a run of several processes")
    allow_kappa_change: bool = Field(False, description="permit a sparsity other than the base's (negative control)")

    @model_validator(mode="after")
    def _check_batch(self) -> RunSpec:
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
