"""From a config to a batch script: components, options, text."""
