"""vLLM as the generation engine: in a thread of this process (CPU) or in processes of its own (GPU)."""
