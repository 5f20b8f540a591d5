"""The control plane: scheduler, buffer, EnvManagers, LLMProxy, weight sync, training loop, ledger."""
