"""What breaks on a box with eight GPUs, and how it is seen: `looks` ask, `checks` judge."""
