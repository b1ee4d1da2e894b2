"""Training contrastive models with spectrum-aware batches: one loop, small parts."""
