"""One small pure function per diagnosis: a finding, or None when there is nothing to say."""
