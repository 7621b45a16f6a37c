"""The coordinate check: sizes of activations and their updates along every axis, compared with theory."""
