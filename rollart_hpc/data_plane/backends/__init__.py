"""What workers run on: vLLM and Megatron-core."""
