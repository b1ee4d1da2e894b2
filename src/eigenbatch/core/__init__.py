"""Pure functions on tensors, frozen records out: the mathematics of the paper, no state, no I/O."""
