"""Megatron-core as the trainer; `trainer.MegatronTrainer` is its one public class, for CPU and GPU alike."""
