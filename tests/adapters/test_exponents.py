"""Gradient entries scale like the eps of the rules, in rows that the reference model does not have."""
