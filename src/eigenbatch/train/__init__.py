"""Training contrastive models with spectrum-aware batches: one loop, small parts."""

from eigenbatch.integrations.missing import require

require("kornia", "lightning", "sklearn")
