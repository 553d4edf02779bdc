"""Sums of which the server sees the total alone: fixed point, and masks that cancel."""
