"""The reference MoE transformer (paper, Section 3.1 and appendix A)."""

from expertp.model.transformer import MoETransformer, group_of

__all__ = ["MoETransformer", "group_of"]
