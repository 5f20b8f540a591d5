"""Makes a tiny Qwen3 model from nothing: small enough that a laptop's processor shows it learning in minutes."""
