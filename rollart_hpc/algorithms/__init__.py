"""Advantages and losses: pure functions on arrays and tensors."""
