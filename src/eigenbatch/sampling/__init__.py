"""The stateful shell around selectors: embedding cache and batch sampler."""
